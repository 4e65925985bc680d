#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>
#include <thread>
#include <vector>

#include "core/control_block/wakeup_flags.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Word = std::atomic<std::uint32_t>;

constexpr auto kMuchTooLong = 10s;

TEST(Futex, DoesNotSleepWhereTheWordHasChanged) {
  const Word word{7};
  const auto begin = Clock::now();
  futex_wait(word, 6, kMuchTooLong);
  futex_wait(word, 6, std::nullopt);
  EXPECT_LT(Clock::now() - begin, kMuchTooLong / 2);
}

TEST(Futex, EndsAtItsTimeout) {
  const Word word{7};
  const auto begin = Clock::now();
  futex_wait(word, 7, 20ms);
  EXPECT_GE(Clock::now() - begin, 19ms);
  EXPECT_LT(Clock::now() - begin, kMuchTooLong / 2);
  futex_wait(word, 7, 0ns);
  futex_wait(word, 7, -5s);
  EXPECT_LT(Clock::now() - begin, kMuchTooLong / 2) << "a timeout of the past is over at once";
}

TEST(Futex, WakesEverySleepingThread) {
  Word word{0};
  std::atomic<int> awake{0};
  const auto begin = Clock::now();
  {
    std::vector<std::jthread> sleepers;
    for (int i = 0; i < 3; ++i) {
      sleepers.emplace_back([&] {
        while (word.load() == 0) futex_wait(word, 0, kMuchTooLong);
        ++awake;
      });
    }
    std::this_thread::sleep_for(20ms);
    word.store(1);
    futex_wake(word);
  }
  EXPECT_EQ(awake.load(), 3);
  EXPECT_LT(Clock::now() - begin, kMuchTooLong / 2);
}

TEST(Futex, WakesAnotherProcess) {
  void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto* words = new (page) Word[2];
  words[0].store(0);
  words[1].store(0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    words[1].store(1);
    while (words[0].load() == 0) futex_wait(words[0], 0, kMuchTooLong);
    ::_exit(0);
  }
  while (words[1].load() == 0) std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(20ms);  // by now it sleeps, most likely
  const auto begin = Clock::now();
  words[0].store(1);
  futex_wake(words[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_LT(Clock::now() - begin, kMuchTooLong / 2);
  ::munmap(page, 4096);
}

}  // namespace
}  // namespace hora::internal
