/// The network interfaces of hosts, the addresses by which others may reach them, and which of
/// these do, as the probe has found.
#pragma once

#include <array>
#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/launch/network/address.h"

namespace hora::launch {

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

/// What the choice of interfaces knows of one host.
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

}  // namespace hora::launch
