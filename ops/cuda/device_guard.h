/// The device that this thread's calls into CUDA go to.
#pragma once

#include "ops/cuda/check.h"

namespace hora {

/// Makes `device` this thread's current one, and in the end the former one again.
class DeviceGuard {
 public:
  DeviceGuard(const CudaFunctions& functions, int device) : functions_(functions), device_(device) {
    cuda_check(functions_, functions_.get_device(&before_), "cudaGetDevice");
    if (before_ != device_) set(device_);
  }
  ~DeviceGuard() {
    if (before_ != device_) {
      cuda_check_release(functions_, functions_.set_device(before_), "cudaSetDevice");
    }
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  void set(int device) { cuda_check(functions_, functions_.set_device(device), "cudaSetDevice"); }

  const CudaFunctions& functions_;
  int device_;
  int before_ = 0;
};

}  // namespace hora
