#include "core/launch/network/interfaces.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hora/error.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <memory>
#include <string_view>

#include "core/launch/control/event_loop.h"

namespace hora::launch {
namespace {

bool is_ipv4_in_ipv6(const in6_addr& address) {
  constexpr std::array<std::uint8_t, 12> kPrefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(&address, kPrefix.data(), kPrefix.size()) == 0;
}

IpAddress from(const in_addr& address) {
  IpAddress result{.family = Family::ipv4};
  std::memcpy(result.bytes.data(), &address, sizeof address);
  return result;
}

IpAddress from(const in6_addr& address) {
  IpAddress result{.family = Family::ipv6};
  if (is_ipv4_in_ipv6(address)) {
    result.family = Family::ipv4;
    std::memcpy(result.bytes.data(), reinterpret_cast<const std::uint8_t*>(&address) + 12, 4);
  } else {
    std::memcpy(result.bytes.data(), &address, sizeof address);
  }
  return result;
}

}  // namespace

bool IpAddress::is_loopback() const {
  if (family == Family::ipv4) return bytes[0] == 127;
  return bytes[15] == 1 &&
         std::all_of(bytes.begin(), bytes.end() - 1, [](int b) { return b == 0; });
}

bool IpAddress::is_link_local() const {
  if (family == Family::ipv4) return bytes[0] == 169 && bytes[1] == 254;
  return bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80;
}

bool IpAddress::is_unspecified() const {
  return std::ranges::all_of(bytes, [](int byte) { return byte == 0; });
}

std::string to_string(const IpAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  ::inet_ntop(address.system_family(), address.bytes.data(), text.data(), text.size());
  return text.data();
}

std::optional<IpAddress> parse_address(const std::string& text) {
  if (text.find('\0') != std::string::npos) return {};
  in_addr ipv4{};
  if (::inet_pton(AF_INET, text.c_str(), &ipv4) == 1) return from(ipv4);
  in6_addr ipv6{};
  if (::inet_pton(AF_INET6, text.c_str(), &ipv6) == 1) return from(ipv6);
  return {};
}

std::string to_string(const Endpoint& endpoint) {
  const std::string address = to_string(endpoint.address);
  if (endpoint.address.family == Family::ipv4) return fmt::format("{}:{}", address, endpoint.port);
  return fmt::format("[{}]:{}", address, endpoint.port);
}

bool Subnet::contains(const IpAddress& address) const {
  return address.family == base.family && subnet_of(address, prefix).base == base;
}

Subnet subnet_of(const IpAddress& address, int prefix) {
  Subnet subnet{address, std::clamp(prefix, 0, address.bits())};
  for (int bit = subnet.prefix; bit < address.bits(); ++bit) {
    subnet.base.bytes[static_cast<std::size_t>(bit / 8)] &=
        static_cast<std::uint8_t>(~(0x80u >> (bit % 8)));
  }
  return subnet;
}

std::string to_string(const Subnet& subnet) {
  return fmt::format("{}/{}", to_string(subnet.base), subnet.prefix);
}

std::optional<Subnet> parse_subnet(const std::string& text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string::npos) return {};
  const auto address = parse_address(text.substr(0, slash));
  const std::string_view bits = std::string_view(text).substr(slash + 1);
  int prefix = -1;
  const auto [end, error] = std::from_chars(bits.data(), bits.data() + bits.size(), prefix);
  if (!address || error != std::errc() || end != bits.data() + bits.size() || prefix < 0 ||
      prefix > address->bits()) {
    return {};
  }
  return subnet_of(*address, prefix);
}

SocketAddress::SocketAddress(const IpAddress& address, std::uint16_t port) {
  if (address.family == Family::ipv4) {
    sockaddr_in ipv4{};
    ipv4.sin_family = AF_INET;
    ipv4.sin_port = htons(port);
    std::memcpy(&ipv4.sin_addr, address.bytes.data(), sizeof ipv4.sin_addr);
    std::memcpy(&storage, &ipv4, sizeof ipv4);
    length = sizeof ipv4;
  } else {
    sockaddr_in6 ipv6{};
    ipv6.sin6_family = AF_INET6;
    ipv6.sin6_port = htons(port);
    std::memcpy(&ipv6.sin6_addr, address.bytes.data(), sizeof ipv6.sin6_addr);
    std::memcpy(&storage, &ipv6, sizeof ipv6);
    length = sizeof ipv6;
  }
}

std::optional<IpAddress> SocketAddress::address() const {
  return address_of(get());
}

std::uint16_t SocketAddress::port() const {
  if (storage.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  }
  if (storage.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  }
  return 0;
}

