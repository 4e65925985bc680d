/// Hosts with interfaces, as values, and what reaches what among them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/launch/network/network.h"

namespace hora::launch::test {

/// "eth0" with the address "10.77.0.1/24", up.
inline Interface interface(const std::string& name, const std::string& address, int speed = 0,
                           bool hardware = true) {
  Interface made;
  made.name = name;
  made.up = true;
  made.loopback = name == "lo";
  made.hardware = hardware;
  made.mtu = 1500;
  made.speed = speed;
  const std::size_t slash = address.find('/');
  if (slash != std::string::npos) {
    const auto parsed = parse_address(address.substr(0, slash));
    EXPECT_TRUE(parsed) << address;
    made.addresses.push_back({*parsed, std::stoi(address.substr(slash + 1))});
  }
  return made;
}

inline Interface down(Interface made) {
  made.up = false;
  return made;
}

/// A machine of its own, with loopback.
inline HostNetwork host(const std::string& name, std::vector<Interface> interfaces) {
  interfaces.insert(interfaces.begin(), interface("lo", "127.0.0.1/8", 0, false));
  return {name, "stack of " + name, std::move(interfaces)};
}

inline Interface docker0() {
  return interface("docker0", "172.17.0.1/16", 10'000, false);
}

/// All pairs of candidates, except those of the interfaces `local`, which reach none.
inline Reachability reachable(const std::vector<HostNetwork>& hosts,
                              const std::vector<std::string>& local) {
  Reachability result;
  const auto is_local = [&](const HostNetwork& of, const Candidate& candidate) {
    return std::ranges::find(local, of.interfaces[candidate.interface].name) != local.end();
  };
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const auto own = candidates_of(hosts[i]);
    for (const std::size_t j : probe_partners(i, hosts.size())) {
      const auto peers = candidates_of(hosts[j]);
      for (std::size_t a = 0; a < own.size(); ++a) {
        for (std::size_t b = 0; b < peers.size(); ++b) {
          if (is_local(hosts[i], own[a]) || is_local(hosts[j], peers[b])) continue;
          if (own[a].address.is_ipv4() == peers[b].address.is_ipv4()) result.insert({i, a, j, b});
        }
      }
    }
  }
  return result;
}

}  // namespace hora::launch::test
