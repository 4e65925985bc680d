#include <gtest/gtest.h>
#include <hora/torch.h>

#include "frameworks/torch/tensor_view.h"

namespace hora {
namespace {

TEST(DataTypes, CorrespondInBothDirectionsAndInSize) {
  for (const DataType type : {DataType::float16, DataType::bfloat16, DataType::float32,
                              DataType::float64, DataType::int32, DataType::int64, DataType::uint8,
                              DataType::int8, DataType::int16, DataType::boolean}) {
    const c10::ScalarType scalar = to_scalar_type(type);
    EXPECT_EQ(to_data_type(scalar), type) << name_of(type);
    EXPECT_EQ(c10::elementSize(scalar), size_of(type)) << name_of(type);
    EXPECT_EQ(c10::isFloatingType(scalar), is_floating_point(type)) << name_of(type);
  }
}

TEST(DataTypes, OthersHaveNone) {
  EXPECT_EQ(to_data_type(c10::kQInt8), std::nullopt);
  EXPECT_EQ(to_data_type(c10::kComplexFloat), std::nullopt);
}

TEST(OptimizerStatistics, HiddenShareIsAShare) {
  using std::chrono::nanoseconds;
  EXPECT_EQ((OptimizerStatistics{1, nanoseconds(0), nanoseconds(0)}.hidden_share()), 0.0);
  EXPECT_EQ((OptimizerStatistics{1, nanoseconds(25), nanoseconds(100)}.hidden_share()), 0.75);
  EXPECT_EQ((OptimizerStatistics{1, nanoseconds(150), nanoseconds(100)}.hidden_share()), 0.0);
}

}  // namespace
}  // namespace hora
