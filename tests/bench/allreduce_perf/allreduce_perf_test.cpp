/// Tests the sums and sizes that allreduce_perf's figures rest on.
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/allreduce_perf/typed_values.h"
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

/// Sums by additions in the type itself, with hora's rounding left out: the numbers are whole.
template <class T>
std::vector<T> sums_of(const TypedValues& values, int ranks, std::uint32_t round) {
  std::vector<T> sum(count, T{});
  std::vector<T> own(count);
  for (int rank = 0; rank < ranks; ++rank) {
    values.write(own.data(), count, rank, round);
    for (std::size_t i = 0; i < count; ++i) sum[i] = static_cast<T>(sum[i] + own[i]);
  }
  return sum;
}

template <class T>
void expect_right_sums() {
  for (const int ranks : {1, 2, 5, 8}) {
    const TypedValues values(hora::data_type_of<T>, ranks);
    auto sum = sums_of<T>(values, ranks, 3);
    EXPECT_EQ(values.count_wrong_sums(sum.data(), count, 3), 0) << ranks << " ranks";
    EXPECT_EQ(values.count_wrong_sums(sum.data(), count, 4), static_cast<std::int64_t>(count))
        << "the round before is wrong everywhere; " << ranks << " ranks";
    sum[7] = static_cast<T>(sum[7] + 1);
    EXPECT_EQ(values.count_wrong_sums(sum.data(), count, 3), 1);
  }
}

TEST(TypedValues, SumsAreExactAndWrongOnesAreCounted) {
  const auto expect_all = []<class... T>(T...) { (expect_right_sums<T>(), ...); };
  expect_all(0.0F, 0.0, std::int8_t(), std::uint8_t(), std::int16_t(), std::uint16_t(),
             std::int32_t(), std::uint32_t(), std::int64_t(), std::uint64_t());
}

// Written out by hand: 5 = 1.25 * 2^2.
TEST(TypedValues, HalvesHaveTheirBits) {
  const TypedValues halves(hora::DataType::float16, 1);
  const TypedValues brains(hora::DataType::bfloat16, 1);
  hora::Float16 half[6];
  hora::BFloat16 brain[6];
  halves.write(half, 6, 0, 0);
  brains.write(brain, 6, 0, 0);
  EXPECT_EQ(half[0].bits, 0x0000);
  EXPECT_EQ(half[1].bits, 0x3c00);
  EXPECT_EQ(half[5].bits, 0x4500);
  EXPECT_EQ(brain[0].bits, 0x0000);
  EXPECT_EQ(brain[1].bits, 0x3f80);
  EXPECT_EQ(brain[5].bits, 0x40a0);
  EXPECT_EQ(halves.count_wrong_sums(half, 6, 0), 0);
  half[3].bits ^= 1;
  EXPECT_EQ(halves.count_wrong_sums(half, 6, 0), 1);
}

TEST(TypedValues, EveryTypeHasANameAndManyRanksAreRefusedWhereSumsWouldBeRounded) {
  EXPECT_EQ(type_names().size(), 12U);
  for (const std::string& name : type_names()) {
    EXPECT_NO_THROW(TypedValues(type_of(name), 8)) << name;
  }
  EXPECT_THROW(TypedValues(hora::DataType::int8, 20), std::invalid_argument);
  EXPECT_THROW(TypedValues(hora::DataType::boolean, 2), std::invalid_argument);
  EXPECT_THROW(type_of("float8"), std::invalid_argument);
}

}  // namespace
}  // namespace bench
