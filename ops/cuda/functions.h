/// The calls into CUDA that hora makes, as a table: tests put a fake device in its place. The one
/// place where their results are checked; owners of handles; and which files of CUDA's runtime and
/// of NCCL this process has loaded, of which it must share LibTorch's: streams and communicators of
/// one copy mean nothing to another. A copy linked in statically does not show.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <hora/export.h>
#include <hora/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "ops/local/kernel_table.h"

namespace hora::internal {

/// `elements` values from `source` to `target`; a null source stands for zeros. Both aligned to
/// their element size; pieces do not overlap, but a piece may be its own target.
struct CopyPiece {
  const void* source = nullptr;
  void* target = nullptr;
  std::int64_t elements = 0;
};

/// target[i] = convert(source[i] * scale), for every piece, in one kernel (several for many
/// pieces). Equal types with scale 1 and no flag are copied; from uint8 to boolean, unscaled, every
/// byte but 0 becomes 1; else both are floating-point types, and the product is rounded once to
/// nearest even. A source may be its own target where the types are equal.
struct BatchedCopy {
  std::span<const CopyPiece> pieces;
  DataType source_type = DataType::float32;
  DataType target_type = DataType::float32;
  double scale = 1.0;
  /// An element of the target's type that becomes 1 where a product is NaN, infinite, or of a
  /// magnitude above `limit`, and otherwise stays as it is; null: products are not checked.
  void* flag = nullptr;
  double limit = std::numeric_limits<double>::max();
};

/// A copy of bits, whatever they mean.
inline bool is_plain(const BatchedCopy& copy) {
  return copy.source_type == copy.target_type && copy.scale == 1.0 && copy.flag == nullptr;
}

/// output[i] = round((inputs[0][i] op inputs[1][i] op ..) * scale), i in [0, count): the bits of
/// ops/local's reduce() but for a NaN's payload. One input without scale, unless of booleans, is
/// copied. The output may be an input; all are aligned to the element size. Not for Adasum.
struct DeviceReduction {
  static constexpr std::size_t kMaximumInputs = 480;  ///< as many fit into a kernel's parameters

  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;  ///< average: its factor is in `scale`
  std::span<const std::byte* const> inputs;
  std::byte* output = nullptr;
  std::int64_t count = 0;
  double scale = 1.0;
};

/// One tensor of an optimizer's step, as ops/local's UpdateMemory says.
struct UpdatePiece {
  void* parameter = nullptr;
  const void* gradient = nullptr;
  void* state[3] = {};
  std::int64_t elements = 0;
};

/// The same step of every piece, in one kernel (several where there are many pieces), with the bits
/// of ops/local's update(). Of float32 or float64, aligned to their size; nothing overlaps.
struct BatchedUpdate {
  std::span<const UpdatePiece> pieces;
  DataType type = DataType::float32;
  std::variant<SgdStep, AdamStep> step;
};

/// Members are named after the CUDA runtime's functions (ctx_get_current: the driver's) without
/// their prefix, with the same arguments, results and thread rules. Never empty where hora uses
/// them.
struct CudaFunctions {
  std::function<const char*(cudaError_t)> get_error_string;
  std::function<cudaError_t()> get_last_error;  ///< clears it
  std::function<cudaError_t(int*)> get_device_count;
  std::function<cudaError_t(int*)> get_device;
  std::function<cudaError_t(int)> set_device;  ///< makes the device's primary context
  /// Null where the thread has no current context: it has chosen no device, and no call of it has
  /// made the first one current.
  std::function<CUresult(CUcontext*)> ctx_get_current;
  std::function<cudaError_t()> device_synchronize;
  std::function<cudaError_t(cudaDeviceProp*, int device)> get_device_properties;
  std::function<cudaError_t(char* id, int length, int device)> device_get_pci_bus_id;

  std::function<cudaError_t(cudaStream_t*, unsigned flags, int priority)> stream_create;
  std::function<cudaError_t(cudaStream_t)> stream_destroy;
  std::function<cudaError_t(cudaStream_t)> stream_synchronize;
  std::function<cudaError_t(cudaStream_t, cudaEvent_t, unsigned flags)> stream_wait_event;
  std::function<cudaError_t(cudaStream_t, cudaStreamCaptureStatus*)> stream_is_capturing;
  std::function<cudaError_t(cudaStreamCaptureMode*)> thread_exchange_stream_capture_mode;

