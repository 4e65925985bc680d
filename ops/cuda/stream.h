/// Move-only owner of a CUDA stream.
#pragma once

#include "ops/cuda/owned.h"

namespace hora {

/// Before the application's kernels that wait for a place on the device.
inline constexpr int kUrgentPriority = -1;

/// A stream that does not synchronise with the null stream. Destruction does not wait: work that
/// was enqueued still runs. Throws Error(transport) where CUDA fails.
/// Thread rule: one thread at a time; get() from any.
class CudaStream {
 public:
  CudaStream() noexcept = default;
  /// `priority` as CUDA counts: lower numbers go first, 0 is the default.
  CudaStream(const CudaFunctions& functions, int priority);

  cudaStream_t get() const noexcept { return stream_.get(); }

 private:
  struct Release {
    using Handle = cudaStream_t;
    static constexpr auto function = &CudaFunctions::stream_destroy;
    static constexpr auto name = "cudaStreamDestroy";
  };
  Owned<Release> stream_;
};

}  // namespace hora
