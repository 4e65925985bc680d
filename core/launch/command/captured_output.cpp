#include "core/launch/command/captured_output.h"

#include <fcntl.h>
#include <hora/printable.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "core/launch/control/child_process.h"

namespace hora::launch {
namespace {

using Clock = std::chrono::steady_clock;

/// A child in a process group of its own, with `output` as stdout and stderr; 0 or an error of
/// spawn.
int spawn(const std::vector<std::string>& arguments, int output, pid_t& child) {
  std::vector<char*> words;
  for (const std::string& argument : arguments)
    words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  const int error =
      ::posix_spawn(&child, words.front(), &actions, &attributes, words.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

/// Until its end, or false where that comes too late.
bool read_all(int descriptor, Clock::time_point deadline, std::string& text) {
  std::array<char, 4096> buffer;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    pollfd readable{descriptor, POLLIN, 0};
    const int ready = ::poll(&readable, 1, static_cast<int>(left.count()));
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    const ssize_t count = ready < 0 ? ready : ::read(descriptor, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return true;
    const std::size_t room = kMostCaptured - text.size();
    text.append(buffer.data(), std::min(room, static_cast<std::size_t>(count)));
  }
}

}  // namespace

tl::expected<CapturedOutput, std::string> captured_output(const std::vector<std::string>& arguments,
                                                          std::chrono::milliseconds limit) {
  const auto failure = [&](const std::string& why) {
    return tl::unexpected(in_quotes(arguments.front()) + " cannot be run: " + why);
  };
  Pipe output = make_pipe();
  pid_t child = 0;
  if (const int error = spawn(arguments, output.write.get(), child); error != 0) {
    return failure(std::generic_category().message(error));
  }
  output.write.reset();
  CapturedOutput captured;
  const bool ended = read_all(output.read.get(), Clock::now() + limit, captured.text);
  if (!ended) ::kill(-child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!ended) {
    return failure("it has not ended after " + std::to_string(limit.count()) + " ms");
  }
  captured.status = shell_status(status);
  return captured;
}

}  // namespace hora::launch
