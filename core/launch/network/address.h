/// Internet addresses and subnets as values.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>

namespace hora::launch {

enum class Family : std::uint8_t { ipv4, ipv6 };

/// Without a scope: addresses of one link alone (IPv6's fe80::/10) are of no use to other hosts.
struct IpAddress {
  Family family = Family::ipv4;
  std::array<std::uint8_t, 16> bytes{};  ///< network order; of IPv4 the first 4

  int bits() const { return family == Family::ipv4 ? 32 : 128; }
  bool is_loopback() const;
  bool is_link_local() const;
  bool is_unspecified() const;  ///< 0.0.0.0 or ::
  auto operator<=>(const IpAddress&) const = default;
};

/// "10.77.0.1", "fd00::1".
std::string to_string(const IpAddress& address);
/// Of exactly such a text; without port, brackets or scope.
std::optional<IpAddress> parse_address(const std::string& text);

/// "10.77.0.1:29500", "[fd00::1]:29500".
std::string with_port(const IpAddress& address, std::uint16_t port);

/// The addresses whose first bits are those of `base`; the base's other bits are 0.
struct Subnet {
  IpAddress base;
  int prefix = 0;

  bool contains(const IpAddress& address) const;
  auto operator<=>(const Subnet&) const = default;
};

/// The subnet in which `address` lies; a prefix outside of 0 .. address.bits() is taken as the
/// nearest of these.
Subnet subnet_of(const IpAddress& address, int prefix);
/// "10.77.0.0/24".
std::string to_string(const Subnet& subnet);
/// Of "ADDRESS/BITS"; bits after the prefix need not be 0.
std::optional<Subnet> parse_subnet(const std::string& text);

/// An address with a port, as sockets take it.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = sizeof(sockaddr_storage);

  SocketAddress() = default;
  SocketAddress(const IpAddress& address, std::uint16_t port);
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }

  /// Nothing for other families than IPv4 and IPv6. IPv4 within IPv6 (::ffff:a.b.c.d) is IPv4.
  std::optional<IpAddress> address() const;
  std::uint16_t port() const;
};

/// Nothing as in SocketAddress::address(), and for null.
std::optional<IpAddress> address_of(const sockaddr* address);

}  // namespace hora::launch
