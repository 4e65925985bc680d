#include "core/engine/rank_remark.h"

#include <algorithm>

#include "core/base/text.h"

namespace hora::internal {
namespace {

constexpr std::size_t kRemarksShown = 8;

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

std::string_view state_text(ProcessState state) {
  switch (state) {
    case ProcessState::gone:
      return " has ended";
    case ProcessState::stopped:
      return " is stopped (SIGSTOP)";
    case ProcessState::traced:
      return " is stopped by a debugger";
    case ProcessState::blocked:
      return " is blocked inside the kernel (a disk, or a network file system)";
    case ProcessState::running:
    case ProcessState::sleeping:
    case ProcessState::unknown:
      break;
  }
  return {};
}

std::string remarks_text(std::span<const std::string> remarks) {
  std::string text;
  for (std::size_t i = 0; i < std::min(remarks.size(), kRemarksShown); ++i) {
    text += (i == 0 ? "" : "; ") + remarks[i];
  }
  if (remarks.size() <= kRemarksShown) return text;
  return text + "; and " + std::to_string(remarks.size() - kRemarksShown) + " more ranks";
}

std::string waiting_text(const CallWait& wait) {
  return to_string(wait.process) + " has waited " + seconds_text(wait.waited) + " in " +
         std::string(wait.call) + " for ranks that have not called it" +
         (wait.is_hearsay ? ", as far as this node knows: " : ": ") + remarks_text(wait.remarks) +
         ". Is one of them slow, stopped or gone?";
}

std::string rank_state_text(const RankFacts& facts, std::chrono::nanoseconds now) {
  std::string text = to_string(facts.process);
  const std::string_view state = state_text(facts.state);
  if (!state.empty()) {
    text += state;
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
