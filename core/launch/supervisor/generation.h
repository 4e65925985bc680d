/// Decides on which hosts, with which ranks, an elastic job goes on after a generation has ended.
/// Thread rule: pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/launch/options/options.h"

namespace hora::launch {

/// Since any fixed time.
using Moment = std::chrono::milliseconds;

/// One mpirun job over hosts that stay the same.
struct Generation {
  int number = 1;  ///< from 1
  std::vector<HostRanks> hosts = {};
};

/// The hosts or the rank by which a generation has ended.
struct Loss {
  std::string text = {};
  std::vector<std::string> hosts = {};
  int rank = -1;           ///< that has failed by itself; -1: none
  std::int64_t step = -1;  ///< from which the training can go on; -1: none is known
  /// As `step`; where the generation has not gone on yet, that of the one before if it is more.
  std::int64_t reached = -1;
};

struct GenerationEnd {
  Generation generation;
  Moment time{0};
  Loss loss;
};

/// Too few hosts: ask again when others appear, at `until` at the latest.
struct WaitForHosts {
  Moment until{0};
  std::string text;
};
/// The job ends, with this text.
struct GiveUp {
  std::string text;
};

/// `hosts`: those there are now, each once. `ended`: all generations so far, the oldest first;
/// empty: `now` is the job's start. Hosts of the last generation keep their order, others follow in
/// theirs.
std::variant<Generation, WaitForHosts, GiveUp> next_generation(Moment now,
                                                               std::span<const HostSlots> hosts,
                                                               std::span<const GenerationEnd> ended,
                                                               const ElasticOptions& options);

/// Why `running`, which has begun at `begun`, is to give way to another: a host of it is there no
/// more, or hosts are enough for more ranks, and it has run for the shortest pause. Hosts that were
/// lost are tried with the next generation, and are no reason for one. Empty: it is not; never
/// where no other could begin.
std::string reason_to_give_way(const Generation& running, Moment begun, Moment now,
                               std::span<const HostSlots> hosts,
                               std::span<const GenerationEnd> ended, const ElasticOptions& options);

}  // namespace hora::launch
