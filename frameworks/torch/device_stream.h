/// LibTorch's streams, where it has CUDA. CMake selects the source: cuda/device_stream.cpp or
/// no_cuda.cpp.
#pragma once

#include <ATen/core/Tensor.h>

namespace hora {

/// The stream that this thread gives work for `device` to; null for the CPU.
void* current_stream(const at::Device& device);

/// The tensor's memory is not used again before `stream` has done what it holds by the time the
/// tensor is freed. Nothing to be done for the CPU.
void keep_for_stream(const at::Tensor& tensor, void* stream);

}  // namespace hora
