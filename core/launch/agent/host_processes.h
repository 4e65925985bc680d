/// The processes of a job on an agent's host: what the agent has started for the launcher, the
/// ranks, as their guards have reported them, and all that descends from it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/process.h"
#include "core/launch/control/event_loop.h"
#include "core/launch/control/messages.h"
#include "core/launch/control/unique_fd.h"

namespace hora::launch {

/// What the agent has started for the launcher: mpirun, MPI's daemons. Passes on what the processes
/// print, and says how they ended. Thread rule: one thread, that of
/// the loop.
class StartedProcesses {
 public:
  /// `send` takes messages for the launcher. The loop outlives it.
  StartedProcesses(EventLoop& loop, std::function<void(const Message&)> send);
  ~StartedProcesses();
  StartedProcesses(const StartedProcesses&) = delete;
  StartedProcesses& operator=(const StartedProcesses&) = delete;

  /// `variables` ("NAME=VALUE") are added to the request's. Where the process cannot be started,
  /// that is its output, and its exit status 127.
  void start(const Start& request, const std::vector<std::string>& variables);

  bool has(pid_t process) const { return processes_.contains(process); }
  /// Of one of them; `status` as waitpid() says it.
  void on_ended(pid_t process, int status);

 private:
  struct Process {
    std::uint32_t number = 0;  ///< the launcher's
    UniqueFd output, error;
  };
  void refuse(std::uint32_t number, const std::string& reason);
  void on_output(pid_t process, bool error);
  ssize_t pass_on(const Process& process, bool error);

  EventLoop& loop_;
  std::function<void(const Message&)> send_;
  std::map<pid_t, Process> processes_;
};

/// The ranks, as their guards have reported them. Thread rule: one thread, that of the loop.
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
  /// SIGKILL to all, by their guards, which then report and record how they have ended.
  void kill() const;

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

using internal::ProcessStat;

/// All descendants, as /proc has them, parents before their children; without those that have
/// ended. Any thread; what is read may be out of date at once.
std::vector<ProcessStat> descendants_of(pid_t ancestor);
/// The same, of a list of processes. Pure.
std::vector<ProcessStat> descendants_of(pid_t ancestor, const std::vector<ProcessStat>& all);

/// SIGKILL to all descendants of this process, as often as it takes until none is left, for this
/// long at most. How its children ended is lost. Where a process ends meanwhile, its own children
/// are found only by a child subreaper (prctl(2)).
void kill_descendants(std::chrono::milliseconds limit) noexcept;

}  // namespace hora::launch
