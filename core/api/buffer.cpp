#include <hora/buffer.h>
#include <hora/error.h>

#include <exception>
#include <string>
#include <utility>

#include "core/api/internals.h"
#include "core/api/requests.h"
#include "core/base/checked.h"
#include "core/engine/runtime.h"

namespace hora {
using namespace internal;

void Access::set_device_cache_release(const Context& context, void (*give_back)()) {
  if (DeviceHeap* const heap = runtime_of(context)->parts().device_heap) {
    heap->set_cache_release(give_back);
  }
}

Buffer::Buffer(const Context& context, std::size_t bytes, const Device& device)
    : runtime_(runtime_of(context)), size_(bytes), device_(device) {
  if (bytes > kMaxBytes) {
    throw Error(ErrorCode::invalid_argument,
                "a buffer of " + std::to_string(bytes) +
                    " bytes: at most 2^48, which is what a process can address",
                context.rank());
  }
  if (device == Device{}) {
    data_ = runtime_->memory().allocate(bytes).data;
    return;
  }
  Engine& engine = runtime_->engine();
  check_device(runtime_->parts(), device, "a buffer");
  data_ = engine.allocate_on_device(bytes);
}

Buffer::Buffer(Buffer&& other) noexcept
    : runtime_(std::move(other.runtime_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      device_(other.device_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(runtime_, other.runtime_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(device_, other.device_);
  return *this;
}

Buffer::~Buffer() {
  // While an exception unwinds, a dropped handle may leave a collective in flight on this memory:
  // then it is not reused.
  if (!data_ || std::uncaught_exceptions() > 0 || runtime_->is_forked()) return;
  if (device_.kind == DeviceKind::cpu) {
    runtime_->remaining_memory().release(data_);
  } else {
    runtime_->remaining_engine().release_on_device(data_);
  }
}

}  // namespace hora
