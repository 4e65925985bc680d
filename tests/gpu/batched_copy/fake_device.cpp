#include "tests/gpu/batched_copy/device.h"
#include "tests/support/fake_gpu/fake_gpu.h"

namespace hora::internal::test {

const char* missing_device() {
  return "";
}

const CudaFunctions& device() {
  static FakeNcclWorld world;
  static const FakeGpu gpu(world);
  return gpu.cuda();
}

}  // namespace hora::internal::test
