#include "frameworks/torch/memory/arena_use.h"

#include <gtest/gtest.h>

namespace hora::internal {
namespace {

TEST(ArenaUse, TheSettingDecidesAndAutoLooksForRanksOfANodeOnTheCpu) {
  const auto wanted = [](TensorArenaUse setting, bool on_cpu, int ranks, int nodes) {
    return arena_is_wanted({.setting = setting, .on_cpu = on_cpu, .ranks = ranks, .nodes = nodes});
  };
  EXPECT_TRUE(wanted(TensorArenaUse::automatic, true, 2, 1));
  EXPECT_TRUE(wanted(TensorArenaUse::automatic, true, 3, 2));
  EXPECT_FALSE(wanted(TensorArenaUse::automatic, true, 1, 1));
  EXPECT_FALSE(wanted(TensorArenaUse::automatic, true, 4, 4));
  EXPECT_FALSE(wanted(TensorArenaUse::automatic, false, 2, 1));
  EXPECT_TRUE(wanted(TensorArenaUse::on, true, 1, 1));
  EXPECT_TRUE(wanted(TensorArenaUse::on, false, 2, 1));
  EXPECT_FALSE(wanted(TensorArenaUse::off, true, 2, 1));
}

TEST(ArenaUse, TheLimitIsHalfOfTheMemoryDividedAmongTheRanks) {
  EXPECT_EQ(arena_limit(0, 1000, 1), 500u);
  EXPECT_EQ(arena_limit(0, 1000, 4), 125u);
  EXPECT_EQ(arena_limit(7000, 1000, 4), 7000u);
}

}  // namespace
}  // namespace hora::internal
