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

/// On the CPU memory shared with the node, 64-byte aligned, zero at first and unspecified when
/// reused; on CUDA registered with NCCL, unspecified. Collectives on views inside work in place.
/// Must outlive handles on it. On CUDA destruction waits for all work of the device, as cudaFree
/// does, and is not for a graph's capture. Throws Error(out_of_memory), and Error(invalid_argument)
/// for another rank's device or more than 2^48 bytes. Thread rule: as a plain pointer; construction
/// and destruction from any thread.
class Buffer {
 public:
  Buffer() noexcept = default;
  Buffer(const Context& context, std::size_t bytes, const Device& device = {});
  Buffer(Buffer&& other) noexcept { *this = static_cast<Buffer&&>(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  const Device& device() const noexcept { return device_; }

 private:
  std::shared_ptr<internal::Engine> engine_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  Device device_;
};

}  // namespace hora
