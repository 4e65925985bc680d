/// What a host is made ready with for a job, before anything of it is started there: whether it has
/// what the job needs, and folders in which everything lies that MPI puts on its disk and shared
/// memory, so that it can be removed as a whole, however the job ended.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/launch/control/messages.h"

namespace hora::launch {

/// Whether the folder and the program are there and the program can be executed, the temporary
/// folder has room, and there is a PATH; each problem says what was tried and what to do. And what
/// the host has: whether that is enough is for the launcher to say (supervisor/prepared_hosts.h).
Prepared prepare(const Prepare& request);

/// This process's host.
Hello this_host();

/// The folders of MPI's files, for one job.
class SessionFolders {
 public:
  /// Makes both, for this user alone (mode 0700): in TMPDIR or /tmp, and in /dev/shm. Throws
  /// std::runtime_error.
  SessionFolders();
  ~SessionFolders();
  SessionFolders(const SessionFolders&) = delete;
  SessionFolders& operator=(const SessionFolders&) = delete;

  /// What makes mpirun and its daemons use them ("NAME=VALUE"): TMPDIR. Not their own variables
  /// (OMPI_MCA_...), which mpirun passes on to other hosts, whose folders have other names.
  std::vector<std::string> environment() const;
  const std::vector<std::string>& paths() const noexcept { return paths_; }

 private:
  std::vector<std::string> paths_;  ///< of temporary files, of shared memory
};

/// What makes a rank's MPI use them, and the rank TMPDIR as the agent's own; of an agent's
/// descendant.
std::vector<std::string> rank_environment_of_session();

/// The variable by which an agent's descendants know the folders, with ':' between them.
inline constexpr char kFoldersVariable[] = "HORARUN_FOLDERS";

/// Starts a process that removes the folders where this one is killed; it ends with this one
/// otherwise. Throws std::runtime_error.
void start_keeper(const SessionFolders& folders);
/// That process. `arguments`: the process number of the one that started it, the folders.
int run_keeper(std::span<const std::string> arguments);

/// Removes folders of SessionFolders with all that is in them; other paths are left alone.
void remove_session_folders(const std::vector<std::string>& paths) noexcept;
std::vector<std::string> session_folders_of_environment();

}  // namespace hora::launch
