/// Internet addresses and subnets as values; the network interfaces of hosts, the addresses by
/// which others may reach them, and which of these do, as the probe has found; and which of them
/// the ranks of a job use: from what each host has and what reaches what, or as the user names
/// them. Names may differ between hosts. Bridges of containers and of virtual machines (docker0,
/// virbr0) drop out by themselves: their addresses exist on several hosts, and do not reach the
/// others.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

namespace hora::launch {

enum class Family : std::uint8_t { ipv4, ipv6 };

/// Without a scope: addresses of one link alone (IPv6's fe80::/10) are of no use to other hosts.
struct IpAddress {
  Family family = Family::ipv4;
  std::array<std::uint8_t, 16> bytes{};  ///< network order; of IPv4 the first 4

  int bits() const { return family == Family::ipv4 ? 32 : 128; }
  int system_family() const { return family == Family::ipv4 ? AF_INET : AF_INET6; }
  bool is_loopback() const;
  bool is_link_local() const;
  bool is_unspecified() const;  ///< 0.0.0.0 or ::
  auto operator<=>(const IpAddress&) const = default;
};

/// "10.77.0.1", "fd00::1".
std::string to_string(const IpAddress& address);
/// Reads exactly such a text; without port, brackets or scope.
std::optional<IpAddress> parse_address(const std::string& text);

/// A place to connect to.
struct Endpoint {
  IpAddress address;
  std::uint16_t port = 0;

  bool operator==(const Endpoint&) const = default;
};
/// "10.77.0.1:29500", "[fd00::1]:29500".
std::string to_string(const Endpoint& endpoint);

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
/// Reads "ADDRESS/BITS"; bits after the prefix need not be 0.
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

struct InterfaceAddress {
  IpAddress address;
  int prefix = 0;  ///< bits of its subnet

  bool operator==(const InterfaceAddress&) const = default;
};

struct Interface {
  std::string name;
  bool up = false;
  bool running = false;  ///< has a carrier
  bool loopback = false;
  bool hardware = false;  ///< a device, not a bridge, tunnel or pair made by software
  int mtu = 0;            ///< bytes
  int speed = 0;          ///< Mbit/s, 0 where unknown
  std::vector<InterfaceAddress> addresses;

  bool usable() const { return up && running && !addresses.empty(); }
  bool operator==(const Interface&) const = default;
};

/// Everything that the choice of interfaces knows of one host.
struct HostNetwork {
  std::string host;
  /// Equal where two hosts of the job share one network stack: one machine under two names.
  std::string stack;
  std::vector<Interface> interfaces;

  bool operator==(const HostNetwork&) const = default;
};

/// This host's interfaces, in the kernel's order. Throws Error(transport) where the system does not
/// give them. Takes below 10 ms.
std::vector<Interface> this_host_interfaces();

/// Names this operating system's start and this thread's network namespace.
std::string this_network_stack();

/// "eth0 (10.77.0.1/24), docker0 (172.17.0.1/16, down), ib0 (no address)"; "none". Without
/// IPv6's addresses of one link.
std::string describe(std::span<const Interface> interfaces);

/// An address by which other hosts may reach this one.
struct Candidate {
  std::size_t interface = 0;  ///< index into HostNetwork::interfaces
  IpAddress address;
  int prefix = 0;

  bool operator==(const Candidate&) const = default;
};

/// The candidates of a host: the addresses of its interfaces that are up, without loopback and
/// without IPv6's addresses of one link. Their order is that of the interfaces.
std::vector<Candidate> candidates_of(const HostNetwork& host);

/// The hosts that `host` tries to reach: all others where there are few, else those a power of two
/// away, round the circle. The relation is symmetric, and joins all hosts.
std::vector<std::size_t> probe_partners(std::size_t host, std::size_t hosts);

/// Hosts and candidates by their indices.
class Reachability {
 public:
  /// From `candidate` of `host` a question went to `peer_candidate` of `peer`, and its answer came.
  void add(std::size_t host, std::size_t candidate, std::size_t peer, std::size_t peer_candidate) {
    pairs_.insert({host, candidate, peer, peer_candidate});
  }
  /// Whether that holds for questions of both.
  bool mutual(std::size_t host, std::size_t candidate, std::size_t peer,
              std::size_t peer_candidate) const {
    return pairs_.contains({host, candidate, peer, peer_candidate}) &&
           pairs_.contains({peer, peer_candidate, host, candidate});
  }
  bool empty() const { return pairs_.empty(); }

 private:
  std::set<std::array<std::size_t, 4>> pairs_;
};

struct NetworkChoice {
  std::vector<std::vector<std::string>> interfaces;  ///< by host: the names of its interfaces
  std::vector<IpAddress> addresses;                  ///< by host: the one that peers use first
  /// "10.77.0.0/24": what Open MPI takes where names differ. They contain the chosen addresses of
  /// every host, and none of an interface that is not chosen.
  std::vector<std::string> subnets;
  std::string line;                    ///< "network: 10.77.0.0/24 (a: eth0, b: ens3)"
  std::optional<std::string> warning;  ///< where the choice may be wrong, and what to do

  bool operator==(const NetworkChoice&) const = default;
};

/// "a and b, c and d"; of more than `shown` the first ones, and their number.
std::string pairs_text(std::vector<std::string> pairs, std::size_t shown);

/// Whether all share one network stack.
bool are_one_machine(std::span<const HostNetwork> hosts);

/// Chooses addresses, one for each host, that reach each other in both directions: those of the
/// fastest interfaces; among equals hardware before software, then one subnet before several, the
/// larger MTU, IPv4 before IPv6, and the order of the first host. Loopback where all hosts are one
/// machine. Where nothing joins all hosts: every address that no two hosts share, and a warning.
/// `hosts` is not empty.
NetworkChoice choose_network(std::span<const HostNetwork> hosts, const Reachability& reachability);

/// The choice that uses these candidates, by host: its names, subnets and line. None of them is
/// empty.
NetworkChoice make_choice(std::span<const HostNetwork> hosts,
                          std::span<const std::vector<Candidate>> used);

/// `named`: the user's --network-interfaces, "eth0", "ens3", or subnets, "10.77.0.0/24". Each host
/// uses those of its interfaces that are named. An error where a host has none of them
/// that is up and has an address, or where no host has what is named; it names the host and its
/// interfaces. `hosts` and `named` are not empty. Pure: known as soon as the hosts have told their
/// interfaces.
tl::expected<NetworkChoice, std::string> choose_named(std::span<const HostNetwork> hosts,
                                                      std::span<const std::string> named);

}  // namespace hora::launch
