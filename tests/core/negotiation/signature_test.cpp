#include "core/negotiation/signature.h"

#include <gtest/gtest.h>
#include <hora/error.h>

namespace hora::internal {
namespace {

TEST(OperationKind, EachHasItsName) {
  EXPECT_EQ(name_of(OperationKind::allreduce), "allreduce");
  EXPECT_EQ(name_of(OperationKind::broadcast), "broadcast");
  EXPECT_EQ(name_of(OperationKind::barrier), "barrier");
  EXPECT_EQ(name_of(static_cast<OperationKind>(77)), "unknown operation");
}

TEST(OperationKind, TheLastOneIsTheLast) {
  const int last = static_cast<int>(last_of<OperationKind>);
  for (int number = 0; number <= last + 1; ++number) {
    EXPECT_EQ(name_of(static_cast<OperationKind>(number)) == "unknown operation", number > last)
        << number;
  }
}

TEST(Signature, CountsBytes) {
  EXPECT_EQ((Signature{.type = DataType::float16, .shape = {3, 4}}.bytes()), 24u);
  EXPECT_EQ((Signature{.type = DataType::float64}.bytes()), 8u);
  EXPECT_EQ((Signature{.shape = {5, 0}}.bytes()), 0u);
  EXPECT_EQ((Signature{.kind = OperationKind::barrier}.bytes()), 0u);
}

TEST(Signature, RefusesShapesWithoutMeaning) {
  const Signature negative{.shape = {-2}};
  EXPECT_THROW(negative.bytes(), Error);
}

TEST(Signature, SaysWhatItIs) {
  EXPECT_EQ(to_string({.op = ReduceOp::average, .shape = {3, 4}}),
            "allreduce float32 [3, 4] average on cpu");
  EXPECT_EQ(to_string({.kind = OperationKind::broadcast,
                       .type = DataType::bfloat16,
                       .device = DeviceKind::cuda,
                       .root = 2,
                       .shape = {7}}),
            "broadcast bfloat16 [7] from rank 2 on cuda");
  EXPECT_EQ(to_string({.type = DataType::int64}), "allreduce int64 [] sum on cpu");
  EXPECT_EQ(to_string({.kind = OperationKind::barrier}), "barrier");
}

/// An error about two ranks must show a difference wherever operator== sees one.
TEST(Signature, UnequalSignaturesReadDifferently) {
  const Signature base{.shape = {2, 3}};
  Signature other = base;
  other.shape = {3, 2};
  EXPECT_NE(to_string(base), to_string(other));
  other = base;
  other.type = DataType::int32;
  EXPECT_NE(to_string(base), to_string(other));
  other = base;
  other.op = ReduceOp::average;
  EXPECT_NE(to_string(base), to_string(other));
  other = base;
  other.device = DeviceKind::cuda;
  EXPECT_NE(to_string(base), to_string(other));
  Signature from0 = base, from1 = base;
  from0.kind = from1.kind = OperationKind::broadcast;
  from1.root = 1;
  EXPECT_NE(to_string(from0), to_string(from1));
}

using enum OperationKind;

Signature on_gpu(OperationKind kind, DataType type = DataType::float32,
                 ReduceOp op = ReduceOp::sum) {
  Signature signature;
  signature.kind = kind;
  signature.type = type;
  signature.op = op;
  signature.device = DeviceKind::cuda;
  return signature;
}

TEST(DevicePath, HostMemoryNeverRunsOnADevice) {
  EXPECT_FALSE(runs_on_device(Signature{}, true));
}

TEST(DevicePath, EverythingRunsWhereOneGroupHasAllRanks) {
  for (const OperationKind kind : {allreduce, broadcast, allgather, alltoall, reduce_scatter}) {
    EXPECT_TRUE(runs_on_device(on_gpu(kind), true));
  }
}

TEST(DevicePath, ExchangesDoNotRunOnGroupsOfNodes) {
  for (const OperationKind kind : {allgather, alltoall, reduce_scatter}) {
    EXPECT_FALSE(runs_on_device(on_gpu(kind), false));
  }
  for (const OperationKind kind : {allreduce, broadcast}) {
    EXPECT_TRUE(runs_on_device(on_gpu(kind), false));
  }
}

TEST(DevicePath, WhatNcclCannotReduceGoesOverTheHost) {
  for (const OperationKind kind : {allreduce, reduce_scatter}) {
    EXPECT_FALSE(runs_on_device(on_gpu(kind, DataType::int16), true));
    EXPECT_FALSE(runs_on_device(on_gpu(kind, DataType::uint16), true));
    EXPECT_TRUE(runs_on_device(on_gpu(kind, DataType::uint32), true));
    EXPECT_TRUE(runs_on_device(on_gpu(kind, DataType::uint64), true));
  }
  EXPECT_FALSE(runs_on_device(on_gpu(allreduce, DataType::float32, ReduceOp::adasum), true));
  for (const DataType type : {DataType::int16, DataType::uint16}) {
    EXPECT_TRUE(runs_on_device(on_gpu(broadcast, type), true));
    EXPECT_TRUE(runs_on_device(on_gpu(allgather, type), true));
  }
}

}  // namespace

}  // namespace hora::internal
