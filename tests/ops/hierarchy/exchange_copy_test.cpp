#include <gtest/gtest.h>

#include "ops/hierarchy/exchange_memory.h"
#include "tests/support/reference/reference.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using test::Bytes;

struct ExchangeCopy : testing::Test {
  ExchangeCopy() {
    unit.local_size = 3;
    unit.unit.type = DataType::float16;
    unit.scale = 0.3;
    for (Bytes& input : inputs) {
      input = test::random_values(DataType::float16, 200, random);
      unit.memory.push_back(input.data());
    }
  }
  static Bytes part(const Bytes& bytes, std::size_t begin, std::size_t length) {
    const auto from = bytes.begin() + static_cast<std::ptrdiff_t>(begin);
    return {from, from + static_cast<std::ptrdiff_t>(length)};
  }

  std::mt19937_64 random = test::generator();
  Bytes inputs[3];
  BoundUnit unit;
  /// Two transfers from ranks to ranks, and one that is a sum.
  ByteLayout copies = {{2, 10, 0, 40, {0, 30}}, {1, 0, 1, 2, {30, 20}}};
  ByteLayout sum = {{Transfer::kAll, 50, 1, 8, {0, 66}}};
};

TEST_F(ExchangeCopy, GathersPiecesAndUnscaledSums) {
  Bytes out(50);
  gather(unit, copies, out.data());
  EXPECT_EQ(part(out, 0, 30), part(inputs[2], 10, 30));
  EXPECT_EQ(part(out, 30, 20), part(inputs[1], 0, 20));
  Bytes summed(66);
  gather(unit, sum, summed.data());
  const auto whole =
      test::reduced(DataType::float16, ReduceOp::sum, {inputs[0], inputs[1], inputs[2]});
  EXPECT_EQ(summed, part(whole, 50, 66));
}

TEST_F(ExchangeCopy, CopiesOwnRowsToTheResultAndScalesSums) {
  Bytes result(74, std::byte{1});
  copy_to_result(unit, copies, 0, {result.data(), result.size()});
  EXPECT_EQ(part(result, 40, 30), part(inputs[2], 10, 30));
  EXPECT_EQ(part(result, 0, 40), Bytes(40, std::byte{1}));
  copy_to_result(unit, copies, 1, {result.data(), result.size()});
  EXPECT_EQ(part(result, 2, 20), part(inputs[1], 0, 20));
  copy_to_result(unit, sum, 1, {result.data(), result.size()});
  const auto whole = test::reduced(DataType::float16, ReduceOp::sum,
                                   {inputs[0], inputs[1], inputs[2]}, {.post = 0.3});
  EXPECT_EQ(part(result, 8, 66), part(whole, 50, 66));
  EXPECT_EQ(part(result, 0, 2), Bytes(2, std::byte{1}));
}

TEST_F(ExchangeCopy, ScattersOwnRowsAndThoseForAll) {
  const Bytes in = test::random_values(DataType::uint8, 60, random);
  ByteLayout layout = copies;
  layout.push_back({0, 0, Transfer::kAll, 90, {50, 10}});
  Bytes result(100, std::byte{1});
  scatter(layout, 1, in.data(), {result.data(), result.size()});
  Bytes expected(100, std::byte{1});
  std::copy_n(in.begin() + 30, 20, expected.begin() + 2);
  std::copy_n(in.begin() + 50, 10, expected.begin() + 90);
  EXPECT_EQ(result, expected);
}

// Lengths on both sides of where copies begin to go past the caches, at odd offsets.
TEST_F(ExchangeCopy, CopiesIntoShortAndLongResultsAlike) {
  for (const std::size_t length : {std::size_t{1} << 20, std::size_t{5} << 20}) {
    const Bytes in = test::random_values(DataType::uint8, length - 12, random);
    Bytes result(length, std::byte{1});
    ExchangeTarget(result.data(), length).copy(5, in.data(), in.size());
    EXPECT_TRUE(part(result, 5, in.size()) == in);
    EXPECT_EQ(part(result, 0, 5), Bytes(5, std::byte{1}));
    EXPECT_EQ(part(result, length - 7, 7), Bytes(7, std::byte{1}));
  }
}

}  // namespace
}  // namespace hora::internal
