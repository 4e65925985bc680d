#include "core/engine/progress.h"

#include <gtest/gtest.h>

#include <chrono>

namespace hora::internal {
namespace {

using namespace std::chrono_literals;

TEST(PauseBetweenPolls, IsAShareOfTheTimeWaited) {
  EXPECT_EQ(pause_between_polls(0ns), 0ns);
  EXPECT_EQ(pause_between_polls(80us), 10us);
  EXPECT_EQ(pause_between_polls(8ms), 1ms);
  EXPECT_EQ(pause_between_polls(200ms), 1ms);
  EXPECT_EQ(pause_between_polls(600ms), 3ms);
  EXPECT_EQ(pause_between_polls(1s), 5ms);
  EXPECT_EQ(pause_between_polls(1h), 5ms);
}

// What the polls of a wait take: a fortieth of a millisecond each, 1 % of a core.
TEST(PauseBetweenPolls, ALongWaitHasFewPolls) {
  Duration waited = 100us;
  int polls = 0;
  for (; waited < 5s; ++polls) waited += pause_between_polls(waited);
  EXPECT_LT(polls, 2000);
  EXPECT_LE(waited, 5s + 5ms);
}

}  // namespace
}  // namespace hora::internal
