/// DeviceHeap on CUDA: memory from cudaMallocAsync, copies over a pinned block.
#pragma once

#include "core/engine/device.h"
#include "core/thread_safety.h"
#include "ops/cuda/event.h"
#include "ops/cuda/memory.h"

namespace hora {

/// Allocating and releasing do not wait for the GPU. The pinned block is taken with the first copy.
/// Thread rule: any thread; one copy at a time.
class StreamHeap final : public DeviceHeap {
 public:
  /// `own`: the stream that collectives run on. References outlive it, and so does the stream.
  StreamHeap(const CudaFunctions& cuda, int device, EventPool& events, cudaStream_t own)
      : cuda_(cuda), device_(device), events_(events), own_(own) {}

  std::byte* allocate(std::size_t bytes, std::optional<void*> stream) override;
  void release(std::byte* data, std::optional<void*> stream) noexcept override;
  void to_host(std::byte* host, const std::byte* data, std::size_t bytes, void* stream) override;
  void to_device(std::byte* data, const std::byte* host, std::size_t bytes, void* stream) override;

 private:
  cudaStream_t or_own(std::optional<void*> stream) const {
    return stream ? static_cast<cudaStream_t>(*stream) : own_;
  }
  std::byte* bounce() HORA_REQUIRES(copying_);
  void copy(std::byte* target, const std::byte* source, std::size_t bytes, cudaMemcpyKind kind,
            cudaStream_t stream);

  const CudaFunctions& cuda_;
  int device_;
  EventPool& events_;
  cudaStream_t own_;
  Mutex copying_;
  PinnedMemory bounce_ HORA_GUARDED_BY(copying_);
};

}  // namespace hora
