#include "tests/frameworks/torch/trainings/training.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

void check(const Training& training) {
  const Training again = draw_training(training.seed, training.ranks);
  EXPECT_EQ(again.describe(), training.describe());
  EXPECT_EQ(again.joins_after, training.joins_after);
  for (const Exclusion& pair : exclusions()) {
    EXPECT_FALSE(training.has(pair.one) && training.has(pair.other));
  }
  for (int rank = 0; rank < training.ranks; ++rank) {
    const auto members = training.members(rank);
    EXPECT_TRUE(std::binary_search(members.begin(), members.end(), rank));
    for (int step = 0; step < training.steps(); ++step) {
      EXPECT_TRUE(std::any_of(members.begin(), members.end(),
                              [&](int member) { return training.takes_part(member, step); }));
    }
  }
  const auto any_block = [&](auto is) {
    return std::any_of(training.blocks.begin(), training.blocks.end(), is);
  };
  using Kind = Block::Kind;
  EXPECT_EQ(training.has(Feature::scalar), any_block([](auto& b) { return b.kind == Kind::gain; }));
  EXPECT_EQ(training.has(Feature::empty),
            any_block([](auto& b) { return b.kind == Kind::nothing; }));
  EXPECT_EQ(training.has(Feature::tied), any_block([](auto& b) { return b.tied_to >= 0; }));
  EXPECT_EQ(training.has(Feature::frozen), any_block([](auto& b) { return b.frozen_from < 1000; }));
  EXPECT_EQ(training.has(Feature::accumulation), training.passes > 1);
  EXPECT_EQ(training.has(Feature::clipping), training.max_norm > 0);
  if (!training.has(Feature::static_graph)) return;
  for (const auto& shares : training.shares) {
    for (std::size_t rank = 0; rank < shares.size(); ++rank) {
      EXPECT_EQ(shares[rank].passes, training.shares.front()[rank].passes);
    }
  }
}

TEST(DrawnTrainings, HaveTheirFeaturesAndNoTwoThatDoNotGoTogether) {
  auto seeds = generator();
  for (int i = 0; i < 1200 && !testing::Test::HasFailure(); ++i) {
    const Training training = draw_training(seeds(), 1 + i % 4);
    SCOPED_TRACE(training.describe());
    check(training);
  }
}

TEST(DrawnTrainings, HoldEveryPairThatGoesTogetherAndEveryKind) {
  for (const int ranks : {1, 4}) {
    std::vector<Features> drawn;
    std::set<Wrapped> wrapped;
    bool idle = false, frozen_late = false, unfrozen = false, overflow = false;
    for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
      const Training training = draw_training(seed, ranks);
      drawn.push_back(training.features);
      wrapped.insert(training.wrapped);
      for (const Block& block : training.blocks) {
        frozen_late |= block.frozen_from > 0 && block.is_frozen(training.steps() - 1);
        unfrozen |= block.is_frozen(0) && !block.is_frozen(training.steps() - 1);
      }
      for (const auto& shares : training.shares) {
        for (const Share& share : shares) {
          idle |= share.passes.empty();
          overflow |= share.overflows;
        }
      }
    }
    for (const auto& [one, other] : pairs_missing(drawn)) {
      ADD_FAILURE() << "no training has " << name_of(one) << " and " << name_of(other);
    }
    EXPECT_EQ(wrapped.size(), 7U);
    EXPECT_TRUE(idle && frozen_late && unfrozen && overflow);
  }
  EXPECT_EQ(pairs_missing({}).size(), kFeatures * (kFeatures - 1) / 2 - exclusions().size());
}

}  // namespace
}  // namespace hora::internal::test
