#include "core/launch/network/reachability.h"

namespace hora::launch {
namespace {

constexpr std::size_t kFewHosts = 16;

}  // namespace

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
