#include "frameworks/torch/memory/tensor_arena.h"

#include <hora/error.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "core/api/internals.h"
#include "core/base/diagnostics.h"

namespace hora::internal {
namespace {

constexpr std::size_t kFirstSegment = std::size_t{64} << 20;

std::uintptr_t address(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data);
}

}  // namespace

TensorArena::TensorArena(const Context& context, std::size_t limit) : limit_(limit) {
  const LockGuard lock(mutex_);
  add_segment(context, std::min(kFirstSegment, limit));
  context_ = Access::context(engine_of(context));  // last: unwinding, it would end the job
}

void TensorArena::add_segment(const Context& context, std::size_t bytes) {
  const Buffer& segment = segments_.emplace_back(context, bytes);
  blocks_.add_segment(bytes);
  bytes_ += bytes;
  lowest_ = std::min(lowest_.load(), address(segment.data()));
  highest_ = std::max(highest_.load(), address(segment.data()) + bytes);
}

bool TensorArena::grow(std::size_t bytes) {
  const std::size_t wanted = arena_class(bytes);
  if (full_ || wanted > limit_ - std::min(bytes_, limit_)) return false;
  // A quarter of what there is: few segments, and little of them unused.
  const std::size_t length =
      std::min(std::max({wanted, bytes_ / 4, kFirstSegment}), limit_ - bytes_);
  std::string why;
  if (try_to_add(length, why) || (wanted < length && try_to_add(wanted, why))) return true;
  full_ = true;
  if (!why.empty()) {
    log_warning("tensor arena: it stays at " + std::to_string(bytes_ >> 20) +
                " MiB, and further tensors are copied to be averaged (HORA_TENSOR_ARENA_LIMIT is "
                "larger than what there is): " +
                why);
  }
  return false;
}

bool TensorArena::try_to_add(std::size_t bytes, std::string& why) {
  try {
    add_segment(*context_, bytes);
    return true;
  } catch (const Error& error) {
    why = error.code() == ErrorCode::shut_down ? "" : error.what();
    return false;
  }
}

std::byte* TensorArena::allocate(std::size_t bytes) {
  const LockGuard lock(mutex_);
  if (!context_ || Access::has_failed(*context_)) return nullptr;
  auto block = blocks_.allocate(bytes);
  if (!block && grow(bytes)) block = blocks_.allocate(bytes);
  if (!block) return nullptr;
  std::byte* const data = segments_[block->segment].data() + block->offset;
  uses_.emplace(data, Use{*block, bytes});
  return data;
}

bool TensorArena::holds(const void* data) const noexcept {
  if (!spans(data)) return false;
  const LockGuard lock(mutex_);
  return std::any_of(segments_.begin(), segments_.end(), [data](const Buffer& segment) {
    return address(data) - address(segment.data()) < segment.size();
  });
}

bool TensorArena::release(void* data) noexcept {
  if (!spans(data)) return false;
  std::vector<Buffer> unused;
  const LockGuard lock(mutex_);
  const auto use = uses_.find(data);
  if (use == uses_.end()) return false;
  // A dropped handle may leave a collective in flight on this memory.
  if (context_ && std::uncaught_exceptions() > 0) return true;
  blocks_.release(use->second.block, use->second.bytes);
  uses_.erase(use);
  unused = unused_segments();
  return true;
}

void TensorArena::close() noexcept {
  std::optional<Context> context;
  std::vector<Buffer> unused;
  const LockGuard lock(mutex_);
  context.swap(context_);
  unused = unused_segments();
}

std::vector<Buffer> TensorArena::unused_segments() {
  if (context_ || blocks_.blocks_in_use() != 0) return {};
  blocks_ = {};
  lowest_ = UINTPTR_MAX;
  highest_ = 0;
  return std::exchange(segments_, {});
}

}  // namespace hora::internal
