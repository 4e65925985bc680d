/// What the kernel says of another process of this host: running, stopped, gone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace hora::internal {

enum class ProcessState : std::uint8_t {
  running,   ///< on a core, or ready for one
  sleeping,  ///< waits for something: a lock, a file, input, another process
  blocked,   ///< waits inside the kernel, where no signal reaches it: a disk, a network file system
  stopped,   ///< by SIGSTOP, or by ^Z on its terminal
  traced,    ///< stopped by a debugger
  gone,      ///< ended, whether its parent has taken note or not
  unknown,
};

/// /proc/PID/stat (proc(5)); the state is that of the process's first thread.
struct ProcessStat {
  std::int64_t pid = 0;
  std::int64_t parent = 0;
  ProcessState state = ProcessState::unknown;
  std::string name = {};
};

/// Of that file's contents; none where they are not such.
std::optional<ProcessStat> parse_process_stat(std::string_view text);

/// Of a process in this pid namespace; none where there is no such process, or it cannot be read.
/// Reads one small file.
std::optional<ProcessStat> process_stat(std::int64_t pid);

/// The same, and `gone` where there is no such process.
ProcessState process_state(std::int64_t pid);

}  // namespace hora::internal
