#include "tests/support/reference/reference.h"

#include <gtest/gtest.h>

#include "tests/support/reference/elements.h"

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

}  // namespace
}  // namespace hora::internal::test
