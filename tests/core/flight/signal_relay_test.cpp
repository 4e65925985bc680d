// In processes of their own: handlers and signals are the process's.
#include "core/flight/signal_relay.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <optional>

namespace hora::internal {
namespace {

volatile sig_atomic_t handled = 0;
volatile sig_atomic_t sender = 0;

void count(int) {
  handled = handled + 1;
}
void count_with_sender(int, siginfo_t* info, void*) {
  handled = handled + 1;
  sender = info->si_pid;
}

void install(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  ::sigaction(signal, &action, nullptr);
}

void (*handler_of(int signal))(int) {
  struct sigaction action {};
  ::sigaction(signal, nullptr, &action);
  return action.sa_handler;
}

/// The exit status of a process that runs `body`.
int status_of(const std::function<int()>& body) {
  const pid_t process = ::fork();
  if (process == 0) ::_exit(body());
  int status = -1;
  ::waitpid(process, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/// A guard that counts the signals which it gets, and then ends with their number. Upon SIGHUP it
/// sends one itself.
pid_t start_guard() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  sigaddset(&signals, SIGUSR2);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGHUP);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  const pid_t guard = ::fork();
  if (guard == 0) {
    int count_of = 0;
    for (int signal = 0; ::sigwait(&signals, &signal) == 0 && signal != SIGTERM;) {
      if (signal == SIGHUP) {
        ::kill(::getppid(), SIGUSR1);
      } else {
        ++count_of;
      }
    }
    ::_exit(count_of);
  }
  ::sigprocmask(SIG_UNBLOCK, &signals, nullptr);
  return guard;
}

int end_guard(pid_t guard) {
  int status = 0;
  ::kill(guard, SIGTERM);
  ::waitpid(guard, &status, 0);
  return WEXITSTATUS(status);
}

TEST(SignalRelay, PassesOnWhatComesFromElsewhereAndThenCallsTheProgram) {
  EXPECT_EQ(status_of([] {
              const pid_t guard = start_guard();
              install(SIGUSR1, count);
              struct sigaction action {};
              action.sa_sigaction = count_with_sender;
              action.sa_flags = SA_SIGINFO;
              ::sigaction(SIGUSR2, &action, nullptr);
              const SignalRelay relay(guard);
              errno = 99;
              ::raise(SIGUSR1);
              if (handled != 1 || errno != 99) return 100;
              ::kill(::getpid(), SIGUSR2);
              if (handled != 2 || sender != ::getpid()) return 101;
              return end_guard(guard);
            }),
            2);
}

TEST(SignalRelay, DoesNotPassOnWhatComesFromTheGuard) {
  EXPECT_EQ(status_of([] {
              install(SIGUSR1, count);
              const pid_t guard = start_guard();
              const SignalRelay relay(guard);
              ::kill(guard, SIGHUP);
              for (int i = 0; i < 5000 && handled == 0; ++i) ::usleep(1000);
              return handled == 1 ? end_guard(guard) : 100;
            }),
            0);
}

TEST(SignalRelay, LeavesSignalsAloneThatTheProgramDoesNotHandle) {
  EXPECT_EQ(status_of([] {
              const pid_t guard = start_guard();
              install(SIGUSR1, SIG_IGN);
              {
                const SignalRelay relay(guard);
                if (handler_of(SIGUSR1) != SIG_IGN || handler_of(SIGUSR2) != SIG_DFL) return 100;
                ::raise(SIGUSR1);
              }
              return end_guard(guard);
            }),
            0);
}

TEST(SignalRelay, PutsTheProgramsHandlersBack) {
  EXPECT_EQ(status_of([] {
              const pid_t guard = start_guard();
              install(SIGUSR1, count);
              install(SIGUSR2, count);
              {
                const SignalRelay relay(guard);
                if (handler_of(SIGUSR1) == count) return 100;
                install(SIGUSR2, SIG_IGN);
              }
              if (handler_of(SIGUSR1) != count || handler_of(SIGUSR2) != SIG_IGN) return 101;
              ::raise(SIGUSR1);
              if (handled != 1) return 102;
              return end_guard(guard);
            }),
            0);
}

}  // namespace
}  // namespace hora::internal
