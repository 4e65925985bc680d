#include <gtest/gtest.h>

#include "frameworks/torch/optimizer/round_exchanges.h"
#include "frameworks/torch/optimizer/step_counters.h"

namespace hora::internal::test {
namespace {

TEST(PresenceExchange, TellsWhatAnyRankHas) {
  const Context world = init();
  PresenceExchange presence(peers_of(world, kWorld), "presence", 3);
  for (int round = 0; round < 3; ++round) {
    if (world.rank() != 0) presence.note_absent(0);
    presence.note_absent(1);
    presence.begin(0);
    presence.wait();
    EXPECT_TRUE(presence.anywhere(0));
    EXPECT_FALSE(presence.anywhere(1));
    EXPECT_TRUE(presence.anywhere(2));
    presence.end();
  }
}

TEST(PresenceExchange, TellsWhetherAllAreInOneStep) {
  const Context world = init();
  PresenceExchange presence(peers_of(world, kWorld), "presence", 3);
  for (std::size_t lane = 0; lane < step_lanes; ++lane) {
    const bool differs = lane % 2 == 1;
    const std::size_t own = differs && world.rank() == 1 ? lane - 1 : lane;
    presence.begin(own);
    presence.wait();
    EXPECT_EQ(presence.in_one_step(), !differs || world.size() == 1);
    presence.end();
  }
}

}  // namespace
}  // namespace hora::internal::test
