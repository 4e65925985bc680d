#include "core/launch/rendezvous/sockets.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <system_error>
#include <tuple>

#include "core/launch/network/choice.h"

namespace hora::launch {
namespace {

/// How much is allocated before its bytes have arrived.
constexpr std::size_t kReadAtOnce = std::size_t{64} << 10;

int system_family(const IpAddress& address) {
  return address.family == Family::ipv4 ? AF_INET : AF_INET6;
}

UniqueFd stream_socket(const IpAddress& address) {
  return UniqueFd(::socket(system_family(address), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

/// Small messages go at once; a host that has vanished shows after some time.
void configure(int descriptor) {
  const int on = 1;
  static_cast<void>(::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
  static_cast<void>(::setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on));
}

int milliseconds_until(Clock::time_point until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
}

/// While nothing listens at a port of this host, the kernel may choose this very port for the side
/// that connects, which is then connected to itself (simultaneous open, RFC 9293, section 3.5).
bool is_connected_to_itself(int descriptor) {
  SocketAddress own, other;
  return ::getsockname(descriptor, own.get(), &own.length) == 0 &&
         ::getpeername(descriptor, other.get(), &other.length) == 0 &&
         own.address() == other.address() && own.port() == other.port();
}

/// Where the kernel would send to a host elsewhere: connecting a datagram socket sends nothing.
std::optional<IpAddress> routed_address(const char* elsewhere) {
  const IpAddress target = *parse_address(elsewhere);
  const UniqueFd descriptor(::socket(system_family(target), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const SocketAddress to(target, 9);
  SocketAddress own;
  if (!descriptor || ::connect(descriptor.get(), to.get(), to.length) != 0 ||
      ::getsockname(descriptor.get(), own.get(), &own.length) != 0) {
    return {};
  }
  return own.address();
}

/// Names that programs give to bridges of containers and of virtual machines.
bool is_bridge_by_name(const std::string& name) {
  constexpr std::array kPrefixes{"docker", "virbr", "br-", "veth", "cni", "lxc", "lxd", "podman"};
  return std::ranges::any_of(kPrefixes,
                             [&](const char* prefix) { return name.starts_with(prefix); });
}

}  // namespace

std::string to_string(const Endpoint& endpoint) {
  return with_port(endpoint.address, endpoint.port);
}

tl::expected<std::vector<IpAddress>, std::string> resolve(const std::string& host) {
  if (const auto address = parse_address(host)) return std::vector{*address};
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &first); error != 0) {
    return tl::unexpected(
        "the name " + host + " cannot be resolved: " +
        (error == EAI_SYSTEM ? std::generic_category().message(errno) : ::gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(first, &::freeaddrinfo);
  std::vector<IpAddress> addresses;
  for (const addrinfo* entry = first; entry != nullptr; entry = entry->ai_next) {
    const auto address = address_of(entry->ai_addr);
    if (!address || (address->family == Family::ipv6 && address->is_link_local())) continue;
    if (std::ranges::find(addresses, *address) == addresses.end()) addresses.push_back(*address);
  }
  if (addresses.empty()) return tl::unexpected("the name " + host + " has no usable address");
  return addresses;
}

tl::expected<Listener, int> listen_at(const Endpoint& wanted) {
  Listener listener{stream_socket(wanted.address), wanted};
  const int descriptor = listener.descriptor.get();
  const int on = 1;
  SocketAddress bound(wanted.address, wanted.port);
  if (!listener.descriptor ||
      ::setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(descriptor, bound.get(), bound.length) != 0 || ::listen(descriptor, SOMAXCONN) != 0 ||
      ::getsockname(descriptor, bound.get(), &bound.length) != 0) {
    return tl::unexpected(errno);
  }
  listener.at.port = bound.port();
  return listener;
}

std::optional<Accepted> accept_from(const Listener& listener) {
  SocketAddress from;
  UniqueFd descriptor(
      ::accept4(listener.descriptor.get(), from.get(), &from.length, SOCK_CLOEXEC | SOCK_NONBLOCK));
  const auto address = from.address();
  if (!descriptor || !address) return {};
  configure(descriptor.get());
  return Accepted{std::move(descriptor), {*address, from.port()}};
}

Waited wait_for(int descriptor, short events, int stop, Clock::time_point until) {
  for (;;) {
    // poll() ignores negative descriptors.
    std::array<pollfd, 2> polled{pollfd{descriptor, events, 0}, pollfd{stop, POLLIN, 0}};
    const int count = ::poll(polled.data(), polled.size(), milliseconds_until(until));
    if (count > 0) return polled[1].revents != 0 ? Waited::stopped : Waited::ready;
    if (Clock::now() >= until) return Waited::timeout;
  }
}

tl::expected<UniqueFd, int> connect_to(const Endpoint& to, int stop, Clock::time_point until) {
  UniqueFd descriptor = stream_socket(to.address);
  if (!descriptor) return tl::unexpected(errno);
  const SocketAddress address(to.address, to.port);
  if (::connect(descriptor.get(), address.get(), address.length) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) return tl::unexpected(errno);
    const Waited waited = wait_for(descriptor.get(), POLLOUT, stop, until);
    if (waited == Waited::stopped) return tl::unexpected(ECANCELED);
    if (waited == Waited::timeout) return tl::unexpected(ETIMEDOUT);
    int error = 0;
    socklen_t length = sizeof error;
    if (::getsockopt(descriptor.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
    if (error != 0) return tl::unexpected(error);
  }
  if (is_connected_to_itself(descriptor.get())) return tl::unexpected(ECONNREFUSED);
  configure(descriptor.get());
  return descriptor;
}

bool send_all(int descriptor, std::span<const std::byte> bytes, Clock::time_point until) {
  while (!bytes.empty()) {
    const ssize_t sent =
        ::send(descriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      if (wait_for(descriptor, POLLOUT, -1, until) != Waited::ready) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

ExactReader::State ExactReader::read(int descriptor, std::size_t wants) {
  if (read_ == 0) bytes_.clear();
  while (read_ < wants) {
    bytes_.resize(std::min(wants, read_ + kReadAtOnce));
    const ssize_t count =
        ::recv(descriptor, bytes_.data() + read_, bytes_.size() - read_, MSG_DONTWAIT);
    if (count > 0) {
      read_ += static_cast<std::size_t>(count);
    } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
      return State::ended;
    } else if (errno == EAGAIN) {
      return State::pending;
    }
  }
  read_ = 0;
  return State::complete;
}

tl::expected<IpAddress, std::string> own_address(const std::string& host,
                                                 std::span<const std::string> named) {
  const HostNetwork network{host, this_network_stack(), this_host_interfaces()};
  if (!named.empty()) {
    const auto choice = choose_named(std::span(&network, 1), named);
    if (!choice) return tl::unexpected(choice.error());
    return choice->addresses.front();
  }
  // Addresses of documentation (RFC 5737, RFC 3849), which no network has.
  for (const char* elsewhere : {"192.0.2.1", "2001:db8::1"}) {
    const auto routed = routed_address(elsewhere);
    if (routed && !routed->is_loopback()) return *routed;
  }
  const std::vector<Candidate> candidates = candidates_of(network);
  const auto best = std::ranges::max_element(candidates, {}, [&](const Candidate& candidate) {
    const Interface& interface = network.interfaces[candidate.interface];
    return std::tuple(!is_bridge_by_name(interface.name), interface.hardware, interface.speed);
  });
  return best == candidates.end() ? *parse_address("127.0.0.1") : best->address;
}

}  // namespace hora::launch
