/// Memory on the GPU and host memory that it can use: owners, and the heap that collectives take
/// from.
#pragma once

#include <atomic>
#include <cstddef>

#include "core/base/sync.h"
#include "core/engine/interfaces.h"
#include "ops/cuda/functions.h"
#include "ops/cuda/stream.h"

namespace hora::internal {

struct ReleaseDeviceMemory {
  using Handle = void*;
  static constexpr auto function = &CudaFunctions::free;
  static constexpr auto name = "cudaFree";
};
struct ReleasePinnedMemory {
  using Handle = void*;
  static constexpr auto function = &CudaFunctions::free_host;
  static constexpr auto name = "cudaFreeHost";
};

/// Allocating and freeing synchronise with the GPU: not for the steady state. Nothing is allocated
/// for 0 bytes. Thread rule: one thread at a time.
template <class Release>
class CudaMemory {
 public:
  CudaMemory() noexcept = default;

  std::byte* data() const noexcept { return static_cast<std::byte*>(memory_.get()); }
  std::size_t bytes() const noexcept { return memory_.get() ? bytes_ : 0; }

 protected:
  CudaMemory(const CudaFunctions& functions, void* memory, std::size_t bytes) noexcept
      : memory_(functions, memory), bytes_(bytes) {}

 private:
  Owned<Release> memory_;
  std::size_t bytes_ = 0;
};

/// Memory of the GPU.
class DeviceMemory : public CudaMemory<ReleaseDeviceMemory> {
 public:
  DeviceMemory() noexcept = default;
  /// Throws Error(out_of_memory) naming the bytes.
  DeviceMemory(const CudaFunctions& functions, std::size_t bytes);
};

/// Host memory that the GPU reads and writes directly (page-locked).
class PinnedMemory : public CudaMemory<ReleasePinnedMemory> {
 public:
  PinnedMemory() noexcept = default;
  /// Throws Error(out_of_memory) naming the bytes.
  PinnedMemory(const CudaFunctions& functions, std::size_t bytes);
};

/// Memory in stream order, apart from the device's default pool, which is the program's and its
/// libraries'. What is freed stays in the pool, where the default one gives it back to the system
/// at each synchronisation. Thread rule: any thread.
class MemoryPool {
 public:
  MemoryPool() noexcept = default;
  /// Of `device`. Throws Error(transport), as where the device has no pools.
  MemoryPool(const CudaFunctions& functions, int device);

  cudaMemPool_t get() const noexcept { return pool_.get(); }

 private:
  struct Release {
    using Handle = cudaMemPool_t;
    static constexpr auto function = &CudaFunctions::mem_pool_destroy;
    static constexpr auto name = "cudaMemPoolDestroy";
  };
  Owned<Release> pool_;
};

/// Allocating and releasing do not wait for the GPU. The pool is made with the first allocation,
/// the pinned block with the first copy. Thread rule: any thread; one copy at a time.
class StreamHeap final : public DeviceHeap {
 public:
  /// `own`: the stream that collectives run on. References outlive it, and so does the stream.
  StreamHeap(const CudaFunctions& cuda, int device, EventPool& events, cudaStream_t own)
      : cuda_(cuda), device_(device), events_(events), own_(own) {}

  std::byte* allocate(std::size_t bytes, std::optional<void*> stream) override;
  void release(std::byte* data, std::optional<void*> stream) noexcept override;
  void to_host(std::byte* host, const std::byte* data, std::size_t bytes, void* stream) override;
  void to_device(std::byte* data, const std::byte* host, std::size_t bytes, void* stream) override;
  void set_cache_release(void (*give_back)()) noexcept override { cache_release_.store(give_back); }

 private:
  cudaStream_t or_own(std::optional<void*> stream) const {
    return stream ? static_cast<cudaStream_t>(*stream) : own_;
  }
  cudaMemPool_t pool();
  std::byte* bounce() HORA_REQUIRES(copying_);
  void copy(std::byte* target, const std::byte* source, std::size_t bytes, cudaMemcpyKind kind,
            cudaStream_t stream);

  const CudaFunctions& cuda_;
  int device_;
  EventPool& events_;
  cudaStream_t own_;
  std::atomic<void (*)()> cache_release_{nullptr};
  Mutex making_;
  MemoryPool pool_ HORA_GUARDED_BY(making_);
  Mutex copying_;
  PinnedMemory bounce_ HORA_GUARDED_BY(copying_);
};

}  // namespace hora::internal
