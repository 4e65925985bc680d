/// Move-only owner of a CUDA stream.
#pragma once

#include "ops/cuda/functions.h"

namespace hora {

/// A stream that does not synchronise with the null stream. Destruction does not wait: work that
/// was enqueued still runs. Throws Error(transport) where CUDA fails.
/// Thread rule: one thread at a time; get() from any.
class Stream {
 public:
  Stream() noexcept = default;
  /// `priority` as CUDA counts: lower numbers go first, 0 is the default.
  Stream(const CudaFunctions& functions, int priority);
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;
  ~Stream();

  cudaStream_t get() const noexcept { return stream_; }

 private:
  void release() noexcept;

  const CudaFunctions* functions_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

}  // namespace hora
