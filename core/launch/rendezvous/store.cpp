#include "core/launch/rendezvous/store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <hora/error.h>
#include <hora/printable.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <tuple>
#include <utility>

#include "core/base/file.h"
#include "core/launch/network/network.h"

namespace hora::launch {
namespace {

UniqueFd stream_socket(const IpAddress& address) {
  return UniqueFd(::socket(address.system_family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
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
  const UniqueFd descriptor(::socket(target.system_family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
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

/// The addresses of a name, each once, in the system's order; at least one. May take as long as the
/// system's resolver does. The error says why there are none.
tl::expected<std::vector<IpAddress>, std::string> resolve(const std::string& host) {
  if (const auto address = parse_address(host)) return std::vector{*address};
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &first); error != 0) {
    return tl::unexpected(
        fmt::format("the name {} cannot be resolved: {}", host,
                    error == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(first, &::freeaddrinfo);
  std::vector<IpAddress> addresses;
  for (const addrinfo* entry = first; entry != nullptr; entry = entry->ai_next) {
    const auto address = address_of(entry->ai_addr);
    if (!address || address->is_of_one_link()) continue;
    if (std::ranges::find(addresses, *address) == addresses.end()) addresses.push_back(*address);
  }
  if (addresses.empty()) return tl::unexpected("the name " + host + " has no usable address");
  return addresses;
}

}  // namespace

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

tl::expected<UniqueFd, int> connect_to(const Endpoint& to, int stop, Clock::time_point until) {
  UniqueFd descriptor = stream_socket(to.address);
  if (!descriptor) return tl::unexpected(errno);
  const SocketAddress address(to.address, to.port);
  if (::connect(descriptor.get(), address.get(), address.length) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) return tl::unexpected(errno);
    // poll() ignores negative descriptors.
    std::array<pollfd, 2> polled{pollfd{descriptor.get(), POLLOUT, 0}, pollfd{stop, POLLIN, 0}};
    while (::poll(polled.data(), polled.size(), milliseconds_until(until)) <= 0) {
      if (Clock::now() >= until) return tl::unexpected(ETIMEDOUT);
    }
    if (polled[1].revents != 0) return tl::unexpected(ECANCELED);
    int error = 0;
    socklen_t length = sizeof error;
    if (::getsockopt(descriptor.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
    if (error != 0) return tl::unexpected(error);
  }
  if (is_connected_to_itself(descriptor.get())) return tl::unexpected(ECONNREFUSED);
  configure(descriptor.get());
  return descriptor;
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

namespace {

[[noreturn]] void cannot_meet(const std::string& why) {
  throw Error(ErrorCode::invalid_argument, why);
}

/// Whether bind() says that this host does not have the address, or nothing of its family.
bool is_elsewhere(int error) {
  return error == EADDRNOTAVAIL || error == EAFNOSUPPORT;
}

/// A name that resolves to loopback on every host.
bool means_loopback(const std::string& host) {
  return host == "localhost" || parse_address(host).has_value();
}

/// Node 0's listener. Nothing where nodes have no ranks, and another may be node 0.
std::optional<Listener> listen_as_node0(const RendezvousOptions& options, const Endpoint& at) {
  auto listener = listen_at(at);
  if (listener) return std::move(*listener);
  const int error = listener.error();
  if (!options.node_rank && (error == EADDRINUSE || error == EADDRNOTAVAIL)) return std::nullopt;
  cannot_meet(
      fmt::format("node 0 cannot listen at {}: {}", to_string(at),
                  error == EADDRINUSE
                      ? "the port is in use on this host, by another job or by a second node 0; "
                        "end that, or choose another port"
                      : std::strerror(error)));
}

IpAddress own_or_refuse(const RendezvousOptions& options) {
  const auto own = own_address(options.host, options.network_interfaces);
  if (!own) cannot_meet(own.error());
  return *own;
}

class AddressStore : public Store {
 public:
  AddressStore(const RendezvousOptions& options, SecretKey token)
      : options_(options), place_(options.place), token_(std::move(token)) {}

  std::optional<Listener> claim() override;
  tl::expected<std::vector<Endpoint>, std::string> find() override;
  tl::expected<const SecretKey*, std::string> token() override { return &token_; }
  bool token_may_change() const override { return false; }

 private:
  /// `why`: it is not at the address that the user named.
  std::optional<Listener> listen_at_own(const std::string& why);

  const RendezvousOptions& options_;
  const RendezvousPlace& place_;
  SecretKey token_;
};

std::optional<Listener> AddressStore::claim() {
  const auto addresses = resolve(place_.host);
  for (const IpAddress& address : addresses.value_or(std::vector<IpAddress>())) {
    if (address.is_unspecified()) {
      cannot_meet(to_url(place_) +
                  " names no single address; name the one of node 0 that the other nodes reach");
    }
    if (address.is_loopback() && !means_loopback(place_.host)) {
      return listen_at_own(fmt::format("the name {} is {} here, which other hosts do not reach",
                                       place_.host, to_string(address)));
    }
    const Endpoint at{address, place_.port};
    auto listener = listen_at(at);
    if (listener) return std::move(*listener);
    if (!is_elsewhere(listener.error())) return listen_as_node0(options_, at);
  }
  if (!options_.node_rank) return std::nullopt;
  return listen_at_own(addresses ? fmt::format("{} ({}) is no address of this host", place_.host,
                                               to_string(addresses->front()))
                                 : addresses.error());
}

std::optional<Listener> AddressStore::listen_at_own(const std::string& why) {
  auto listener = listen_as_node0(options_, {own_or_refuse(options_), place_.port});
  if (listener) {
    options_.say(fmt::format("{}; node 0 listens at {}", why, to_string(listener->at)));
  }
  return listener;
}

/// With own_address() after a name's loopback addresses, as claim() does.
tl::expected<std::vector<Endpoint>, std::string> AddressStore::find() {
  const auto addresses = resolve(place_.host);
  if (!addresses) return tl::unexpected(addresses.error());
  std::vector<Endpoint> endpoints;
  for (const IpAddress& address : *addresses) endpoints.push_back({address, place_.port});
  if (std::ranges::any_of(*addresses, &IpAddress::is_loopback) && !means_loopback(place_.host)) {
    const auto own = own_address(options_.host, options_.network_interfaces);
    if (own) endpoints.push_back({*own, place_.port});
  }
  return endpoints;
}

class FolderStore : public Store {
 public:
  /// Without a token node 0 makes one.
  FolderStore(const RendezvousOptions& options, std::optional<SecretKey> token)
      : options_(options),
        folder_(options.place.folder),
        start_(folder_ + "/" + options.job),
        token_is_made_(!token),
        token_(std::move(token)) {}
  ~FolderStore() override {
    if (lock_) remove({".rendezvous", ".token", ".lock"});
  }

  std::optional<Listener> claim() override;
  tl::expected<std::vector<Endpoint>, std::string> find() override;
  tl::expected<const SecretKey*, std::string> token() override;
  bool token_may_change() const override { return token_is_made_; }

 private:
  /// Reads where node 0 is, and its host.
  tl::expected<std::pair<Endpoint, std::string>, std::string> read() const;
  void check_private() const;
  void lock();
  void write(const std::string& end, std::string_view text) const;
  void remove(std::initializer_list<const char*> ends) const {
    for (const char* end : ends) ::unlink((start_ + end).c_str());
  }
  [[noreturn]] void refuse_file(const std::string& end, const std::string& why) const {
    cannot_meet(
        fmt::format("the nodes cannot meet in the folder of {}: {}; --rendezvous file:///DIR "
                    "names a folder of this user that all nodes share",
                    in_quotes(start_ + end), why));
  }

  const RendezvousOptions& options_;
  const std::string folder_, start_;  ///< of the files' paths
  const bool token_is_made_;
  std::optional<SecretKey> token_;
  UniqueFd lock_;  ///< of node 0
};

std::optional<Listener> FolderStore::claim() {
  if (token_is_made_) check_private();
  lock();
  if (!lock_ && !options_.node_rank) return std::nullopt;
  if (!lock_) {
    const auto other = read();
    cannot_meet(
        fmt::format("two nodes have the same rank: host {} and host {} both meet as node 0 of "
                    "the job {} in {}; give each node its own --node-rank",
                    other ? other->second : "(unknown)", options_.host, options_.job, folder_));
  }
  remove({".rendezvous", ".token"});  // left by a node 0 that was killed
  if (token_is_made_) {
    const std::string text = new_token_text();
    write(".token", text);
    token_ = token_from_text(text).value();
  }
  auto listener = listen_at({own_or_refuse(options_), 0});
  if (!listener)
    cannot_meet(fmt::format("node 0 cannot listen: {}", std::strerror(listener.error())));
  // A reader sees all of it or nothing.
  write(".new", fmt::format("{} {} {}\n", to_string(listener->at.address), listener->at.port,
                            options_.host));
  if (std::rename((start_ + ".new").c_str(), (start_ + ".rendezvous").c_str()) != 0) {
    const int error = errno;
    remove({".new"});
    refuse_file(".rendezvous", std::strerror(error));
  }
  return std::move(*listener);
}

void FolderStore::check_private() const {
  struct stat status {};
  if (::stat(folder_.c_str(), &status) != 0) {
    cannot_meet(fmt::format("the folder {}: {}", in_quotes(folder_), std::strerror(errno)));
  }
  if (S_ISDIR(status.st_mode) && status.st_uid == ::geteuid() &&
      (status.st_mode & (S_IRWXG | S_IRWXO)) == 0) {
    return;
  }
  cannot_meet(
      fmt::format("no token is given, and none is made in the folder {}, which others may enter; "
                  "chmod 700 it, or give all nodes a token: in a file of mode 0600, or in the "
                  "environment variable {}",
                  in_quotes(folder_), kTokenVariable));
}

/// Where no other process has it.
void FolderStore::lock() {
  constexpr int kTries = 100;
  const std::string path = start_ + ".lock";
  for (int i = 0; i < kTries; ++i) {
    UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
                         S_IRUSR | S_IWUSR));
    struct stat opened {
    }, named{};
    if (!lock || ::fstat(lock.get(), &opened) != 0) refuse_file(".lock", std::strerror(errno));
    if (!S_ISREG(opened.st_mode) || opened.st_uid != ::geteuid()) {
      refuse_file(".lock", "something of this name exists that is no file of this user");
    }
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return;
      refuse_file(".lock", fmt::format("its file system has no locks ({})", std::strerror(errno)));
    }
    // Else it was removed by the one who held it before.
    if (::lstat(path.c_str(), &named) == 0 && named.st_ino == opened.st_ino &&
        named.st_dev == opened.st_dev) {
      lock_ = std::move(lock);
      return;
    }
  }
  refuse_file(".lock", "the lock disappears again and again");
}

void FolderStore::write(const std::string& end, std::string_view text) const {
  const internal::NewFile file(start_ + end);
  if (::write(file.descriptor(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    refuse_file(end, std::strerror(errno));
  }
}

tl::expected<std::pair<Endpoint, std::string>, std::string> FolderStore::read() const {
  // Opening a folder of NFS makes it ask the server whether a file has come that was missing
  // before.
  const UniqueFd refreshed(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!refreshed) {
    return tl::unexpected(
        fmt::format("the folder {}: {}", in_quotes(folder_), std::strerror(errno)));
  }
  const std::string path = start_ + ".rendezvous";
  const UniqueFd file(
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  if (!file && errno == ENOENT) return tl::unexpected<std::string>("it has not written there yet");
  std::array<char, 4096> bytes;
  const ssize_t count = file ? ::read(file.get(), bytes.data(), bytes.size()) : -1;
  if (count < 0) return tl::unexpected(path + ": " + std::strerror(errno));
  std::istringstream text(std::string(bytes.data(), static_cast<std::size_t>(count)));
  std::string address, host;
  int port = 0;
  text >> address >> port >> host;
  const auto parsed = parse_address(address);
  if (!text || !parsed || port < 1 || port > 65535) {
    return tl::unexpected(path + " is no file of a horarun");
  }
  return std::pair(Endpoint{*parsed, static_cast<std::uint16_t>(port)}, printable(host, 255));
}

tl::expected<std::vector<Endpoint>, std::string> FolderStore::find() {
  return read().map([](const auto& node0) { return std::vector{node0.first}; });
}

/// Node 0 writes its token before its address.
tl::expected<const SecretKey*, std::string> FolderStore::token() {
  if (token_is_made_ && !lock_) {
    auto token = token_from_file(start_ + ".token");
    if (!token) return tl::unexpected(token.error());
    token_ = std::move(*token);
  }
  return &*token_;
}

}  // namespace

std::unique_ptr<Store> make_store(const RendezvousOptions& options, const char* token_variable) {
  std::optional<SecretKey> token;
  if (!options.place.in_folder() || options.token_file || token_variable != nullptr) {
    auto loaded = load_token(options.token_file, token_variable);
    if (!loaded) cannot_meet(loaded.error());
    token = std::move(*loaded);
  }
  if (options.place.in_folder()) return std::make_unique<FolderStore>(options, std::move(token));
  return std::make_unique<AddressStore>(options, std::move(*token));
}

}  // namespace hora::launch
