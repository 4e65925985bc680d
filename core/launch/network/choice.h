/// Which interfaces the ranks of a job use: from what each host has and what reaches what, or as
/// the user names them. Names may differ between hosts. Bridges of containers and of virtual
/// machines (docker0, virbr0) drop out by themselves: their addresses exist on several hosts, and
/// do not reach the others.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/network/interfaces.h"

namespace hora::launch {

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
