#include <gtest/gtest.h>

#include "core/negotiation/signature.h"

namespace hora::internal {
namespace {

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
