#include "tests/frameworks/torch/trainings/training.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

class DrawnTrainings : public testing::TestWithParam<int> {
 protected:
  void for_many(const std::function<void(const Training&)>& body) {
    auto seeds = generator();
    for (int i = 0; i < 300; ++i) {
      body(draw_training(seeds(), GetParam()));
      if (HasFatalFailure()) return;
    }
  }
};

TEST_P(DrawnTrainings, AreTheSameFromTheSameSeed) {
  for_many([&](const Training& training) {
    const Training again = draw_training(training.seed, GetParam());
    EXPECT_EQ(again.describe(), training.describe());
    ASSERT_EQ(again.steps(), training.steps());
    EXPECT_EQ(again.joins_after, training.joins_after);
    for (std::size_t step = 0; step < again.shares.size(); ++step) {
      for (std::size_t rank = 0; rank < again.shares[step].size(); ++rank) {
        EXPECT_EQ(again.shares[step][rank].passes, training.shares[step][rank].passes);
      }
    }
  });
}

TEST_P(DrawnTrainings, HaveNoTwoFeaturesThatDoNotGoTogether) {
  for_many([](const Training& training) {
    for (const Exclusion& pair : exclusions()) {
      EXPECT_FALSE(training.has(pair.one) && training.has(pair.other)) << training.describe();
    }
  });
}

TEST_P(DrawnTrainings, OfEachSetSomeRankTakesPartInEveryStep) {
  for_many([](const Training& training) {
    for (int rank = 0; rank < training.ranks; ++rank) {
      const auto members = training.members(rank);
      ASSERT_TRUE(std::binary_search(members.begin(), members.end(), rank));
      for (int step = 0; step < training.steps(); ++step) {
        EXPECT_TRUE(std::any_of(members.begin(), members.end(),
                                [&](int member) { return training.takes_part(member, step); }));
      }
      EXPECT_TRUE(training.takes_part(rank, training.steps_before_join));
    }
  });
}

TEST_P(DrawnTrainings, UseTheirFeatures) {
  for_many([](const Training& training) {
    const auto any_block = [&](auto is) {
      return std::any_of(training.blocks.begin(), training.blocks.end(), is);
    };
    using Kind = Block::Kind;
    EXPECT_EQ(training.has(Feature::scalar),
              any_block([](const Block& block) { return block.kind == Kind::gain; }));
    EXPECT_EQ(training.has(Feature::empty),
              any_block([](const Block& block) { return block.kind == Kind::nothing; }));
    EXPECT_EQ(training.has(Feature::tied),
              any_block([](const Block& block) { return block.tied_to >= 0; }));
    EXPECT_EQ(training.has(Feature::frozen),
              any_block([](const Block& block) { return block.frozen_from < 1000; }));
    EXPECT_EQ(training.has(Feature::strided),
              any_block([](const Block& block) { return block.layout == Block::Layout::turned; }));
    EXPECT_EQ(training.has(Feature::accumulation), training.passes > 1);
    EXPECT_EQ(training.has(Feature::clipping), training.max_norm > 0);
    for (int optimizer = 0; optimizer < training.optimizers; ++optimizer) {
      EXPECT_TRUE(any_block([&](const Block& block) { return block.optimizer == optimizer; }));
    }
  });
}

TEST_P(DrawnTrainings, WithAStaticGraphUseTheSameInEachStep) {
  for_many([](const Training& training) {
    if (!training.has(Feature::static_graph)) return;
    for (const auto& shares : training.shares) {
      for (std::size_t rank = 0; rank < shares.size(); ++rank) {
        EXPECT_EQ(shares[rank].passes, training.shares.front()[rank].passes);
      }
    }
    for (const Block& block : training.blocks) {
      EXPECT_EQ(block.is_frozen(0), block.is_frozen(training.steps() - 1));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, DrawnTrainings, testing::Values(1, 2, 3, 4));

TEST(ManyTrainings, HoldEveryPairThatGoesTogether) {
  for (const int ranks : {1, 4}) {
    std::vector<Features> drawn;
    for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
      drawn.push_back(draw_training(seed, ranks).features);
    }
    for (const auto& [one, other] : pairs_missing(drawn)) {
      ADD_FAILURE() << "no training has " << name_of(one) << " and " << name_of(other);
    }
  }
}

TEST(PairsMissing, AreThoseThatNoTrainingHasBothOf) {
  Features all;
  all.set();
  EXPECT_TRUE(pairs_missing({all}).empty());
  Features few = all;
  few.reset(index_of(Feature::tied));
  EXPECT_EQ(pairs_missing({few}).size(), kFeatures - 1);
  EXPECT_EQ(pairs_missing({}).size(), kFeatures * (kFeatures - 1) / 2 - exclusions().size());
}

TEST(ManyTrainings, AreOfEveryKind) {
  std::set<Wrapped> wrapped;
  std::set<Compression> compressions;
  std::set<Hook> hooks;
  std::set<Grouping> groupings;
  std::set<Accumulation> accumulations;
  std::set<ReduceOp> ops;
  bool idle = false, frozen_late = false, unfrozen = false, overflow = false;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const Training training = draw_training(seed, 2);
    wrapped.insert(training.wrapped);
    compressions.insert(training.compression);
    hooks.insert(training.hook);
    groupings.insert(training.grouping);
    accumulations.insert(training.accumulation);
    ops.insert(training.op);
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
  EXPECT_EQ(wrapped.size(), 7U);
  EXPECT_EQ(compressions.size(), 3U);
  EXPECT_EQ(hooks.size(), 3U);
  EXPECT_EQ(groupings.size(), 3U);
  EXPECT_EQ(accumulations.size(), 3U);
  EXPECT_EQ(ops.size(), 2U);
  EXPECT_TRUE(idle && frozen_late && unfrozen && overflow);
}

}  // namespace
}  // namespace hora::internal::test
