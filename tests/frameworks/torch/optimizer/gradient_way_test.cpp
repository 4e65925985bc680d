#include "frameworks/torch/optimizer/gradient_way.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace hora::internal {
namespace {

constexpr GradientFacts kGood{
    .apart = true, .in_arena = true, .plain = true, .in_order = true, .shared = false};

TEST(GradientWay, InPlaceWhereNothingSpeaksAgainstIt) {
  EXPECT_EQ(gradient_way(kGood), GradientWay::in_place);
  const std::vector<std::function<void(GradientFacts&)>> reasons{
      [](GradientFacts& facts) { facts.apart = false; },
      [](GradientFacts& facts) { facts.in_arena = false; },
      [](GradientFacts& facts) { facts.plain = false; },
      [](GradientFacts& facts) { facts.in_order = false; },
      [](GradientFacts& facts) { facts.shared = true; }};
  for (std::size_t i = 0; i < reasons.size(); ++i) {
    GradientFacts facts = kGood;
    reasons[i](facts);
    EXPECT_EQ(gradient_way(facts), GradientWay::copied) << "reason " << i;
  }
  EXPECT_EQ(gradient_way({}), GradientWay::copied);
}

TEST(GradientWay, GradientsAreApartInOneNodeOnTheCpuWhereAnArenaIsWanted) {
  constexpr AveragingFacts good{.arena_wanted = true};
  EXPECT_EQ(least_apart(good), 65536u);
  const std::vector<std::function<void(AveragingFacts&)>> reasons{
      [](AveragingFacts& facts) { facts.arena_wanted = false; },
      [](AveragingFacts& facts) { facts.on_host = false; },
      [](AveragingFacts& facts) { facts.nodes = 2; },
      [](AveragingFacts& facts) { facts.sharded = true; },
      [](AveragingFacts& facts) { facts.hooked = true; },
      [](AveragingFacts& facts) { facts.adasum = true; }};
  for (std::size_t i = 0; i < reasons.size(); ++i) {
    AveragingFacts facts = good;
    reasons[i](facts);
    EXPECT_EQ(least_apart(facts), kNeverApart) << "reason " << i;
  }
  EXPECT_EQ(least_apart({.arena_wanted = true, .sharded = true, .fused = true}), 65536u);
}

}  // namespace
}  // namespace hora::internal