std::optional<IpAddress> address_of(const sockaddr* address) {
  if (address == nullptr) return {};
  if (address->sa_family == AF_INET) {
    return from(reinterpret_cast<const sockaddr_in*>(address)->sin_addr);
  }
  if (address->sa_family == AF_INET6) {
    return from(reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  }
  return {};
}

namespace {

int prefix_of(const IpAddress& mask) {
  int bits = 0;
  for (const std::uint8_t byte : mask.bytes) bits += std::popcount(byte);
  return bits;
}

/// A number in a file of the kernel, 0 where there is none: reading the speed of a bridge or of an
/// interface that is down fails, and of an unknown speed it gives -1.
int number_in(const std::string& path) {
  std::ifstream file(path);
  long number = 0;
  if (!(file >> number) || number < 0 || number > 100'000'000) return 0;
  return static_cast<int>(number);
}

/// In bytes; 0 where the kernel does not say.
int mtu_of(const std::string& name) {
  const UniqueFd any_socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  name.copy(request.ifr_name, sizeof request.ifr_name - 1);
  if (!any_socket || ::ioctl(any_socket.get(), SIOCGIFMTU, &request) != 0) return 0;
  return request.ifr_mtu;
}

Interface describe_interface(const std::string& name, unsigned flags) {
  Interface interface;
  interface.name = name;
  interface.up = (flags & IFF_UP) != 0;
  interface.running = (flags & IFF_RUNNING) != 0;
  interface.loopback = (flags & IFF_LOOPBACK) != 0;
  interface.mtu = mtu_of(name);
  // /sys may be that of another network namespace, where this name is another interface.
  const std::string folder = "/sys/class/net/" + name + "/";
  if (number_in(folder + "ifindex") == static_cast<int>(::if_nametoindex(name.c_str()))) {
    interface.hardware = ::access((folder + "device").c_str(), F_OK) == 0;
    interface.speed = number_in(folder + "speed");
  }
  return interface;
}

std::string state_of(const Interface& interface) {
  std::vector<std::string> parts;
  for (const InterfaceAddress& at : interface.addresses) {
    if (at.address.family == Family::ipv6 && at.address.is_link_local()) continue;
    parts.push_back(fmt::format("{}/{}", to_string(at.address), at.prefix));
  }
  if (parts.empty()) parts.push_back("no address");
  if (!interface.up || !interface.running) parts.push_back("down");
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

std::vector<Interface> this_host_interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    throw Error(ErrorCode::transport, "this host's network interfaces cannot be listed: " +
                                          std::string(std::strerror(errno)));
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(first, &::freeifaddrs);
  std::vector<Interface> interfaces;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    const std::string name = entry->ifa_name;
    auto at = std::ranges::find(interfaces, name, &Interface::name);
    if (at == interfaces.end()) {
      interfaces.push_back(describe_interface(name, entry->ifa_flags));
      at = std::prev(interfaces.end());
    }
    const auto address = address_of(entry->ifa_addr);
    const auto mask = address_of(entry->ifa_netmask);
    if (!address) continue;
    at->addresses.push_back({*address, mask ? prefix_of(*mask) : address->bits()});
  }
  return interfaces;
}

std::string this_network_stack() {
  std::string start;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> start;
  struct stat status {};
  if (::stat("/proc/thread-self/ns/net", &status) != 0) status = {};
  return fmt::format("{}/{}/{}", start, status.st_dev, status.st_ino);
}

std::string describe(std::span<const Interface> interfaces) {
  std::vector<std::string> texts;
  for (const Interface& interface : interfaces) {
    texts.push_back(fmt::format("{} ({})", interface.name, state_of(interface)));
  }
  return texts.empty() ? "none" : fmt::format("{}", fmt::join(texts, ", "));
}

std::vector<Candidate> candidates_of(const HostNetwork& host) {
  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < host.interfaces.size(); ++i) {
    const Interface& interface = host.interfaces[i];
    if (!interface.usable() || interface.loopback) continue;
    for (const InterfaceAddress& at : interface.addresses) {
      const bool of_one_link = at.address.family == Family::ipv6 && at.address.is_link_local();
      if (of_one_link || at.address.is_loopback() || at.address.is_unspecified()) continue;
      candidates.push_back({i, at.address, at.prefix});
    }
  }
  return candidates;
}

std::vector<std::size_t> probe_partners(std::size_t host, std::size_t hosts) {
  constexpr std::size_t kFewHosts = 16;
  std::set<std::size_t> partners;
  if (hosts <= kFewHosts) {
    for (std::size_t peer = 0; peer < hosts; ++peer) partners.insert(peer);
  } else {
    for (std::size_t step = 1; step < hosts; step *= 2) {
      partners.insert((host + step) % hosts);
      partners.insert((host + hosts - step) % hosts);
    }
  }
  partners.erase(host);
  return {partners.begin(), partners.end()};
}

}  // namespace hora::launch
