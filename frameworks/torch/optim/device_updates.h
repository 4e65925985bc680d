/// Steps of parameters on GPUs: those that are the same become one kernel.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "frameworks/torch/optim/parameter_update.h"

namespace hora::internal {

/// Collects a step's updates. Thread rule: one thread at a time.
class DeviceUpdates {
 public:
  virtual ~DeviceUpdates() = default;
  /// `update` of `parameter`, whose gradient lies like it and is kept until run().
  virtual void add(const ParameterUpdate& update, const at::Tensor& parameter) = 0;
  /// Enqueues them all on the current streams of their devices. Throws Error(transport).
  virtual void run() = 0;
};

/// None where this build has no kernels for the device.
std::unique_ptr<DeviceUpdates> make_device_updates(const at::Device& device);

}  // namespace hora::internal
