/// Worlds of ranks with fake GPUs, and what the tests of collectives on them look at.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "tests/support/fake_gpu/gpu_world.h"
#include "tests/support/seed.h"

namespace hora::internal::test {

using Bytes = std::vector<std::byte>;
using Tensors = std::vector<std::unique_ptr<DeviceTensor>>;

inline GpuWorldOptions small_chunks(std::vector<int> nodes, std::chrono::milliseconds timeout) {
  GpuWorldOptions result{.node_sizes = std::move(nodes)};
  result.settings.chunk_size = 4096;
  result.settings.device_timeout = timeout;
  result.gpu.seed = seed();
  return result;
}

/// Where failures are to be, which are not logged.
inline GpuWorldOptions quiet(std::vector<int> nodes, std::chrono::milliseconds timeout) {
  GpuWorldOptions result = small_chunks(std::move(nodes), timeout);
  result.settings.small_message = 0;
  result.settings.log_level = LogLevel::off;
  return result;
}

/// One on each rank.
inline Tensors tensors_of(GpuWorld& world, const Bytes& bytes) {
  Tensors tensors;
  for (int rank = 0; rank < world.size(); ++rank) {
    tensors.push_back(std::make_unique<DeviceTensor>(world.gpu(rank), DataType::float32, bytes));
  }
  return tensors;
}

inline void expect_clean_end(GpuWorld& world) {
  EXPECT_THAT(world.complaints(), testing::IsEmpty());
  world.end();
  EXPECT_THAT(world.ranks_with_leftovers(), testing::IsEmpty());
  EXPECT_THAT(world.complaints(), testing::IsEmpty());
}

}  // namespace hora::internal::test
