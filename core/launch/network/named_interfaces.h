/// Interfaces that the user names by --network-interfaces: "eth0", "ens3", or subnets,
/// "10.77.0.0/24".
#pragma once

#include <span>
#include <string>
#include <tl/expected.hpp>

#include "core/launch/network/choice.h"

namespace hora::launch {

/// Each host uses those of its interfaces that are named. An error where a host has none of them
/// that is up and has an address, or where no host has what is named; it names the host and its
/// interfaces. `hosts` and `named` are not empty. Pure: known as soon as the hosts have told their
/// interfaces.
tl::expected<NetworkChoice, std::string> choose_named(std::span<const HostNetwork> hosts,
                                                      std::span<const std::string> named);

}  // namespace hora::launch
