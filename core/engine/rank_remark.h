/// What is said of a rank of this node that others wait for.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/process.h"
#include "core/base/text.h"
#include "core/control_block/rank_status.h"

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

/// " is stopped (SIGSTOP)", " has ended" and the like; empty where the state says nothing of the
/// kind. Pure.
std::string_view state_text(ProcessState state);

/// "REMARK; REMARK; and 3 more ranks". Pure.
std::string remarks_text(std::span<const std::string> remarks);

/// A rank that waits in a call of its own for others.
struct CallWait {
  ProcessIdentity process;
  std::string_view call;  ///< "shutdown()"
  std::chrono::nanoseconds waited;
  bool is_hearsay = false;  ///< of other nodes, too, of which this one knows what it was told
  std::vector<std::string> remarks;  ///< on ranks that have not called it
};
/// "rank 0 (host a, pid 1) has waited 10.0 s in shutdown() for ranks that have not called it:
/// REMARK; REMARK. Is one of them slow, stopped or gone?" Pure.
std::string waiting_text(const CallWait& wait);

}  // namespace hora::internal
