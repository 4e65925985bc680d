/// A block of memory on the device that tests of kernels run on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "ops/cuda/stream.h"
#include "tests/gpu/batched_copy/device.h"

namespace hora::internal::test {

inline void check(cudaError_t result) {
  cuda_check(device(), result, "a call of the test");
}

/// `memory` as `launch(its copy on the device, stream)` leaves it.
template <class Launch>
std::vector<std::byte> on_device(const std::vector<std::byte>& memory, Launch&& launch) {
  const CudaStream stream(device(), 0);
  const DeviceMemory block(device(), memory.size());
  const PinnedMemory host(device(), memory.size());
  std::copy(memory.begin(), memory.end(), host.data());
  const auto copy = [&](std::byte* target, const std::byte* source) {
    check(device().memcpy_async(target, source, memory.size(), cudaMemcpyDefault, stream.get()));
  };
  copy(block.data(), host.data());
  launch(block.data(), stream.get());
  copy(host.data(), block.data());
  check(device().stream_synchronize(stream.get()));
  return {host.data(), host.data() + memory.size()};
}

}  // namespace hora::internal::test
