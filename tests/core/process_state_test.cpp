#include "core/process_state.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace hora::internal {
namespace {

TEST(ProcessState, IsTheLetterAfterTheName) {
  EXPECT_EQ(state_in("4711 (train) R 1 2 3"), ProcessState::running);
  EXPECT_EQ(state_in("4711 (train) S 1 2 3"), ProcessState::sleeping);
  EXPECT_EQ(state_in("4711 (train) D 1"), ProcessState::blocked);
  EXPECT_EQ(state_in("4711 (train) T 1"), ProcessState::stopped);
  EXPECT_EQ(state_in("4711 (train) t 1"), ProcessState::traced);
  EXPECT_EQ(state_in("4711 (train) Z 1"), ProcessState::gone);
  EXPECT_EQ(state_in("4711 (train) ? 1"), ProcessState::unknown);
  EXPECT_EQ(state_in("4711 (a) T (b) R) S 1"), ProcessState::sleeping) << "a name of any kind";
}

TEST(ProcessState, OfWhatIsNoSuchTextIsUnknown) {
  for (const char* text : {"", ")", "4711", "4711 (train)", "4711 (train) "}) {
    EXPECT_EQ(state_in(text), ProcessState::unknown) << text;
  }
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
