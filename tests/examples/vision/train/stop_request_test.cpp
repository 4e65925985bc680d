#include "examples/vision/train/stop_request.h"

#include <gtest/gtest.h>
#include <hora/hora.h>

#include <csignal>

#include "tests/support/seed.h"

namespace vision {
namespace {

using hora::internal::test::generator;

volatile std::sig_atomic_t got = 0;
void count(int) {
  got = got + 1;
}

void (*handler_of(int number))(int) {
  struct sigaction action {};
  ::sigaction(number, nullptr, &action);
  return action.sa_handler;
}

class StopRequestTest : public testing::Test {
 protected:
  const hora::Context world_ = hora::init();
};

TEST_F(StopRequestTest, AllRanksLearnOfASignalAtOneAfterTheSameStep) {
  auto random = generator();
  for (const auto& [number, name] :
       {std::pair(SIGTERM, "SIGTERM"), std::pair(SIGUSR1, "SIGUSR1")}) {
    StopRequest stop(world_);
    const int at = 1 + static_cast<int>(random() % 20);
    const int victim = static_cast<int>(random() % static_cast<unsigned>(world_.size()));
    int step = 0;
    for (bool stopped = false; !stopped && step < 100; ++step) {
      EXPECT_EQ(stop.signal(), "");
      if (step == at && world_.rank() == victim) std::raise(number);
      stopped = stop.poll();
    }
    EXPECT_EQ(step, at + 2) << "the signal came before step " << at << "'s poll";
    EXPECT_EQ(stop.signal(), name);
    EXPECT_TRUE(stop.poll()) << "it stays so";
  }
}

TEST_F(StopRequestTest, SignalsAreCountedOnceAndTheTerminationPrevails) {
  StopRequest stop(world_);
  if (world_.rank() == 0) std::raise(SIGTERM);
  for (int i = 0; i < 2; ++i) {
    if (world_.rank() == world_.size() - 1) std::raise(SIGUSR1);
  }
  EXPECT_FALSE(stop.poll());
  EXPECT_TRUE(stop.poll());
  EXPECT_EQ(stop.signal(), world_.size() == 1 ? "SIGUSR1" : "SIGTERM");
}

TEST_F(StopRequestTest, TheHandlersBeforeAreBackAfterwards) {
  const auto before = std::signal(SIGUSR1, count);
  {
    const StopRequest stop(world_);
    EXPECT_NE(handler_of(SIGUSR1), count);
    EXPECT_NE(handler_of(SIGTERM), SIG_DFL);
    std::raise(SIGUSR1);
    EXPECT_EQ(got, 0);
  }
  EXPECT_EQ(handler_of(SIGTERM), SIG_DFL);
  std::raise(SIGUSR1);
  EXPECT_EQ(got, 1);
  std::signal(SIGUSR1, before);
  StopRequest next(world_);
  EXPECT_FALSE(next.poll());
  EXPECT_FALSE(next.poll()) << "an earlier one's signal is forgotten";
}

}  // namespace
}  // namespace vision
