/// Memory that a node's ranks share, so that collectives on it copy nothing.
#pragma once

#include <hora/context.h>

#include <cstddef>
#include <memory>

namespace hora {

/// A block of shared memory of this rank, 64-byte aligned, zero when allocated first and
/// unspecified when reused. A collective on a view that lies inside works in place, straight from
/// and into it. Move-only; must not be destroyed while a handle on it is open. Throws
/// Error(out_of_memory). Thread rule: as a plain pointer; construction and destruction from any
/// thread.
class Buffer {
 public:
  Buffer() noexcept = default;
  Buffer(const Context& context, std::size_t bytes);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

 private:
  std::shared_ptr<Runtime> runtime_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace hora
