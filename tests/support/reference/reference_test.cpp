#include "tests/support/reference/reference.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/reference/elements.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

using enum DataType;

TEST(Reference, ListsEveryTypeOnce) {
  for (std::size_t i = 0; i < kAllTypes.size(); ++i) {
    EXPECT_EQ(kAllTypes[i], static_cast<DataType>(i));
    EXPECT_EQ(is_floating_point(kAllTypes[i]), i < kFloatTypes.size());
    EXPECT_EQ(unit_roundoff(kAllTypes[i]) > 0, i < kFloatTypes.size());
  }
  EXPECT_EQ(size_of(static_cast<DataType>(kAllTypes.size())), 0U);
  EXPECT_THROW(to_bytes(static_cast<DataType>(kAllTypes.size()), {1}), std::logic_error);
}

TEST(Reference, AdasumOfOneAndOfParallelAndOrthogonalVectors) {
  EXPECT_EQ(adasum_of({{1, 2}}), (Numbers{1, 2}));
  EXPECT_EQ(adasum_of({{1, 2}, {3, 6}}), (Numbers{2, 4}));
  EXPECT_EQ(adasum_of({{1, 0}, {0, 2}}), (Numbers{1, 2}));
  EXPECT_EQ(adasum_of({{1, 0, 0}, {0, 2, 0}, {0, 0, 3}}), (Numbers{1, 2, 3}));
  EXPECT_EQ(adasum_of({{0, 0}, {0, 2}}), (Numbers{0, 2}));
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
