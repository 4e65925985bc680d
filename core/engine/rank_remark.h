/// What is said of a rank of this node that others wait for.
#pragma once

#include <optional>
#include <string>

#include "core/control_block/rank_status.h"
#include "core/process.h"
#include "core/process_state.h"

namespace hora::internal {

/// As far as this rank can see it.
struct RankFacts {
  ProcessIdentity process;  ///< without a pid: the rank alone is known
  ProcessState state = ProcessState::unknown;
  std::optional<SharedNote::Note> submitted = std::nullopt;
  std::optional<SharedNote::Note> waits_for = std::nullopt;
};

/// "rank 3 (host b, pid 4711) is stopped (SIGSTOP), and has last submitted tensor "f", 12.0 s ago".
/// Tells apart a rank that is stopped, gone, in its own code, and in hora. Pure.
std::string rank_state_text(const RankFacts& facts, std::chrono::nanoseconds now);

/// "12.3 s". Pure.
std::string seconds_text(std::chrono::nanoseconds length);

}  // namespace hora::internal
