/// The fixture of tests that need a GPU.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

namespace hora::internal::test {

/// Skips every test where CUDA finds no GPU; a program all of whose tests were skipped exits
/// with 77.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    const cudaError_t result = cudaGetDeviceCount(&count);
    if (result != cudaSuccess || count == 0) {
      static_cast<void>(cudaGetLastError());
      GTEST_SKIP() << "no GPU here: "
                   << (result == cudaSuccess ? "none is visible" : cudaGetErrorString(result));
    }
  }
};

}  // namespace hora::internal::test
