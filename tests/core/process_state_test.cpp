#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "core/base/process.h"

namespace hora::internal {
namespace {

ProcessState state_in(const std::string& text) {
  const auto stat = parse_process_stat(text);
  return stat ? stat->state : ProcessState::unknown;
}

TEST(ProcessStat, HasTheStateOfTheLetterAfterTheName) {
  EXPECT_EQ(state_in("4711 (train) R 1 2 3"), ProcessState::running);
  EXPECT_EQ(state_in("4711 (train) S 1 2 3"), ProcessState::sleeping);
  EXPECT_EQ(state_in("4711 (train) D 1"), ProcessState::blocked);
  EXPECT_EQ(state_in("4711 (train) T 1"), ProcessState::stopped);
  EXPECT_EQ(state_in("4711 (train) t 1"), ProcessState::traced);
  EXPECT_EQ(state_in("4711 (train) Z 1"), ProcessState::gone);
  EXPECT_EQ(state_in("4711 (train) ? 1"), ProcessState::unknown);
}

TEST(ProcessStat, ReadsNamesOfAnyKind) {
  const auto stat = parse_process_stat("12 (a) R b (c)) T 7 12 12 0");
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->pid, 12);
  EXPECT_EQ(stat->parent, 7);
  EXPECT_EQ(stat->state, ProcessState::stopped);
  EXPECT_EQ(stat->name, "a) R b (c)");
}

TEST(ProcessStat, RefusesOtherTexts) {
  for (const char* text : {"", ")", "12", "12 (a", "12 (a)", "12 (a) ", "12 (a) R", "12 (a) R x",
                           "x (a) R 1", ") (", "12 (a) RR 1"}) {
    EXPECT_FALSE(parse_process_stat(text)) << text;
  }
}

TEST(ProcessStat, OfThisProcess) {
  const auto stat = process_stat(::getpid());
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->pid, ::getpid());
  EXPECT_EQ(stat->parent, ::getppid());
  EXPECT_FALSE(process_stat(-1));
}

TEST(ProcessState, OfWhatIsNoProcessIsUnknown) {
  EXPECT_EQ(process_state(0), ProcessState::unknown);
  EXPECT_EQ(process_state(-1), ProcessState::unknown);
}

bool becomes(pid_t pid, ProcessState wanted) {
  for (int i = 0; i < 2000; ++i) {
    if (process_state(pid) == wanted) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

TEST(ProcessState, OfAProcessThatIsStoppedGoesOnAndEnds) {
  EXPECT_EQ(process_state(::getpid()), ProcessState::running);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (;;) ::pause();
  }
  EXPECT_TRUE(becomes(child, ProcessState::sleeping));
  ::kill(child, SIGSTOP);
  EXPECT_TRUE(becomes(child, ProcessState::stopped));
  ::kill(child, SIGCONT);
  EXPECT_TRUE(becomes(child, ProcessState::sleeping));
  ::kill(child, SIGKILL);
  EXPECT_TRUE(becomes(child, ProcessState::gone)) << "before its parent waits for it";
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(process_state(child), ProcessState::gone);
}

}  // namespace
}  // namespace hora::internal
