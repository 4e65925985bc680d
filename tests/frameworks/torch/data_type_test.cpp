#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch.h>
#include <torch/version.h>

#include "frameworks/torch/tensor_view.h"
#include "tests/support/reference/elements.h"

namespace hora::internal {
namespace {

TEST(DataTypes, CorrespondInBothDirectionsAndInSize) {
  for (const DataType type : test::kAllTypes) {
    const c10::ScalarType scalar = to_scalar_type(type);
    if (scalar == c10::ScalarType::Undefined) {
      EXPECT_THAT(name_of(type), testing::AnyOf("uint16", "uint32", "uint64"));
      EXPECT_LT(TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR, 203) << name_of(type);
      continue;
    }
    EXPECT_EQ(to_data_type(scalar), type) << name_of(type);
    EXPECT_EQ(c10::elementSize(scalar), size_of(type)) << name_of(type);
    EXPECT_EQ(c10::isFloatingType(scalar), is_floating_point(type)) << name_of(type);
  }
}

TEST(DataTypes, OthersHaveNone) {
  EXPECT_EQ(to_data_type(c10::kQInt8), std::nullopt);
  EXPECT_EQ(to_data_type(c10::kComplexFloat), std::nullopt);
  EXPECT_EQ(to_data_type(c10::ScalarType::Undefined), std::nullopt);
}

TEST(OptimizerStatistics, HiddenShareIsAShare) {
  using std::chrono::nanoseconds;
  EXPECT_EQ((OptimizerStatistics{1, nanoseconds(0), nanoseconds(0)}.hidden_share()), 0.0);
  EXPECT_EQ((OptimizerStatistics{1, nanoseconds(25), nanoseconds(100)}.hidden_share()), 0.75);
  EXPECT_EQ((OptimizerStatistics{1, nanoseconds(150), nanoseconds(100)}.hidden_share()), 0.0);
}

}  // namespace
}  // namespace hora::internal
