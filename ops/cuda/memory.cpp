#include "ops/cuda/memory.h"

#include <hora/error.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "ops/cuda/stream.h"

namespace hora::internal {
namespace {

template <class Allocate>
void* allocated(const CudaFunctions& functions, std::size_t bytes, const char* call,
                Allocate allocate) {
  void* data = nullptr;
  if (bytes == 0) return data;
  const cudaError_t result = allocate(&data);
  if (result != cudaSuccess) {
    throw_cuda_error(functions, result,
                     std::string(call) + " of " + std::to_string(bytes) + " bytes");
  }
  return data;
}

}  // namespace

DeviceMemory::DeviceMemory(const CudaFunctions& functions, std::size_t bytes)
    : CudaMemory(functions,
                 allocated(functions, bytes, "cudaMalloc",
                           [&](void** data) { return functions.malloc(data, bytes); }),
                 bytes) {}

PinnedMemory::PinnedMemory(const CudaFunctions& functions, std::size_t bytes)
    : CudaMemory(functions,
                 allocated(functions, bytes, "cudaHostAlloc",
                           [&](void** data) {
                             return functions.host_alloc(data, bytes, cudaHostAllocDefault);
                           }),
                 bytes) {}

MemoryPool::MemoryPool(const CudaFunctions& functions, int device) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, device};
  cudaMemPool_t pool = nullptr;
  cuda_check(functions, functions.mem_pool_create(&pool, &properties), "cudaMemPoolCreate");
  pool_ = Owned<Release>(functions, pool);
  auto threshold = std::numeric_limits<std::uint64_t>::max();
  cuda_check(functions,
             functions.mem_pool_set_attribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold),
             "cudaMemPoolSetAttribute");
}

namespace {

/// Copies longer than this go in steps: at 50 GB/s, 80 us each, far more than starting one takes.
constexpr std::size_t kBounceBytes = std::size_t{4} << 20;

}  // namespace

cudaMemPool_t StreamHeap::pool() {
  const LockGuard lock(making_);
  if (!pool_.get()) pool_ = MemoryPool(cuda_, device_);
  return pool_.get();
}

std::byte* StreamHeap::allocate(std::size_t bytes, std::optional<void*> stream) {
  if (bytes == 0) return nullptr;
  const DeviceGuard device(cuda_, device_);
  cudaMemPool_t const from = pool();
  void* data = nullptr;
  const auto take = [&] {
    return cuda_.malloc_from_pool_async(&data, bytes, from, or_own(stream));
  };
  cudaError_t error = take();
  if (error == cudaErrorMemoryAllocation) {
    cuda_.get_last_error();
    // Blocks too small for this one, as far as the host has seen their streams pass them.
    cuda_check_release(cuda_, cuda_.mem_pool_trim_to(from, 0), "cudaMemPoolTrimTo");
    if (const auto release = cache_release_.load()) release();
    error = take();
  }
  if (error == cudaErrorMemoryAllocation) {
    cuda_.get_last_error();
    throw Error(ErrorCode::out_of_memory,
                "cudaMallocFromPoolAsync of " + std::to_string(bytes) +
                    " bytes for a result failed: " + cuda_.get_error_string(error));
  }
  cuda_check(cuda_, error, "cudaMallocFromPoolAsync");
  return static_cast<std::byte*>(data);
}

void StreamHeap::release(std::byte* data, std::optional<void*> stream) noexcept {
  if (!data) return;
  try {
    const DeviceGuard device(cuda_, device_);
    cuda_check_release(cuda_, cuda_.free_async(data, or_own(stream)), "cudaFreeAsync");
  } catch (const Error&) {
    // CUDA has failed; its memory cannot be freed.
  }
}

std::byte* StreamHeap::bounce() {
  if (!bounce_.data()) bounce_ = PinnedMemory(cuda_, kBounceBytes);
  return bounce_.data();
}

void StreamHeap::copy(std::byte* target, const std::byte* source, std::size_t bytes,
                      cudaMemcpyKind kind, cudaStream_t stream) {
  cuda_check(cuda_, cuda_.memcpy_async(target, source, bytes, kind, stream),
             "cudaMemcpyAsync of an exchange");
  const auto there = events_.take();
  there->record(stream);
  there->synchronize();
}

void StreamHeap::to_host(std::byte* host, const std::byte* data, std::size_t bytes, void* stream) {
  const LockGuard lock(copying_);
  const DeviceGuard device(cuda_, device_);
  refuse_capture(cuda_, static_cast<cudaStream_t>(stream), "a collective over host memory");
  for (std::size_t done = 0; done < bytes; done += kBounceBytes) {
    const std::size_t step = std::min(kBounceBytes, bytes - done);
    copy(bounce(), data + done, step, cudaMemcpyDeviceToHost, static_cast<cudaStream_t>(stream));
    std::memcpy(host + done, bounce(), step);
  }
}

void StreamHeap::to_device(std::byte* data, const std::byte* host, std::size_t bytes,
                           void* stream) {
  const LockGuard lock(copying_);
  const DeviceGuard device(cuda_, device_);
  refuse_capture(cuda_, static_cast<cudaStream_t>(stream), "wait() for a result in host memory");
  for (std::size_t done = 0; done < bytes; done += kBounceBytes) {
    const std::size_t step = std::min(kBounceBytes, bytes - done);
    std::memcpy(bounce(), host + done, step);
    copy(data + done, bounce(), step, cudaMemcpyHostToDevice, static_cast<cudaStream_t>(stream));
  }
}

}  // namespace hora::internal
