/// The owner of a file descriptor; a loop that waits for descriptors, signals and times, and calls
/// what is registered for them; and programs that are started as children of this process.
/// Thread rule: one thread.
#pragma once

#include <poll.h>
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

namespace hora::launch {

class UniqueFd {
 public:
  UniqueFd() noexcept = default;
  explicit UniqueFd(int descriptor) noexcept : descriptor_(descriptor) {}
  UniqueFd(UniqueFd&& other) noexcept : descriptor_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const noexcept { return descriptor_; }
  explicit operator bool() const noexcept { return descriptor_ >= 0; }
  int release() noexcept { return std::exchange(descriptor_, -1); }
  void reset(int descriptor = -1) noexcept {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = descriptor;
  }

 private:
  int descriptor_ = -1;
};

using Clock = std::chrono::steady_clock;

/// Nanoseconds since 1970, to compare with those of other hosts.
std::int64_t wall_clock_ns() noexcept;

class EventLoop {
 public:
  /// In place of what was watched for. `on_event` gets poll()'s events. It may add and remove
  /// descriptors, this one included.
  void watch(int descriptor, short events, std::function<void(short)> on_event);
  void forget(int descriptor);

  /// Called at least this often, and after each turn.
  void each(std::chrono::milliseconds interval, std::function<void()> on_time);

  /// Until stop(), which may come before it: then at once.
  void run();
  void stop() noexcept { stopping_ = true; }

 private:
  struct Watch {
    short events;
    std::function<void(short)> on_event;
    std::uint64_t turn;  ///< in which it was added
  };
  void turn();

  std::map<int, Watch> watches_;
  std::uint64_t turns_ = 0;
  std::chrono::milliseconds interval_{1000};
  std::function<void()> on_time_;
  bool stopping_ = false;
};

/// Signals as a descriptor: those given are blocked for this process from now on, and read from it
/// (struct signalfd_siginfo). Throws std::system_error.
UniqueFd signals_as_descriptor(std::initializer_list<int> signals);

/// A descriptor that becomes readable when the process ends; empty where there is none such.
UniqueFd open_process(pid_t process);

struct ChildOptions {
  std::vector<std::string> arguments;         ///< the program first: a path, or found in PATH
  std::vector<std::string> environment = {};  ///< NAME=VALUE, added to this process's own
  std::string folder = {};                    ///< empty: this process's
  int input = -1;                             ///< its standard input; -1: empty
  int output = -1;                            ///< its standard output; -1: this process's
  int error = -1;                             ///< its standard error; -1: this process's
  bool own_session =
      false;  ///< leads a session, out of reach of the terminal, else a process group
  bool dies_with_parent = false;  ///< SIGKILL when the thread that started it ends
};

/// Its process number. An error says what failed, and on what ("./train: Permission denied").
/// Signals that this process blocks or ignores are as by default in the child.
tl::expected<pid_t, std::string> start_child(const ChildOptions& options);

/// As a shell has it: the exit status, or 128 and the signal. `wait_status` is waitpid()'s, of a
/// process that has ended.
int shell_status(int wait_status) noexcept;

/// "signal 9 (SIGKILL)".
std::string signal_text(int number);
/// Describes a status as waitpid() gives it: "ended with exit status 3".
std::string status_text(int status);

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
