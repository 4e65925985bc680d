/// The parts of the table of a fake GPU's CUDA functions.
#pragma once

#include <string_view>

#include "tests/support/fake_gpu/fake_device.h"

namespace hora::internal::test {

template <class Body>
cudaError_t made(FakeDevice& device, std::string_view call, Body body) {
  const cudaError_t error = device.begin(call);
  return device.end(error != cudaSuccess ? error : body());
}

/// Takes place even where the script says that it fails.
template <class Body>
cudaError_t released(FakeDevice& device, std::string_view call, Body body) {
  const cudaError_t error = device.begin(call);
  const cudaError_t done = body();
  return device.end(error != cudaSuccess ? error : done);
}

/// hora's own kernels.
void add_kernels(CudaFunctions& table, FakeDevice& device);
/// Pools, and allocations from them. There is no call that gives the default pool.
void add_pools(CudaFunctions& table, FakeDevice& device);

}  // namespace hora::internal::test
