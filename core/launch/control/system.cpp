#include "core/launch/control/system.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <hora/printable.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>

namespace hora::launch {
namespace {

void default_signals() {
  for (int number = 1; number < NSIG; ++number) {
    if (number != SIGKILL && number != SIGSTOP) ::signal(number, SIG_DFL);
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

/// A descriptor above the standard ones, so that none of them overwrites another.
int above_standard(int descriptor) {
  return descriptor > STDERR_FILENO ? descriptor : ::fcntl(descriptor, F_DUPFD_CLOEXEC, 3);
}

/// Where the child cannot become the program it tells the parent why, in words.
[[noreturn]] void become(const ChildOptions& options, char** arguments, int report, pid_t parent) {
  // The first of several of one name stays.
  for (auto each = options.environment.rbegin(); each != options.environment.rend(); ++each) {
    ::putenv(const_cast<char*>(each->c_str()));
  }
  const auto fail = [&](const std::string& step) {
    ::dprintf(report, "%s: %s", step.c_str(), std::strerror(errno));
    ::_exit(127);
  };
  default_signals();
  if (options.own_session) {
    ::setsid();
  } else {
    ::setpgid(0, 0);
  }
  if (options.dies_with_parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);  // has ended already
  }
  const int input =
      options.input >= 0 ? above_standard(options.input) : ::open("/dev/null", O_RDONLY);
  const int output = options.output >= 0 ? above_standard(options.output) : -1;
  const int error = options.error >= 0 ? above_standard(options.error) : -1;
  if (input < 0 || ::dup2(input, STDIN_FILENO) < 0 ||
      (output >= 0 && ::dup2(output, STDOUT_FILENO) < 0) ||
      (error >= 0 && ::dup2(error, STDERR_FILENO) < 0)) {
    fail("standard input and output");
  }
  if (!options.folder.empty() && ::chdir(options.folder.c_str()) != 0) {
    fail("the folder " + options.folder);
  }
  // execvp() would give a file of another format to a shell.
  const bool is_path = options.arguments.front().find('/') != std::string::npos;
  (is_path ? ::execv : ::execvp)(arguments[0], arguments);
  fail(options.arguments.front());
  ::_exit(127);
}

/// Until its end, or false where that comes too late.
bool read_all(int descriptor, Clock::time_point deadline, std::string& text) {
  std::array<char, 4096> buffer;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    pollfd readable{descriptor, POLLIN, 0};
    const int ready = ::poll(&readable, 1, static_cast<int>(std::min<long>(left.count(), 10000)));
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    const ssize_t count = ready < 0 ? ready : ::read(descriptor, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return true;
    const std::size_t room = kMostCaptured - text.size();
    text.append(buffer.data(), std::min(room, static_cast<std::size_t>(count)));
  }
}

}  // namespace

std::int64_t wall_clock_ns() noexcept {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

void EventLoop::watch(int descriptor, short events, std::function<void(short)> on_event) {
  watches_[descriptor] = {events, std::move(on_event), turns_};
}

void EventLoop::forget(int descriptor) {
  watches_.erase(descriptor);
}

void EventLoop::each(std::chrono::milliseconds interval, std::function<void()> on_time) {
  interval_ = interval;
  on_time_ = std::move(on_time);
}

void EventLoop::run() {
  while (!std::exchange(stopping_, false)) turn();
}

void EventLoop::turn() {
  ++turns_;
  std::vector<pollfd> polled;
  polled.reserve(watches_.size());
  for (const auto& [descriptor, watch] : watches_) polled.push_back({descriptor, watch.events, 0});
  const int ready = ::poll(polled.data(), polled.size(), static_cast<int>(interval_.count()));
  if (ready < 0 && errno != EINTR) {
    throw std::system_error(errno, std::generic_category(), "poll");
  }
  for (const pollfd& entry : polled) {
    if (ready <= 0 || entry.revents == 0) continue;
    // An earlier callback of this turn may have removed it, and opened another of its number.
    const auto found = watches_.find(entry.fd);
    if (found == watches_.end() || found->second.turn == turns_) continue;
    const auto on_event = found->second.on_event;
    on_event(entry.revents);
  }
  if (on_time_) on_time_();
}

UniqueFd signals_as_descriptor(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : signals) sigaddset(&set, number);
  if (::sigprocmask(SIG_BLOCK, &set, nullptr) != 0) {
    throw std::system_error(errno, std::generic_category(), "sigprocmask");
  }
  UniqueFd descriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!descriptor) throw std::system_error(errno, std::generic_category(), "signalfd");
  return descriptor;
}

UniqueFd open_process(pid_t process) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
}

tl::expected<pid_t, std::string> start_child(const ChildOptions& options) {
  std::vector<char*> arguments;
  for (const std::string& text : options.arguments) {
    arguments.push_back(const_cast<char*>(text.c_str()));
  }
  arguments.push_back(nullptr);
  Pipe report = make_pipe();
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return tl::unexpected("fork: " + std::string(std::strerror(errno)));
  if (child == 0) become(options, arguments.data(), report.write.get(), parent);
  report.write.reset();
  std::string failure;
  read_all(report.read.get(), Clock::time_point::max(), failure);
  if (failure.empty()) return child;
  ::waitpid(child, nullptr, 0);
  return tl::unexpected(failure);
}

int shell_status(int wait_status) noexcept {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

std::string signal_text(int number) {
  const char* name = ::sigabbrev_np(number);
  return fmt::format("signal {}{}", number, name == nullptr ? "" : fmt::format(" (SIG{})", name));
}

std::string status_text(int status) {
  if (WIFSIGNALED(status)) return "was killed by " + signal_text(WTERMSIG(status));
  constexpr int kTemporaryFailure = 75;  // sysexits.h
  const int number = WEXITSTATUS(status);
  return fmt::format("ended with exit status {}{}", number,
                     number == kTemporaryFailure ? " (EX_TEMPFAIL: it can be started again)" : "");
}

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw std::system_error(errno, std::generic_category(), "pipe");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

tl::expected<CapturedOutput, std::string> captured_output(const std::vector<std::string>& arguments,
                                                          std::chrono::milliseconds limit) {
  Pipe output = make_pipe();
  const auto child = start_child(
      {.arguments = arguments, .output = output.write.get(), .error = output.write.get()});
  if (!child) return tl::unexpected(child.error());
  output.write.reset();
  CapturedOutput captured;
  const bool ended = read_all(output.read.get(), Clock::now() + limit, captured.text);
  if (!ended) ::kill(-*child, SIGKILL);
  int status = 0;
  while (::waitpid(*child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!ended) {
    return tl::unexpected(fmt::format("{} cannot be run: it has not ended after {} ms",
                                      in_quotes(arguments.front()), limit.count()));
  }
  captured.status = shell_status(status);
  return captured;
}

}  // namespace hora::launch