  std::function<cudaError_t(cudaEvent_t*, unsigned flags)> event_create;
  std::function<cudaError_t(cudaEvent_t)> event_destroy;
  std::function<cudaError_t(cudaEvent_t, cudaStream_t)> event_record;
  std::function<cudaError_t(cudaEvent_t)> event_query;
  std::function<cudaError_t(cudaEvent_t)> event_synchronize;
  std::function<cudaError_t(float* milliseconds, cudaEvent_t, cudaEvent_t)> event_elapsed_time;

  std::function<cudaError_t(void**, std::size_t, unsigned flags)> host_alloc;
  std::function<cudaError_t(void*)> free_host;
  std::function<cudaError_t(void**, std::size_t)> malloc;
  std::function<cudaError_t(void*)> free;
  std::function<cudaError_t(cudaMemPool_t*, const cudaMemPoolProps*)> mem_pool_create;
  std::function<cudaError_t(cudaMemPool_t)> mem_pool_destroy;
  std::function<cudaError_t(cudaMemPool_t, cudaMemPoolAttr, void* value)> mem_pool_set_attribute;
  std::function<cudaError_t(cudaMemPool_t, std::size_t kept)> mem_pool_trim_to;
  std::function<cudaError_t(void**, std::size_t, cudaMemPool_t, cudaStream_t)>
      malloc_from_pool_async;
  std::function<cudaError_t(void*, cudaStream_t)> free_async;
  std::function<cudaError_t(void* target, const void* source, std::size_t, cudaMemcpyKind,
                            cudaStream_t)>
      memcpy_async;
  std::function<cudaError_t(void*, int value, std::size_t, cudaStream_t)> memset_async;

  /// hora's own kernels.
  std::function<cudaError_t(const BatchedCopy&, cudaStream_t)> batched_copy;
  std::function<cudaError_t(const DeviceReduction&, cudaStream_t)> device_reduce;
  std::function<cudaError_t(const BatchedUpdate&, cudaStream_t)> batched_update;
};

/// The CUDA runtime.
HORA_EXPORT const CudaFunctions& cuda_runtime();

/// Throws Error(transport) "<call> failed: <CUDA's text> (error N)", or Error(out_of_memory) where
/// memory was lacking, and clears CUDA's last error, so that the application's next check of it
/// does not see hora's error. `call` as in "cudaEventRecord".
[[noreturn]] HORA_EXPORT void throw_cuda_error(const CudaFunctions& functions, cudaError_t result,
                                               std::string_view call);

/// The text is put together only where the call has failed.
inline void cuda_check(const CudaFunctions& functions, cudaError_t result, std::string_view call) {
  if (result != cudaSuccess) [[unlikely]] {
    throw_cuda_error(functions, result, call);
  }
}

/// For destructors: a failure is logged at debug level and cleared.
void cuda_check_release(const CudaFunctions& functions, cudaError_t result,
                        std::string_view call) noexcept;

/// `Release` says how a handle is freed: its type `Handle`, the member `function` of
/// CudaFunctions, and that function's `name`. Freed once; a failure of that is logged, not
/// thrown. Thread rule: one thread at a time; get() from any.
template <class Release>
class Owned {
 public:
  using Handle = typename Release::Handle;

  Owned() noexcept = default;
  /// `functions` outlive it. A null handle owns nothing.
  Owned(const CudaFunctions& functions, Handle handle) noexcept
      : functions_(&functions), handle_(handle) {}
  Owned(Owned&& other) noexcept
      : functions_(other.functions_), handle_(std::exchange(other.handle_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    if (this != &other) {
      release();
      functions_ = other.functions_;
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~Owned() { release(); }

  Handle get() const noexcept { return handle_; }
  const CudaFunctions& functions() const noexcept { return *functions_; }

 private:
  void release() noexcept {
    if (handle_ == nullptr) return;
    cuda_check_release(*functions_,
                       (functions_->*Release::function)(std::exchange(handle_, nullptr)),
                       Release::name);
  }

  const CudaFunctions* functions_ = nullptr;
  Handle handle_ = nullptr;
};

/// Empty where not loaded.
struct LoadedLibraries {
  std::string cuda_runtime;
  std::string nccl;
};

/// Whether `path` is `library` ("libnccl"): its name, a checksum where a package has added one, and
/// ".so", with or without a version. Plug-ins such as libnccl-net.so are other libraries. Pure.
bool is_library(std::string_view path, std::string_view library);

/// The only one of the files, if any. Throws Error(invalid_use) that names two of them. Pure.
std::string only_copy(const std::vector<std::string>& files, std::string_view title);

/// The files that this process has loaded, one of each. Throws Error(invalid_use) for two.
LoadedLibraries check_one_copy();

}  // namespace hora::internal
