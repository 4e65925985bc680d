#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "core/launch/control/child_process.h"
#include "core/launch/control/event_loop.h"
#include "core/launch/guard/guard.h"

namespace hora::launch {
namespace {

constexpr int kLongestPoll = 1000;  // ms, where a process cannot be watched

volatile sig_atomic_t guard_process = 0, mpi_process = 0;

void pass_on(int number, siginfo_t* info, void*) {
  const sigval value{.sival_int = info->si_pid == mpi_process ? kSentByMpi : 0};
  if (::sigqueue(guard_process, number, value) != 0) ::kill(guard_process, number);
}

[[noreturn]] void stand_in_for(pid_t guard) {
  ::prctl(PR_SET_NAME, kStandInName);
  // hydra takes the end of the connection for the end of the rank.
  ::close_range(STDERR_FILENO + 1, ~0U, 0);
  const UniqueFd parent = open_process(::getppid()), child = open_process(guard);
  guard_process = guard;
  mpi_process = ::getppid();
  struct sigaction action {};
  action.sa_sigaction = pass_on;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    ::sigaction(number, &action, nullptr);
  }
  while (true) {
    int status = 0;
    if (::waitpid(guard, &status, WNOHANG) == guard) ::_exit(shell_status(status));
    std::array<pollfd, 2> entries{pollfd{child.get(), POLLIN, 0}, pollfd{parent.get(), POLLIN, 0}};
    ::poll(entries.data(), entries.size(), kLongestPoll);
    // The guard ends its rank when this process ends.
    if (entries[0].revents == 0 && entries[1].revents != 0) ::_exit(128 + SIGKILL);
  }
}

}  // namespace

void leave_stand_in() {
  const pid_t guard = ::fork();
  if (guard > 0) stand_in_for(guard);
  if (guard == 0) ::setpgid(0, 0);
}

}  // namespace hora::launch
