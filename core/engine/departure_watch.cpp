#include "core/engine/departure_watch.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/process.h"
#include "core/engine/rank_remark.h"

namespace hora::internal {
namespace {

/// Between two looks at processes; of two that are further apart this process may itself have been
/// stopped between them.
constexpr Duration kLook = std::chrono::seconds(1);
constexpr Duration kLongestLook = std::chrono::seconds(2);
/// From horarun's limit to this one.
constexpr Duration kLauncherFirst = std::chrono::seconds(2);

}  // namespace

/// Zero: this rank does not wait in shutdown().
Duration DepartureWatch::since() const {
  const NodeControlBlock& node = *engine_.world.control_block;
  return Duration(node.status(node.local_rank()).departed.load());
}

bool DepartureWatch::is_of_node(int rank) const {
  return std::ranges::binary_search(stalls_.ranks_of_node(), rank);
}

/// Ascending.
std::vector<int> DepartureWatch::missing() const {
  std::set<int> called = departed_;
  const std::vector<int>& own = stalls_.ranks_of_node();
  for (std::size_t r = 0; r < own.size(); ++r) {
    const RankStatus& status = engine_.world.control_block->status(static_cast<int>(r));
    if (status.departed.load() != 0) called.insert(own[r]);
  }
  std::vector<int> ranks;
  for (const std::vector<int>& of_node : engine_.world.topology.ranks_of_node) {
    std::ranges::copy_if(of_node, std::back_inserter(ranks),
                         [&](int rank) { return !called.contains(rank); });
  }
  std::ranges::sort(ranks);
  return ranks;
}

bool DepartureWatch::is_to_speak_of(const std::vector<int>& missing) const {
  const auto is_own = [this](int rank) { return is_of_node(rank); };
  if (missing.empty() || std::ranges::any_of(missing, is_own)) return true;
  int lowest = 0;
  while (std::ranges::binary_search(missing, lowest)) ++lowest;
  return is_of_node(lowest);
}

std::optional<StallWatch::Stall> DepartureWatch::stall(Duration time) const {
  const Duration begin = since();
  const Duration waited = time - begin;
  if (begin.count() == 0 || waited < engine_.settings.stall_warning) return std::nullopt;
  std::vector<int> ranks = missing();
  if (!is_to_speak_of(ranks)) return std::nullopt;
  return StallWatch::Stall{
      waited, [this, waited, ranks = std::move(ranks)] { return text(ranks, waited); }};
}

std::string DepartureWatch::remark(int rank) const {
  if (is_of_node(rank)) return stalls_.state_of(engine_.world.topology.local_rank_of(rank));
  const ProcessIdentity process = stalls_.identity_of(rank);
  const ProcessState state = is_of_host(rank) ? process_state(process.pid) : ProcessState::unknown;
  return to_string(process) + std::string(state_text(state));
}

std::string DepartureWatch::text(const std::vector<int>& missing, Duration waited) const {
  const ProcessIdentity own = stalls_.identity_of(engine_.rank);
  if (missing.empty()) {
    return to_string(own) + " has waited " + seconds_text(waited) +
           " in shutdown(), which all ranks have called, for its last messages to leave: is a rank "
           "stopped, or the network between their hosts blocked?";
  }
  CallWait wait{.process = own, .call = "shutdown()", .waited = waited, .remarks = {}};
  for (const int rank : missing) {
    wait.is_hearsay |= !is_of_node(rank);
    wait.remarks.push_back(remark(rank));
  }
  return waiting_text(wait);
}

bool DepartureWatch::is_of_host(int rank) const {
  return stalls_.identity_of(rank).host == stalls_.identity_of(engine_.rank).host;
}

std::optional<Error> DepartureWatch::stopped_rank(Duration time) {
  const Duration limit = engine_.settings.timeout;
  if (limit.count() == 0 || since().count() == 0 || time - last_look_ < kLook) return std::nullopt;
  const Duration passed = last_look_.count() == 0 ? Duration() : time - last_look_;
  last_look_ = time;
  for (const ProcessIdentity& process : engine_.processes) {
    if (process.rank == engine_.rank || !is_of_host(process.rank)) continue;
    if (process_state(process.pid) != ProcessState::stopped) {
      stopped_for_.erase(process.rank);
      continue;
    }
    Duration& length = stopped_for_[process.rank];
    length += std::min(passed, kLongestLook);
    if (length < limit + kLauncherFirst) continue;
    return Error(ErrorCode::timeout,
                 to_string(process) + " is stopped (SIGSTOP), and has been for " +
                     seconds_text(length) +
                     " while other ranks wait for it in shutdown(), longer than HORA_TIMEOUT "
                     "allows: kill -CONT lets a stopped process go on",
                 process.rank);
  }
  return std::nullopt;
}

}  // namespace hora::internal
