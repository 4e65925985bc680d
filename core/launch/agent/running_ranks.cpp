#include "core/launch/agent/running_ranks.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <string>

namespace hora::launch {

RunningRanks::RunningRanks(EventLoop& loop, std::function<void(int rank)> on_guard_ended)
    : loop_(loop), on_guard_ended_(std::move(on_guard_ended)) {}

RunningRanks::~RunningRanks() {
  for (const auto& [number, rank] : ranks_) loop_.forget(rank.guard.get());
}

void RunningRanks::add(const RankStarted& started) {
  remove(started.rank);
  Rank& rank = ranks_[started.rank];
  rank.process = static_cast<pid_t>(started.pid);
  rank.guard_process = static_cast<pid_t>(started.guard);
  rank.guard = open_process(rank.guard_process);
  if (!rank.guard) return;
  loop_.watch(rank.guard.get(), POLLIN,
              [this, number = started.rank](short) { on_guard_ended_(number); });
}

void RunningRanks::remove(int rank) {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return;
  loop_.forget(found->second.guard.get());
  ranks_.erase(found);
}

std::optional<RankEnded> RunningRanks::kill_unguarded(int number) {
  const auto found = ranks_.find(number);
  if (found == ranks_.end()) return std::nullopt;
  const Rank& rank = found->second;
  ::kill(rank.process, SIGKILL);
  RankEnded ended;
  ended.rank = number;
  ended.pid = rank.process;
  ended.status = SIGKILL;
  ended.ended_ns = wall_clock_ns();
  ended.lived_ms = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - rank.started).count());
  ended.failure = "its guard (horarun --guard, pid " + std::to_string(rank.guard_process) +
                  " of its host) was killed";
  ended.guard_killed = true;
  remove(number);
  return ended;
}

bool RunningRanks::has(pid_t process) const {
  return std::ranges::any_of(ranks_,
                             [&](const auto& each) { return each.second.process == process; });
}

void RunningRanks::signal(int number, int except) const {
  for (const auto& [rank, process] : ranks_) {
    if (rank != except) ::kill(process.guard_process, number);
  }
}

void RunningRanks::resume() const {
  for (const auto& [number, rank] : ranks_) ::kill(rank.process, SIGCONT);
}

}  // namespace hora::launch
