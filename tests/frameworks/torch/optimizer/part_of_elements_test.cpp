#include <gtest/gtest.h>

#include <random>

#include "frameworks/torch/optimizer/gradient_norm.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

TEST(PartOfElements, IsConsecutive) {
  const std::int64_t counts[] = {3, 0, 5};
  using Ranges = std::vector<ElementRange>;
  EXPECT_EQ(part_of_elements(counts, 0, 2), (Ranges{{0, 0, 3}, {2, 0, 1}}));
  EXPECT_EQ(part_of_elements(counts, 1, 2), (Ranges{{2, 1, 4}}));
  EXPECT_EQ(part_of_elements({}, 0, 2), Ranges{});
}

TEST(PartOfElements, CoversEachElementOnce) {
  std::mt19937_64 random(test::seed());
  for (int round = 0; round < 200; ++round) {
    std::vector<std::int64_t> counts(std::uniform_int_distribution<std::size_t>(0, 9)(random));
    for (auto& count : counts) count = std::uniform_int_distribution(0, 40)(random);
    const int parts = std::uniform_int_distribution(1, 11)(random);
    std::vector<std::int64_t> found(counts.size(), 0);
    for (int part = 0; part < parts; ++part) {
      for (const ElementRange& range : part_of_elements(counts, part, parts)) {
        EXPECT_EQ(range.begin, found[range.tensor]);
        found[range.tensor] += range.count;
      }
    }
    EXPECT_EQ(found, counts);
  }
}

}  // namespace
}  // namespace hora::internal
