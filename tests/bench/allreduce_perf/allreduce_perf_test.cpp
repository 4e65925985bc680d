/// What allreduce_perf's figures rest on: values, sums, sizes, bars.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <vector>

#include "bench/allreduce_perf/comparison.h"
#include "bench/allreduce_perf/resnet50.h"
#include "bench/allreduce_perf/slices.h"
#include "bench/allreduce_perf/values.h"

namespace bench {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr std::size_t count = 3001;  // more than two blocks of sum_into_all, and odd

// What `ranks` ranks write in `round`, added up one after the other.
std::vector<float> sums(int ranks, std::uint32_t round) {
  std::vector<float> sum(count, 0.0F);
  std::vector<float> mine(count);
  for (int rank = 0; rank < ranks; ++rank) {
    write_values(mine.data(), count, rank, round);
    for (std::size_t i = 0; i < count; ++i) sum[i] += mine[i];
  }
  return sum;
}

TEST(Values, SumsAreExactAndWrongOnesAreCounted) {
  for (const int ranks : {1, 2, 3, 4, 256}) {
    auto sum = sums(ranks, 1000000);
    EXPECT_EQ(count_wrong_sums(sum.data(), count, ranks, 1000000), 0) << ranks << " ranks";
    sum[0] += 1.0F;
    sum[count - 1] = 0.0F;
    EXPECT_EQ(count_wrong_sums(sum.data(), count, ranks, 1000000), 2) << ranks << " ranks";
  }
}

TEST(Values, AResultOfTheRoundBeforeIsWrongEverywhere) {
  const auto sum = sums(2, 6);
  EXPECT_EQ(count_wrong_sums(sum.data(), count, 2, 7), static_cast<std::int64_t>(count));
}

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
    for (const auto& array : arrays) EXPECT_EQ(array, sums(ranks, 3)) << ranks << " ranks";
  }
}

TEST(ResNet50, HasTorchvisionsParameters) {
  const auto counts = resnet50_gradients();
  EXPECT_EQ(counts.size(), 161U);
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::size_t{0}), 25557032U);
  EXPECT_EQ(counts.front(), 9408U);                // conv1: 64 x 3 x 7 x 7
  EXPECT_EQ(counts[counts.size() - 2], 2048000U);  // fc: 1000 x 2048
}

Blocks took(double seconds) {
  return {{seconds}, {seconds}};
}

TEST(Comparison, TheFasterPeerCounts) {
  const auto ratios =
      ratios_of({{"hora_bucket", took(1.0)}, {"mpi", took(4.0)}, {"mpi_out_of_place", took(3.5)}});
  EXPECT_EQ(ratios, (std::map<std::string, double>{{"hora_bucket vs_mpi", 3.5}}));
}

TEST(Comparison, MarksWhatIsBelowItsBarWhereTheBarHolds) {
  const auto table = [](std::size_t bytes, double ratio, bool judge) {
    return table_of_ratios({{bytes, {{"hora_bucket vs_mpi", ratio}}}}, judge);
  };
  EXPECT_THAT(table(65536, 2.9, true), HasSubstr("*2.90"));
  EXPECT_THAT(table(65536, 3.0, true), Not(HasSubstr("*3.00")));
  EXPECT_THAT(table(65535, 2.9, true), Not(HasSubstr("*2.90")));
  EXPECT_THAT(table(65536, 2.9, false), Not(HasSubstr("*2.90")));
}

}  // namespace
}  // namespace bench
