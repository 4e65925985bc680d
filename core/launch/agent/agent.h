/// horarun's process on each host of a job: starts there what the launcher asks for (mpirun on the
/// first host, MPI's daemons on the others), passes on what guards report, and ends everything that
/// descends from it when the launcher says so, ends, or is not heard from.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "core/base/process.h"
#include "core/launch/control/channel.h"

namespace hora::launch {

/// Whether the folder and the program are there and the program can be executed, the temporary
/// folder has room, and there is a PATH; each problem says what was tried and what to do. And what
/// the host has: whether that is enough is for the launcher to say (supervisor/supervisor.h).
Prepared prepare(const Prepare& request);

/// This process's host.
Hello this_host();

/// The folders of all that MPI puts on a host's disk and shared memory, for one job.
class SessionFolders {
 public:
  /// Makes both, for this user alone (mode 0700): in TMPDIR or /tmp, and in /dev/shm. Throws
  /// std::runtime_error.
  SessionFolders();
  ~SessionFolders();
  SessionFolders(const SessionFolders&) = delete;
  SessionFolders& operator=(const SessionFolders&) = delete;

  /// Removes all that is in them, but what an elastic job's generations share.
  void clear() const;
  /// Makes the file that ranks of an elastic job look for, until clear().
  void ask_to_give_way() const;
  /// Makes mpirun and its daemons use them ("NAME=VALUE"): TMPDIR. Not their own variables
  /// (OMPI_MCA_...), which mpirun passes on to other hosts, whose folders have other names.
  std::vector<std::string> environment() const;
  const std::vector<std::string>& paths() const noexcept { return paths_; }

 private:
  std::vector<std::string> paths_;  ///< of temporary files, of shared memory
};

/// Makes a rank's MPI use them, and the rank TMPDIR as the agent's own. For an agent's descendant.
std::vector<std::string> rank_environment_of_session();

/// A process that removes the folders where the agent that has started it is killed; it ends with
/// that otherwise. `arguments`: the agent's process number, the folders.
int run_keeper(std::span<const std::string> arguments);

/// Removes folders of SessionFolders with all that is in them; other paths are left alone.
void remove_session_folders(const std::vector<std::string>& paths) noexcept;

struct AgentEnding {
  int status = 69;           ///< of the job, as the launcher has said it
  std::string cut_off = {};  ///< why the agent has ended everything by itself, where it has
};

/// Until everything has ended. Errors call the other side `name`.
AgentEnding run_agent(Connection launcher, const std::string& name = "the launcher");

using internal::ProcessStat;

/// All descendants, as /proc has them, parents before their children; without those that have
/// ended. Any thread; what is read may be out of date at once.
std::vector<ProcessStat> descendants_of(pid_t ancestor);

/// SIGKILL to all descendants of this process, as often as it takes until none is left, for this
/// long at most. How its children ended is lost. Where a process ends meanwhile, its own children
/// are found only by a child subreaper (prctl(2)).
void kill_descendants(std::chrono::milliseconds limit) noexcept;

}  // namespace hora::launch
