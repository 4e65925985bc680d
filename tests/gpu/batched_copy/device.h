/// The device that the tests of the kernels run on. CMake selects the source: real_device.cpp,
/// or fake_device.cpp, with which the tests themselves are tested where there is no GPU.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "ops/cuda/stream.h"

namespace hora::internal::test {

/// Empty where the device can be used; otherwise why not.
const char* missing_device();
const CudaFunctions& device();

/// Skips where the device cannot be used.
class KernelTest : public testing::Test {
 protected:
  void SetUp() override {
    if (*missing_device() != 0) GTEST_SKIP() << "no GPU here: " << missing_device();
  }
};

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
