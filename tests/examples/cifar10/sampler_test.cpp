#include "examples/cifar10/sampler.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "tests/examples/vision/temporary_folder.h"
#include "tests/support/seed.h"

namespace cifar10 {
namespace {

using testing::HasSubstr;
using vision::test::message_of;

std::vector<std::size_t> counting(std::size_t count) {
  std::vector<std::size_t> values(count);
  std::iota(values.begin(), values.end(), std::size_t{0});
  return values;
}

TEST(Permutation, HoldsEveryIndexOnce) {
  for (const std::size_t count : {0U, 1U, 2U, 1437U}) {
    std::vector<std::size_t> order = permutation(count, hora::internal::test::seed(), 3);
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, counting(count));
  }
}

TEST(Permutation, DependsOnSeedAndEpochOnly) {
  const std::uint64_t seed = hora::internal::test::seed();
  const auto order = permutation(1000, seed, 5);
  EXPECT_EQ(order, permutation(1000, seed, 5));
  EXPECT_NE(order, permutation(1000, seed, 6));
  EXPECT_NE(order, permutation(1000, seed + 1, 5));
  EXPECT_NE(order, counting(1000));
}

TEST(TrainingSampler, ShardsAreDisjointAndDealOutOnePermutation) {
  const std::uint64_t seed = hora::internal::test::seed();
  for (const int size : {1, 2, 3, 4, 7}) {
    constexpr std::size_t images = 1437;
    std::set<std::size_t> seen;
    std::size_t dealt = 0;
    for (int rank = 0; rank < size; ++rank) {
      const TrainingSampler sampler(images, {rank, size}, 32, seed);
      const auto own = sampler.epoch(2);
      EXPECT_EQ(own.size(), sampler.steps() * sampler.batch());
      dealt += own.size();
      seen.insert(own.begin(), own.end());
    }
    EXPECT_EQ(seen.size(), dealt) << "an image was dealt twice, ranks: " << size;
    EXPECT_GT(dealt + 32 * static_cast<std::size_t>(size), images) << "more left out than a step";
    const auto order = permutation(images, seed, 2);
    EXPECT_EQ(seen, std::set<std::size_t>(order.begin(),
                                          order.begin() + static_cast<std::ptrdiff_t>(dealt)));
  }
}

TEST(TrainingSampler, OneStepHasTheSameImagesHoweverManyRanks) {
  const std::uint64_t seed = hora::internal::test::seed();
  const TrainingSampler alone(1000, {0, 1}, 32, seed);
  const auto all = alone.epoch(0);
  for (std::size_t step = 0; step < alone.steps(); ++step) {
    std::set<std::size_t> together;
    for (int rank = 0; rank < 4; ++rank) {
      const auto own = TrainingSampler(1000, {rank, 4}, 8, seed).epoch(0);
      together.insert(&own[step * 8], &own[step * 8] + 8);
    }
    EXPECT_EQ(together, std::set<std::size_t>(&all[step * 32], &all[step * 32] + 32)) << step;
  }
}

TEST(TrainingSampler, EpochsDiffer) {
  const TrainingSampler sampler(500, {1, 2}, 10, hora::internal::test::seed());
  EXPECT_EQ(sampler.epoch(0), sampler.epoch(0));
  EXPECT_NE(sampler.epoch(0), sampler.epoch(1));
}

TEST(TrainingSampler, LessThanABatchMakesASmallerOne) {
  const TrainingSampler sampler(41, {3, 4}, 32, 1);
  EXPECT_EQ(sampler.batch(), 10U);
  EXPECT_EQ(sampler.steps(), 1U);
}

TEST(TrainingSampler, RefusesWhatBatchNormCannotTake) {
  EXPECT_THAT(message_of([] {
                TrainingSampler(7, {0, 4}, 32, 1);
              }),
              HasSubstr("7 training images in batches of 32 for 4 ranks"));
  EXPECT_THAT(message_of([] { TrainingSampler(100, {0, 4}, 1, 1); }), HasSubstr("at least 2"));
  EXPECT_EQ(message_of([] { TrainingSampler(8, {0, 4}, 2, 1); }), "");
}

TEST(ValidationShard, CountsNothingTwiceAndLeavesNothingOut) {
  for (const std::size_t images : {0U, 1U, 3U, 360U, 361U}) {
    for (const int size : {1, 2, 3, 4, 7}) {
      std::vector<std::size_t> all;
      for (int rank = 0; rank < size; ++rank) {
        const auto own = validation_shard(images, {rank, size});
        all.insert(all.end(), own.begin(), own.end());
      }
      std::sort(all.begin(), all.end());
      EXPECT_EQ(all, counting(images)) << images << " images, " << size << " ranks";
    }
  }
}

}  // namespace
}  // namespace cifar10
