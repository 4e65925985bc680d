/// On which device hora works on a tensor.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <hora/context.h>

namespace hora::internal {

/// The tensor's own device where hora works there: the CPU, and this rank's GPU. For a tensor on
/// another one this rank's device, to which LibTorch copies its values, and back. A device of which
/// nothing can be copied to this rank's (GPUs where the job is one on CPUs, meta) stays as it is:
/// the collective refuses it.
at::Device working_device(const Context& context, const at::Device& device);

/// Itself where it is there already, without a call of LibTorch.
inline at::Tensor on_device(const at::Tensor& tensor, const at::Device& device) {
  return tensor.device() == device ? tensor : tensor.to(device);
}

/// Returns the device to work on these tensors together: theirs, or this rank's where they have
/// several. No tensors: the CPU.
at::Device working_device(const Context& context, at::TensorList tensors);

}  // namespace hora::internal
