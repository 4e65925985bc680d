#include "core/engine/rank_remark.h"

#include <algorithm>

#include "core/tensor_text.h"

namespace hora::internal {
namespace {

/// Of a rank whose threads do not wait in hora.
std::string_view own_code_text(ProcessState state) {
  switch (state) {
    case ProcessState::running:
      return " runs its own code";
    case ProcessState::sleeping:
      return " is in its own code, asleep (it waits for a lock, a file, input or a process)";
    case ProcessState::blocked:
    case ProcessState::stopped:
    case ProcessState::traced:
    case ProcessState::gone:
    case ProcessState::unknown:
      break;
  }
  return " is in its own code";
}

}  // namespace

std::string seconds_text(std::chrono::nanoseconds length) {
  const auto tenths = std::max<std::int64_t>(length / std::chrono::milliseconds(100), 0);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

std::string rank_state_text(const RankFacts& facts, std::chrono::nanoseconds now) {
  std::string text = to_string(facts.process);
  if (facts.state == ProcessState::gone) {
    text += " has ended";
  } else if (facts.state == ProcessState::stopped) {
    text += " is stopped (SIGSTOP)";
  } else if (facts.state == ProcessState::traced) {
    text += " is stopped by a debugger";
  } else if (facts.state == ProcessState::blocked) {
    text += " is blocked inside the kernel (a disk, or a network file system)";
  } else if (facts.waits_for) {
    text += " waits in hora for " + tensor_text(facts.waits_for->text) + ", for " +
            seconds_text(now - facts.waits_for->time);
  } else {
    text += own_code_text(facts.state);
  }
  if (!facts.submitted) return text + ", and has submitted nothing yet";
  return text + ", and has last submitted " + tensor_text(facts.submitted->text) + ", " +
         seconds_text(now - facts.submitted->time) + " ago";
}

}  // namespace hora::internal
