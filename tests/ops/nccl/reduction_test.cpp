#include "ops/nccl/reduction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <algorithm>
#include <string>

#include "tests/support/expect_error.h"
#include "tests/support/reference/elements.h"

namespace hora::internal {
namespace {

using enum DataType;

TEST(ToNccl, EveryTypeButIntegersOf16Bits) {
  EXPECT_EQ(to_nccl(float16), ncclFloat16);
  EXPECT_EQ(to_nccl(bfloat16), ncclBfloat16);
  EXPECT_EQ(to_nccl(float32), ncclFloat32);
  EXPECT_EQ(to_nccl(float64), ncclFloat64);
  EXPECT_EQ(to_nccl(int32), ncclInt32);
  EXPECT_EQ(to_nccl(int64), ncclInt64);
  EXPECT_EQ(to_nccl(uint8), ncclUint8);
  EXPECT_EQ(to_nccl(int8), ncclInt8);
  EXPECT_EQ(to_nccl(boolean), ncclUint8);
  EXPECT_EQ(to_nccl(uint32), ncclUint32);
  EXPECT_EQ(to_nccl(uint64), ncclUint64);
  for (const DataType type : test::kAllTypes) {
    if (std::ranges::count(test::kNcclTypes, type) == 1) {
      EXPECT_NO_THROW(to_nccl(type)) << name_of(type);
      continue;
    }
    const Error error =
        test::expect_error(ErrorCode::invalid_argument, [&] { (void)to_nccl(type); });
    EXPECT_THAT(error.what(), testing::HasSubstr(std::string(name_of(type)))) << name_of(type);
    EXPECT_EQ(travelling_type(type), ncclFloat16) << "travels as what is as long";
  }
  EXPECT_THROW(to_nccl(static_cast<DataType>(99)), Error);
  EXPECT_EQ(travelling_type(int32), ncclInt32);
}

TEST(ToNccl, EveryOperationButAdasum) {
  EXPECT_EQ(to_nccl(ReduceOp::average, float32), ncclAvg);
  EXPECT_EQ(to_nccl(ReduceOp::sum, float32), ncclSum);
  EXPECT_EQ(to_nccl(ReduceOp::min, int8), ncclMin);
  EXPECT_EQ(to_nccl(ReduceOp::max, int8), ncclMax);
  EXPECT_EQ(to_nccl(ReduceOp::product, int8), ncclProd);
  EXPECT_THROW(to_nccl(ReduceOp::adasum, float32), Error);
}

TEST(ToNccl, TruthsAreZeroAndOne) {
  EXPECT_EQ(to_nccl(ReduceOp::sum, boolean), ncclMax);
  EXPECT_EQ(to_nccl(ReduceOp::max, boolean), ncclMax);
  EXPECT_EQ(to_nccl(ReduceOp::product, boolean), ncclMin);
  EXPECT_EQ(to_nccl(ReduceOp::min, boolean), ncclMin);
}

TEST(Preparation, OfScaledValuesAndOfBooleansThatAreReduced) {
  Unit unit;
  EXPECT_FALSE(needs_preparation(unit));
  unit.prescale = 0.5;
  EXPECT_TRUE(needs_preparation(unit));
  EXPECT_EQ(preparation(unit).scale, 0.5);

  Unit truths;
  truths.type = boolean;
  EXPECT_TRUE(needs_preparation(truths));
  EXPECT_EQ(preparation(truths).source_type, uint8);
  EXPECT_EQ(preparation(truths).target_type, boolean);
  truths.kind = OperationKind::broadcast;
  EXPECT_FALSE(needs_preparation(truths)) << "they travel as they are";
  EXPECT_EQ(preparation(truths).source_type, boolean);
}

TEST(Windows, HaveSumsOfAveragesUpToFloat32) {
  const auto sums = [](DataType type, ReduceOp op, OperationKind kind = OperationKind::allreduce) {
    Unit unit;
    unit.kind = kind;
    unit.type = type;
    unit.op = op;
    return sums_scaled_in_windows(unit);
  };
  for (const auto type : {DataType::float32, DataType::float16, DataType::bfloat16}) {
    EXPECT_TRUE(sums(type, ReduceOp::average));
    EXPECT_FALSE(sums(type, ReduceOp::sum));
    EXPECT_FALSE(sums(type, ReduceOp::average, OperationKind::broadcast));
  }
  EXPECT_FALSE(sums(DataType::float64, ReduceOp::average));
  EXPECT_FALSE(sums(DataType::int32, ReduceOp::average));
}

}  // namespace
}  // namespace hora::internal
