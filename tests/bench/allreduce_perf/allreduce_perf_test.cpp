/// What allreduce_perf's figures rest on: sums and sizes.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "bench/allreduce_perf/workload.h"
#include "bench/harness/timed_loop.h"
#include "tests/bench/sums.h"

namespace bench {
namespace {

constexpr std::size_t count = 3001;  // more than two blocks of sum_into_all, and odd

TEST(Slices, SumIntoAll) {
  for (const int ranks : {1, 2, 3, 5}) {
    std::vector<std::vector<float>> arrays(static_cast<std::size_t>(ranks),
                                           std::vector<float>(count));
    std::vector<float*> pointers;
    for (int rank = 0; rank < ranks; ++rank) {
      auto& array = arrays[static_cast<std::size_t>(rank)];
      write_values(array.data(), count, rank, 3);
      pointers.push_back(array.data());
    }
    sum_into_all(pointers, count);
    for (const auto& array : arrays) EXPECT_EQ(array, sums(count, ranks, 3)) << ranks << " ranks";
  }
}

TEST(ResNet50, HasTorchvisionsParameters) {
  const auto counts = resnet50_gradients();
  EXPECT_EQ(counts.size(), 161U);
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::size_t{0}), 25557032U);
  EXPECT_EQ(counts.front(), 9408U);                // conv1: 64 x 3 x 7 x 7
  EXPECT_EQ(counts[counts.size() - 2], 2048000U);  // fc: 1000 x 2048
}

}  // namespace
}  // namespace bench
