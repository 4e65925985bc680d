/// Tensors as the views that collectives take, and back; hora's element types, devices and streams,
/// and LibTorch's.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>
#include <c10/util/StringUtil.h>
#include <hora/context.h>
#include <hora/error.h>
#include <hora/hora.h>
#include <hora/types.h>
#include <torch/types.h>

#include <new>
#include <optional>
#include <string>

namespace hora::internal {

/// Nothing where hora has no such type (complex, quantised, ...).
std::optional<DataType> to_data_type(c10::ScalarType type) noexcept;
/// Undefined for uint16, uint32 and uint64 before LibTorch 2.3, which has no such types.
c10::ScalarType to_scalar_type(DataType type) noexcept;

/// Throws Error(invalid_argument) for a device that is neither CPU nor CUDA.
Device to_device(const c10::Device& device);
c10::Device to_torch(const Device& device) noexcept;

/// Throws Error(invalid_argument) with the parts one after the other.
template <class... Parts>
[[noreturn]] void refuse_argument(const Parts&... parts) {
  throw Error(ErrorCode::invalid_argument, c10::str(parts...));
}

/// Throws Error(invalid_argument) "tensor "<name>": <parts>".
[[noreturn]] void refuse_named_tensor(const std::string& name, const std::string& what);
template <class... Parts>
[[noreturn]] void refuse_tensor(const std::string& name, const Parts&... parts) {
  refuse_named_tensor(name, c10::str(parts...));
}

/// Refuses undefined and sparse tensors.
void check_dense(const std::string& name, const torch::Tensor& tensor);

/// Views a contiguous tensor, on its device's current stream. Refuses types hora does not have.
TensorView view_of(const std::string& name, const torch::Tensor& contiguous);

/// The elements of a dense tensor in the order of its memory, which it shares: one dimension.
torch::Tensor in_memory_order(const torch::Tensor& dense);

/// A tensor on memory of `device`, which is `owner`'s (it is kept; null: the caller's). `strides`:
/// nothing for a row-major one. CUDA is not asked where the memory lies.
template <class Owner>
torch::Tensor tensor_on(const Owner& owner, void* data, c10::ScalarType type,
                        const c10::Device& device, at::IntArrayRef shape,
                        at::OptionalIntArrayRef strides = {}) {
  return at::for_blob(data, shape)
      .strides(strides)
      .deleter([owner](void*) {})
      .options(at::TensorOptions(type).device(device))
      .target_device(device)
      .make_tensor();
}

/// A tensor on the result's memory, which it keeps. Throws Error(invalid_argument) for a type that
/// LibTorch does not have.
torch::Tensor to_tensor(const Result& result);

/// Marks for autograd that the memory was written without it, so that a backward that saved the
/// old values fails instead of using the new ones.
void note_written(const torch::Tensor& tensor);

/// Keeps memory to which peers may still write: the owner's reference is not counted down again.
template <class Owner>
void never_free(const Owner& owner) noexcept {
  static_cast<void>(new (std::nothrow) Owner(owner));
}

/// Returns the tensor's own device where hora works there (the CPU, this rank's GPU), else this
/// rank's, to which LibTorch copies. One from which nothing can be copied there (GPUs in a job on
/// CPUs, meta) stays as it is: the collective refuses it.
at::Device working_device(const Context& context, const at::Device& device);

/// Itself where it is there already, without a call of LibTorch.
inline at::Tensor on_device(const at::Tensor& tensor, const at::Device& device) {
  return tensor.device() == device ? tensor : tensor.to(device);
}

/// Returns the device to work on these tensors together: theirs, or this rank's where they have
/// several. No tensors: the CPU.
at::Device working_device(const Context& context, at::TensorList tensors);

// LibTorch's streams, where it has CUDA: CMake selects cuda/cuda.cpp or no_cuda.cpp.

/// The stream that this thread gives work for `device` to; null for the CPU.
void* current_stream(const at::Device& device);

/// Where the context's GPU lacks memory for a result, LibTorch gives back what it caches there.
void share_device_memory(const Context& context);

/// The tensor's memory is not used again before `stream` has done what it holds by the time the
/// tensor is freed. Nothing to be done for the CPU.
void keep_for_stream(const at::Tensor& tensor, void* stream);

// The tensor arena: LibTorch's CPU tensors in memory that the ranks of the node share; memory/.

/// From now on until the context's shutdown(), where the settings want it: every CPU tensor of 64
/// KiB or more that LibTorch allocates, in any thread, lies in an arena, as long as that has room.
/// Others, and those of a forked child, are allocated as before. Tensors may outlive the context.
/// Does nothing the second time. Where the arena cannot be had, or the program has an allocator of
/// its own with a higher priority, tensors are copied: a warning says so where the setting is `on`.
/// Thread rule: no other thread allocates tensors during the first call of the process.
void start_tensor_arena(const Context& context);

/// Whether the byte at `data` lies in the arena that is open: the node's ranks reach it. Thread
/// rule: any thread.
bool in_tensor_arena(const void* data);

/// Whether start_tensor_arena() has one in mind: the same on all ranks, whether or not it could be
/// had.
bool wants_tensor_arena(const Context& context);

}  // namespace hora::internal
