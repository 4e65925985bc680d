/// The ranks that run on an agent's host, as their guards have reported them.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <optional>

#include "core/launch/control/event_loop.h"
#include "core/launch/control/messages.h"
#include "core/launch/control/unique_fd.h"

namespace hora::launch {

/// Thread rule: one thread, that of the loop.
class RunningRanks {
 public:
  /// `on_guard_ended` is called when the process of a rank's guard has ended. The loop outlives it.
  RunningRanks(EventLoop& loop, std::function<void(int rank)> on_guard_ended);
  ~RunningRanks();
  RunningRanks(const RunningRanks&) = delete;
  RunningRanks& operator=(const RunningRanks&) = delete;

  void add(const RankStarted& started);
  /// It has ended, as its guard has said.
  void remove(int rank);
  /// Its guard has ended without having said that: the rank is killed. None where it is not here.
  std::optional<RankEnded> kill_unguarded(int rank);

  bool empty() const { return ranks_.empty(); }
  bool has(pid_t process) const;
  /// Through the guards. `except`: a rank that does not get it.
  void signal(int number, int except) const;
  /// Lets ranks that are stopped go on.
  void resume() const;

 private:
  struct Rank {
    pid_t process = 0;
    pid_t guard_process = 0;
    UniqueFd guard = {};
    Clock::time_point started = Clock::now();
  };

  EventLoop& loop_;
  std::function<void(int)> on_guard_ended_;
  std::map<int, Rank> ranks_;
};

}  // namespace hora::launch
