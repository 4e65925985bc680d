#include <hora/buffer.h>

#include <exception>
#include <utility>

#include "core/engine/runtime.h"

namespace hora {

Buffer::Buffer(const Context& context, std::size_t bytes)
    : runtime_(context.runtime()), data_(runtime_->memory().allocate(bytes).data), size_(bytes) {}

Buffer::Buffer(Buffer&& other) noexcept
    : runtime_(std::move(other.runtime_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(runtime_, other.runtime_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Buffer::~Buffer() {
  // While an exception unwinds, a dropped handle may leave a collective under way in this memory:
  // then it is not handed out again.
  if (data_ && std::uncaught_exceptions() == 0) runtime_->memory().release(data_);
}

}  // namespace hora
