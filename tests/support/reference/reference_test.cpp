#include "tests/support/reference/reference.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/reference/elements.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

using enum DataType;

Bytes of(DataType type, const Numbers& numbers) {
  return to_bytes(type, numbers);
}

TEST(Reference, NumbersOfEveryTypeComeBack) {
  for (const DataType type : kAllTypes) {
    const Bytes bytes = of(type, {0, 1, 100, 3});
    EXPECT_EQ(bytes.size(), 4 * size_of(type));
    const Numbers expected = type == boolean ? Numbers{0, 1, 1, 1} : Numbers{0, 1, 100, 3};
    EXPECT_EQ(to_numbers(type, bytes), expected) << name_of(type);
    EXPECT_EQ(number_at(type, bytes, 2), expected[2]);
  }
  EXPECT_EQ(to_numbers(int8, of(int8, {300})), Numbers{44});
  EXPECT_EQ(to_numbers(bfloat16, of(bfloat16, {257})), Numbers{256});
}

TEST(Reference, ListsEveryTypeOnce) {
  for (std::size_t i = 0; i < kAllTypes.size(); ++i) {
    EXPECT_EQ(kAllTypes[i], static_cast<DataType>(i));
    EXPECT_EQ(is_floating_point(kAllTypes[i]), i < kFloatTypes.size());
    EXPECT_EQ(unit_roundoff(kAllTypes[i]) > 0, i < kFloatTypes.size());
  }
  EXPECT_EQ(size_of(static_cast<DataType>(kAllTypes.size())), 0U);
  EXPECT_THROW(to_bytes(static_cast<DataType>(kAllTypes.size()), {1}), std::logic_error);
}

TEST(Reference, ReducesEachElement) {
  const auto result = [](DataType type, ReduceOp op, Scales scales = {}) {
    return to_numbers(type, reduced(type, op, {of(type, {1, 5}), of(type, {2, 3})}, scales));
  };
  for (const DataType type : kAllTypes) {
    if (type == boolean) continue;
    EXPECT_EQ(result(type, ReduceOp::sum), (Numbers{3, 8}));
    EXPECT_EQ(result(type, ReduceOp::product), (Numbers{2, 15}));
    EXPECT_EQ(result(type, ReduceOp::min), (Numbers{1, 3}));
    EXPECT_EQ(result(type, ReduceOp::max), (Numbers{2, 5}));
    const Numbers scaled = is_floating_point(type) ? Numbers{1.5, 4} : Numbers{3, 8};
    EXPECT_EQ(result(type, ReduceOp::sum, {.pre = 2, .post = 0.25}), scaled) << name_of(type);
  }
  const auto of_booleans = [](ReduceOp op) {
    return reduced(boolean, op, {of(uint8, {0, 2, 0, 4}), of(uint8, {0, 0, 3, 8})});
  };
  for (const ReduceOp either : {ReduceOp::sum, ReduceOp::max}) {
    EXPECT_EQ(of_booleans(either), of(uint8, {0, 1, 1, 1}));
  }
  for (const ReduceOp both : {ReduceOp::product, ReduceOp::min}) {
    EXPECT_EQ(of_booleans(both), of(uint8, {0, 0, 0, 1}));
  }
}

TEST(Reference, RoundsHalvesOnceAndWrapsIntegers) {
  const std::vector<Bytes> halves = {of(float16, {1}), of(float16, {0x1p-11}),
                                     of(float16, {0x1p-11})};
  EXPECT_EQ(to_numbers(float16, reduced(float16, ReduceOp::sum, halves)), Numbers{1 + 0x1p-10});
  const std::vector<Bytes> bytes(3, of(uint8, {100}));
  EXPECT_EQ(to_numbers(uint8, reduced(uint8, ReduceOp::sum, bytes)), Numbers{44});
  EXPECT_EQ(to_numbers(uint8, reduced(uint8, ReduceOp::product, bytes)), Numbers{64});
}

TEST(Reference, MinimumAndMaximumKnowNanAndSignedZeros) {
  for (const DataType type : kFloatTypes) {
    for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
      const std::vector<Bytes> inputs = {of(type, {NAN, -0.0, 0.0}), of(type, {1, 0.0, -0.0})};
      const Numbers result = to_numbers(type, reduced(type, op, inputs));
      EXPECT_TRUE(std::isnan(result[0]));
      EXPECT_EQ(std::signbit(result[1]), op == ReduceOp::min) << name_of(type);
      EXPECT_EQ(std::signbit(result[2]), op == ReduceOp::min) << name_of(type);
    }
  }
}

TEST(Reference, AdasumOfOneAndOfParallelAndOrthogonalVectors) {
  EXPECT_EQ(adasum_of({{1, 2}}), (Numbers{1, 2}));
  EXPECT_EQ(adasum_of({{1, 2}, {3, 6}}), (Numbers{2, 4}));
  EXPECT_EQ(adasum_of({{1, 0}, {0, 2}}), (Numbers{1, 2}));
  EXPECT_EQ(adasum_of({{1, 0, 0}, {0, 2, 0}, {0, 0, 3}}), (Numbers{1, 2, 3}));
  EXPECT_EQ(adasum_of({{0, 0}, {0, 2}}), (Numbers{0, 2}));
}

TEST(Reference, ExchangesMoveRows) {
  const std::vector<Bytes> inputs = {of(int16, {1, 2, 3, 4, 5, 6}), of(int16, {7, 8})};
  const Exchanged gathered = allgathered(inputs, {{3}, {1}}, 4);
  EXPECT_EQ(to_numbers(int16, gathered.bytes), (Numbers{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(gathered.rows, (RowCounts{3, 1}));
  const Exchanged own = alltoall_of(inputs, {{1, 2}, {1, 0}}, 4, 1);
  EXPECT_EQ(to_numbers(int16, own.bytes), (Numbers{3, 4, 5, 6}));
  EXPECT_EQ(own.rows, (RowCounts{2, 0}));
  const Exchanged first = scattered(inputs[0], 3, 4, 2, 0),
                  second = scattered(inputs[0], 3, 4, 2, 1);
  EXPECT_EQ(to_numbers(int16, first.bytes), (Numbers{1, 2, 3, 4}));
  EXPECT_EQ(to_numbers(int16, second.bytes), (Numbers{5, 6}));
  EXPECT_EQ(second.rows, RowCounts{1});
}

TEST(Reference, ValuesAreOfTheirRange) {
  auto random = generator();
  for (const DataType type : kAllTypes) {
    for (const double number : to_numbers(type, random_values(type, 800, random))) {
      if (is_floating_point(type) || type == boolean) {
        EXPECT_LE(std::abs(number), 1);
      }
    }
    if (type == boolean) continue;
    for (const double number : to_numbers(type, whole_numbers(type, 100, random, 5))) {
      EXPECT_EQ(number, std::floor(number));
      EXPECT_GE(number, 0);
      EXPECT_LT(number, 5);
    }
  }
}

}  // namespace
}  // namespace hora::internal::test
