/// Starts a program as a child of this process; and what another program prints, for programs that
/// answer at once.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/control/event_loop.h"

namespace hora::launch {

struct ChildOptions {
  std::vector<std::string> arguments;         ///< the program first: a path, or found in PATH
  std::vector<std::string> environment = {};  ///< NAME=VALUE, added to this process's own
  std::string folder = {};                    ///< empty: this process's
  int input = -1;                             ///< its standard input; -1: empty
  int output = -1;                            ///< its standard output; -1: this process's
  int error = -1;                             ///< its standard error; -1: this process's
  bool own_group = true;                      ///< leads a process group of its own
  bool own_session = false;                   ///< leads a session, out of reach of the terminal
  bool dies_with_parent = false;              ///< SIGKILL when the thread that started it ends
};

/// Its process number. An error says what failed, and on what ("./train: Permission denied").
/// Signals that this process blocks or ignores are as by default in the child.
tl::expected<pid_t, std::string> start_child(const ChildOptions& options);

/// As a shell has it: the exit status, or 128 and the signal. `wait_status` is waitpid()'s, of a
/// process that has ended.
int shell_status(int wait_status) noexcept;

/// A pipe, closed on exec: what is written to the second comes out of the first.
/// Throws std::system_error.
struct Pipe {
  UniqueFd read, write;
};
Pipe make_pipe();

struct CapturedOutput {
  std::string text;  ///< of stdout and stderr; what exceeds `kMostCaptured` bytes is left out
  int status = 0;    ///< exit status; 128 + signal where a signal ended it
};
inline constexpr std::size_t kMostCaptured = std::size_t{64} << 10;

/// Runs arguments[0] (a path) without input and waits for its end; kills it, and what it has
/// started in its process group, after `limit`. The error says why there is no output.
/// Throws std::system_error where this process has no descriptors left. Any thread.
tl::expected<CapturedOutput, std::string> captured_output(const std::vector<std::string>& arguments,
                                                          std::chrono::milliseconds limit);

}  // namespace hora::launch
