/// The device that the tests of the kernels run on. CMake selects the source: real_device.cpp,
/// or fake_device.cpp, with which the tests themselves are tested where there is no GPU.
#pragma once

#include "ops/cuda/functions.h"

namespace hora::internal::test {

/// Empty where the device can be used; otherwise why not.
const char* missing_device();
const CudaFunctions& device();

}  // namespace hora::internal::test
