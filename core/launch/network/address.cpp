#include "core/launch/network/address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

namespace hora::launch {
namespace {

int system_family(const IpAddress& address) {
  return address.family == Family::ipv4 ? AF_INET : AF_INET6;
}

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
  ::inet_ntop(system_family(address), address.bytes.data(), text.data(), text.size());
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

std::string with_port(const IpAddress& address, std::uint16_t port) {
  const std::string text = to_string(address);
  return (address.family == Family::ipv6 ? "[" + text + "]" : text) + ":" + std::to_string(port);
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
  return to_string(subnet.base) + "/" + std::to_string(subnet.prefix);
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

}  // namespace hora::launch
