/// A single leader, for tests of how it reacts to single events.
#pragma once

#include <string>
#include <vector>

#include "core/negotiation/leader.h"

namespace hora::internal::test {

using namespace std::chrono_literals;

inline Signature shaped(std::int64_t extent) {
  Signature signature;
  signature.shape = {extent};
  return signature;
}

inline Mail report(const std::string& name, std::int64_t extent) {
  return {.kind = MailKind::report, .name = name, .signature = shaped(extent), .location = {}};
}

inline Up ready(Id id) {
  return {.ready = {id}};
}

/// One leader beside a control block of the ready bits of one id.
struct LeaderUnderTest {
  LeaderUnderTest(const Topology& topology, int node, ProcessSet set = kWorld,
                  Duration warning_interval = {})
      : leader(topology, node, 16,
               {.retire = [](Id, bool) { return true; },
                .last_run = [](Id) { return std::uint64_t{0}; },
                .ready_ranks = [this](Id) { return ready_ranks; }},
               set, warning_interval) {}

  /// Reports `name` by every local rank and child, and gives the id that the root assigns.
  Id assign(const std::string& name, int local_size, const std::vector<int>& children) {
    for (int r = 0; r < local_size; ++r) leader.on_mail(r, report(name, 8), 0s);
    for (const int child : children)
      leader.on_up(child, {.reports = {{name, {{shaped(8), {}}}}}}, 0s);
    return leader.take(0s).decisions.at(0).assigned.at(0).id;
  }

  LocalRanks ready_ranks;
  Leader leader;
};

inline const Topology two_nodes_of_two{{{0, 1}, {2, 3}}};

}  // namespace hora::internal::test
