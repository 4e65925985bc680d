/// A rank of the fake NCCL's tests.
#pragma once

#include <gtest/gtest.h>

#include <chrono>

#include "ops/cuda/stream.h"
#include "ops/nccl/communicator.h"
#include "tests/support/fake_gpu/fake_gpu.h"
#include "tests/support/fake_gpu/ranks.h"
#include "tests/support/seed.h"

namespace hora::internal::test {

/// A rank of these tests.
struct NcclRank {
  NcclRank(Ranks& ranks, int number)
      : gpu(ranks.gpu(number)),
        nccl(gpu.nccl()),
        stream(gpu.cuda(), 0),
        memory(gpu.cuda(), 64 * sizeof(double)),
        communicator(ranks.communicator(number)) {
    communicator.wait_ready(far_away());
  }
  float* values() const { return reinterpret_cast<float*>(memory.data()); }
  ncclResult_t all_reduce(std::size_t count, ncclDataType_t type = ncclFloat32,
                          ncclRedOp_t op = ncclSum) {
    return nccl.all_reduce(memory.data(), memory.data(), count, type, op, communicator.get(),
                           stream.get());
  }
  void finish() {
    communicator.wait_ready(far_away());
    EXPECT_EQ(gpu.cuda().stream_synchronize(stream.get()), cudaSuccess);
  }
  FakeGpu& gpu;
  const NcclFunctions& nccl;
  CudaStream stream;
  DeviceMemory memory;
  NcclCommunicator communicator;
};

inline FakeGpuOptions with_delays() {
  return {.seed = seed(), .longest_delay = std::chrono::microseconds(300)};
}

}  // namespace hora::internal::test
