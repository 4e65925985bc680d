// Counts that do not fit the 31 bits of MPI's. Two ranks need 8 GiB of memory.
#include <algorithm>
#include <cstdint>

#include "tests/conformance/conformance.h"

namespace hora::internal::test {
namespace {

constexpr std::int64_t kTwoGi = std::int64_t{1} << 31;

class LargeCounts : public Conformance {
 protected:
  /// A period that no power of two divides, so that a shift by 2^31 or 2^32 shows.
  static std::uint8_t pattern(std::int64_t i, int of_rank) {
    return static_cast<std::uint8_t>(i % 251 + of_rank);
  }
  /// The index of the first element that is not `expected(i)`; `count` where all are.
  template <class Expected>
  static std::int64_t first_wrong(const std::byte* data, std::int64_t count, Expected&& expected) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (data[i] != static_cast<std::byte>(expected(i))) return i;
    }
    return count;
  }
  void fill(std::byte* data, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) data[i] = static_cast<std::byte>(pattern(i, rank()));
  }
};

TEST_F(LargeCounts, AllreduceOfMoreThanTwoGibiElements) {
  constexpr std::int64_t kCount = kTwoGi + 3;
  const Buffer buffer(context(), kCount);  // no second copy
  fill(buffer.data(), kCount);
  allreduce(world(), {buffer.data(), DataType::uint8, {kCount}, {}},
            {.name = "large", .op = ReduceOp::sum});
  const auto sum = [&](std::int64_t i) {
    return static_cast<std::uint8_t>(pattern(i, 0) * size() + size() * (size() - 1) / 2);
  };
  EXPECT_EQ(first_wrong(buffer.data(), kCount, sum), kCount);
}

TEST_F(LargeCounts, AllgatherIntoMoreThanTwoGibiElements) {
  const std::int64_t count = kTwoGi / size() + 5 + rank();
  const Buffer buffer(context(), static_cast<std::size_t>(count));
  fill(buffer.data(), count);
  const Result result =
      allgather(world(), {buffer.data(), DataType::uint8, {count}, {}}, {.name = "large"});
  std::int64_t begin = 0;
  for (int r = 0; r < size(); ++r) {
    const std::int64_t rows = kTwoGi / size() + 5 + r;
    ASSERT_EQ(result.rows()[static_cast<std::size_t>(r)], rows);
    EXPECT_EQ(
        first_wrong(result.data() + begin, rows, [&](std::int64_t i) { return pattern(i, r); }),
        rows)
        << "of rank " << r;
    begin += rows;
  }
  EXPECT_GT(begin, kTwoGi);
  EXPECT_EQ(result.shape(), Shape{begin});
}

}  // namespace
}  // namespace hora::internal::test
