/// What the kernel says of another process of this host: running, stopped, gone.
#pragma once

#include <cstdint>
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

/// From the contents of /proc/PID/stat (proc(5)): of the process's first thread.
ProcessState state_in(std::string_view stat);

/// Of a process in this pid namespace. Reads one small file.
ProcessState process_state(std::int64_t pid);

}  // namespace hora::internal
