/// Hosts with interfaces, as values, and what reaches what among them.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/launch/network/network.h"

namespace hora::launch::test {

/// "eth0" with the address "10.77.0.1/24", up.
inline HostAddress interface(const std::string& name, const std::string& address, int speed = 0,
                             bool hardware = true) {
  HostAddress made;
  made.interface = name;
  made.up = true;
  made.loopback = name == "lo";
  made.hardware = hardware;
  made.mtu = 1500;
  made.speed = speed;
  const std::size_t slash = address.find('/');
  if (slash == std::string::npos) return made;
  const auto parsed = parse_address(address.substr(0, slash));
  EXPECT_TRUE(parsed) << address;
  made.address = parsed.value_or(IpAddress()).value;
  made.prefix = std::stoi(address.substr(slash + 1));
  return made;
}

inline HostAddress down(HostAddress made) {
  made.up = false;
  return made;
}

/// A machine of its own, with loopback.
inline HostNetwork host(const std::string& name, std::vector<HostAddress> addresses) {
  addresses.insert(addresses.begin(), interface("lo", "127.0.0.1/8", 0, false));
  return {name, "stack of " + name, std::move(addresses)};
}

inline HostAddress docker0() {
  return interface("docker0", "172.17.0.1/16", 10'000, false);
}

/// All pairs of candidates, except those of the interface `local`, which reaches none.
inline Reachability reachable(const std::vector<HostNetwork>& hosts, const std::string& local) {
  Reachability result;
  const auto reaches = [&](const HostAddress& each) {
    return each.is_candidate() && each.interface != local;
  };
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    for (const std::size_t j : probe_partners(i, hosts.size())) {
      for (std::size_t a = 0; a < hosts[i].addresses.size(); ++a) {
        for (std::size_t b = 0; b < hosts[j].addresses.size(); ++b) {
          const HostAddress &own = hosts[i].addresses[a], &other = hosts[j].addresses[b];
          if (reaches(own) && reaches(other)) result.insert({i, a, j, b});
        }
      }
    }
  }
  return result;
}

}  // namespace hora::launch::test
