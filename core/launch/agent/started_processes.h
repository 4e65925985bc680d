/// What an agent has started for the launcher: mpirun, MPI's daemons.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/launch/control/event_loop.h"
#include "core/launch/control/messages.h"
#include "core/launch/control/unique_fd.h"

namespace hora::launch {

/// Passes on what the processes print, and says how they ended. Thread rule: one thread, that of
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

}  // namespace hora::launch
