#include "ops/cross/staging_space.h"

#include <new>

#include "core/base/checked.h"
#include "ops/local/kernels.h"

namespace hora::internal {

std::byte* HostSpace::allocate(std::size_t bytes) {
  return static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kAlignment}));
}

void HostSpace::release(std::byte* data) noexcept {
  ::operator delete (data, std::align_val_t{kAlignment});
}

Completion HostSpace::reduce(const Reduction& reduction, std::span<const std::byte* const> inputs,
                             std::byte* output, std::size_t count) {
  internal::reduce(reduction.type, reduction.op, inputs, {&output, 1}, count,
                   {.post = reduction.scale});
  return {};
}

Completion HostSpace::convert(DataType source, const std::byte* input, DataType target,
                              std::byte* output, std::size_t count) {
  internal::convert(source, input, target, output, count);
  return {};
}

HostSpace& host_space() noexcept {
  static HostSpace space;
  return space;
}

std::byte* WorkBuffer::reserve(std::size_t bytes) {
  if (bytes > capacity_) {
    data_.reset();  // first, so that both never exist at once
    capacity_ = 0;
    data_.reset(space_.allocate(bytes));
    capacity_ = bytes;
  }
  return data_.get();
}

}  // namespace hora::internal
