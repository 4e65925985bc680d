#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>

#include "core/api/internals.h"
#include "frameworks/torch/tensor_view.h"

namespace hora::internal {

void* current_stream(const at::Device& device) {
  return device.is_cuda() ? c10::cuda::getCurrentCUDAStream(device.index()).stream() : nullptr;
}

void share_device_memory(const Context& context) {
  Access::set_device_cache_release(context, [] {
    try {
      c10::cuda::CUDACachingAllocator::emptyCache();
    } catch (const std::exception&) {
      // As during a capture; then there is no more memory than there is.
    }
  });
}

void keep_for_stream(const at::Tensor& tensor, void* stream) {
  if (!tensor.is_cuda()) return;
  const c10::DataPtr& memory = tensor.storage().data_ptr();
  // hora's memory (and a program's own), of which not every allocator of LibTorch's takes a record.
  if (memory.get_deleter() != c10::cuda::CUDACachingAllocator::get()->raw_deleter()) return;
  c10::cuda::CUDACachingAllocator::recordStream(
      memory,
      c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(stream), tensor.device().index()));
}

}  // namespace hora::internal
