/// Memory that hora allocates: collectives on it copy nothing.
///
///     hora::Buffer buffer(world, 1000 * sizeof(float));
///     auto* values = reinterpret_cast<float*>(buffer.data());
///     hora::allreduce(world, hora::view(values, 1000), {.name = "values"});
#pragma once

#include <hora/context.h>
#include <hora/export.h>
#include <hora/types.h>

#include <cstddef>
#include <memory>

namespace HORA_EXPORT hora {

/// On the CPU a block of memory that this rank shares with its node, 64-byte aligned, zero when
/// allocated first and unspecified when reused; on CUDA memory that is registered with NCCL (the
/// allocation may wait for the device), unspecified. A collective on a view that lies inside works
/// in place, straight from and into it. Move-only; must not be destroyed while a handle on it is
/// open. On CUDA destruction waits for all work of the device, as cudaFree does, and has no place
/// inside a graph's capture. Throws Error(out_of_memory), and Error(invalid_argument) for a device
/// that is not this rank's and for more than 2^48 bytes. Thread rule: as a plain pointer;
/// construction and destruction from any thread.
class Buffer {
 public:
  Buffer() noexcept = default;
  Buffer(const Context& context, std::size_t bytes, const Device& device = {});
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  const Device& device() const noexcept { return device_; }

 private:
  std::shared_ptr<internal::Runtime> runtime_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  Device device_;
};

}  // namespace hora
