/// Runs the probes of several hosts in one thread until all are done.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "core/launch/network/probe.h"

namespace hora::launch::test {

/// What the launcher tells `host` of the endpoints of all.
inline std::vector<ProbePeer> peers_of(std::size_t host,
                                       const std::vector<std::vector<ProbeEndpoint>>& endpoints) {
  std::vector<ProbePeer> peers;
  for (const std::size_t peer : probe_partners(host, endpoints.size())) {
    peers.push_back({peer, endpoints[peer]});
  }
  return peers;
}

/// One turn of an event loop, of 20 ms at most.
inline void turn(const std::vector<std::unique_ptr<Probe>>& probes) {
  std::vector<pollfd> descriptors;
  std::vector<Probe*> owners;
  for (const auto& probe : probes) {
    for (const int descriptor : probe->fds()) {
      descriptors.push_back({descriptor, POLLIN, 0});
      owners.push_back(probe.get());
    }
  }
  ::poll(descriptors.data(), descriptors.size(), 20);
  const auto now = Probe::Clock::now();
  for (std::size_t i = 0; i < descriptors.size(); ++i) {
    if (descriptors[i].revents != 0) owners[i]->on_readable(descriptors[i].fd, now);
  }
  for (const auto& probe : probes) {
    if (probe->next_timer() && now >= *probe->next_timer()) probe->on_timer(now);
  }
}

/// The results, by host.
inline std::vector<std::vector<ProbePair>> run(const std::vector<std::unique_ptr<Probe>>& probes) {
  std::vector<std::vector<ProbeEndpoint>> endpoints;
  for (const auto& probe : probes) endpoints.push_back(probe->endpoints());
  for (std::size_t i = 0; i < probes.size(); ++i) {
    probes[i]->start(peers_of(i, endpoints), Probe::Clock::now());
  }
  const auto end = Probe::Clock::now() + std::chrono::seconds(20);
  while (!std::ranges::all_of(probes, [](const auto& probe) { return probe->done(); })) {
    if (Probe::Clock::now() > end) {
      ADD_FAILURE() << "the probes did not end";
      break;
    }
    turn(probes);
  }
  std::vector<std::vector<ProbePair>> results;
  for (const auto& probe : probes) results.push_back(probe->result());
  return results;
}

}  // namespace hora::launch::test
