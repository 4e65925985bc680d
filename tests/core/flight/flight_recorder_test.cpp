// In processes of their own: handlers and signals are the process's.
#include "core/flight/flight_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/diagnostics.h"
#include "tests/support/expect_error.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_folder.h"

namespace hora::internal {
namespace {

using testing::HasSubstr;

TEST(FlightRecorder, LeavesTheFileToTheGuard) {
  const test::TemporaryFolder folder;
  const RecordMemory guard = RecordMemory::create().value();
  FlightRecorder recorder(guard.path().c_str());
  EXPECT_GT(recorder.guard(), 0);
  recorder.write_failures_to(folder.file("records"));
  recorder.failed("seen by the guard");
  EXPECT_FALSE(std::filesystem::exists(folder.file("records")));
  EXPECT_EQ(read_record(guard.layout(), {}).value().cause->text, "seen by the guard");
}

TEST(FlightRecorder, KeepsToItselfWhereTheGuardsMemoryCannotBeUsedAndCanBeOff) {
  testing::internal::CaptureStderr();
  const FlightRecorder recorder("/proc/1/fd/no");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("HORARUN_RECORD=/proc/1/fd/no: the flight record"));
  EXPECT_TRUE(recorder.writer().on());
  EXPECT_EQ(recorder.guard(), 0);
  EXPECT_FALSE(FlightRecorder("off").writer().on());
  EXPECT_EQ(FlightRecorder(nullptr).writer().watched_arrivals(), nullptr);
  EXPECT_NE(FlightRecorder("watched").writer().watched_arrivals(), nullptr);
}

TEST(FlightRecorder, RefusesAFolderThatCannotBeWrittenTo) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.file("file")) << "";
  FlightRecorder recorder(nullptr);
  test::expect_error(ErrorCode::invalid_setting, HasSubstr("HORA_RECORD_DIRECTORY: "),
                     [&] { recorder.write_failures_to(folder.file("file")); });
}

TEST(FlightRecorderDeathTest, AnUncaughtExceptionIsTheCauseInItsFile) {
  const test::TemporaryFolder folder;
  const auto throw_lost = [] { throw std::runtime_error("lost"); };
  const auto end = [&]() noexcept {
    FlightRecorder recorder(nullptr);
    recorder.writer().identify({.rank = 5, .size = 6});
    recorder.write_failures_to(folder.file("records"));
    const TerminateReport report(5, [&](const std::string& why) {
      recorder.failed(why);
      log_end(5, why);
    });
    throw_lost();
  };
  EXPECT_EXIT(end(), testing::KilledBySignal(SIGABRT), "std::runtime_error: lost");
  const std::string file = test::read_file(record_file(folder.file("records"), 5));
  const FlightRecord record = record_from_json(file).value();
  EXPECT_THAT(record.cause->text, HasSubstr("std::runtime_error: lost"));
  EXPECT_EQ(record.state, RecordState::failed);
}

volatile sig_atomic_t handled = 0, sender = 0;

void count(int) {
  handled = handled + 1;
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

/// A guard that counts the signals which it gets, and then ends with their number. Upon SIGHUP it
/// sends one itself.
pid_t start_guard() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGUSR1, SIGUSR2, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
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
  const auto body = [] {
    const pid_t guard = start_guard();
    install(SIGUSR1, count);
    struct sigaction action {};
    action.sa_sigaction = [](int signal, siginfo_t* info, void*) {
      count(signal);
      sender = info->si_pid;
    };
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGUSR2, &action, nullptr);
    const SignalRelay relay(guard);
    errno = 99;
    ::raise(SIGUSR1);
    if (handled != 1 || errno != 99) return 100;
    ::kill(::getpid(), SIGUSR2);
    if (handled != 2 || sender != ::getpid()) return 101;
    return end_guard(guard);
  };
  EXPECT_EXIT(::_exit(body()), testing::ExitedWithCode(2), "");
}

TEST(SignalRelay, DoesNotPassOnWhatComesFromTheGuard) {
  const auto body = [] {
    install(SIGUSR1, count);
    const pid_t guard = start_guard();
    const SignalRelay relay(guard);
    ::kill(guard, SIGHUP);
    for (int i = 0; i < 5000 && handled == 0; ++i) ::usleep(1000);
    return handled == 1 ? end_guard(guard) : 100;
  };
  EXPECT_EXIT(::_exit(body()), testing::ExitedWithCode(0), "");
}

TEST(SignalRelay, PutsTheProgramsHandlersBackAndLeavesOthersAlone) {
  const auto body = [] {
    const pid_t guard = start_guard();
    install(SIGUSR1, SIG_IGN);
    {
      const SignalRelay relay(guard);
      if (handler_of(SIGUSR1) != SIG_IGN || handler_of(SIGUSR2) != SIG_DFL) return 103;
      ::raise(SIGUSR1);
    }
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
  };
  EXPECT_EXIT(::_exit(body()), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace hora::internal
