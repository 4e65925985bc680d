#include "tests/frameworks/torch/trainings/training.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace hora::internal::test {
namespace {

TEST(DrawnTrainings, HoldEveryPairThatGoesTogetherAndEveryKind) {
  for (const int ranks : {1, 4}) {
    std::vector<Training> drawn;
    std::set<Wrapped> wrapped;
    std::set<Block::Kind> kinds;
    std::set<int> shardings;
    bool idle = false, frozen_late = false, unfrozen = false, overflow = false, tied = false;
    for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
      const Training& training = drawn.emplace_back(draw_training(seed, ranks));
      wrapped.insert(training.wrapped);
      shardings.insert(training.sharding);
      for (const Block& block : training.blocks) {
        kinds.insert(block.kind);
        tied |= block.tied_to >= 0;
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
    for (std::size_t a = 0; a < kFeatures; ++a) {
      for (std::size_t b = a + 1; b < kFeatures; ++b) {
        const auto one = static_cast<Feature>(a), other = static_cast<Feature>(b);
        const auto has_both = [&](const Training& of) { return of.has(one) && of.has(other); };
        EXPECT_EQ(std::any_of(drawn.begin(), drawn.end(), has_both), go_together(one, other))
            << name_of(one) << " and " << name_of(other);
      }
    }
    EXPECT_EQ(wrapped.size(), 7U);
    EXPECT_EQ(kinds.size(), 5U);
    EXPECT_EQ(shardings.size(), 4U);
    EXPECT_TRUE(idle && frozen_late && unfrozen && overflow && tied);
  }
}

}  // namespace
}  // namespace hora::internal::test
