#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <hora/buffer.h>
#include <hora/error.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/api/internals.h"
#include "core/base/checked.h"
#include "core/base/diagnostics.h"
#include "core/base/sync.h"
#include "frameworks/torch/tensor_view.h"
#include "ops/shm/shared_memory.h"

namespace hora::internal {
namespace {

constexpr std::size_t kFirstSegment = std::size_t{64} << 20;

/// The smallest tensors whose copy costs more than reaching them one by one.
constexpr std::size_t kLeastBytes = std::size_t{64} << 10;

std::uintptr_t address(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data);
}

/// Returns the length of the blocks that serve `bytes` bytes: eight classes from one power of two
/// to the next, so that at most an eighth is unused and sizes that are nearly equal share blocks.
std::size_t class_of(std::size_t bytes) {
  const std::size_t step = std::bit_floor(std::max<std::size_t>(bytes, 1)) / 8;
  return align_up(bytes, std::max<std::size_t>(step, kAlignment));
}

/// Grows by segments, each a hora::Buffer, up to its limit or as far as the machine has memory, and
/// keeps them: memory that was used once causes no page faults when it is used again. A step of
/// training frees and wants the same sizes as the step before: a released block is kept as it is
/// for the next of its class, the one released last first, which is in the cache. Its blocks may
/// outlive the context, and it must outlive them. Thread rule: any thread.
class TensorArena {
 public:
  /// `limit`: bytes of all segments. `its_older`: the arena of the context before, of which tensors
  /// may still live. Throws what hora::Buffer throws where the first segment, which is at most as
  /// long, cannot be had; the context goes on.
  TensorArena(const Context& context, std::size_t limit, TensorArena* its_older)
      : older(its_older), limit_(limit) {
    const LockGuard lock(mutex_);
    add_segment(context, std::min(kFirstSegment, limit));
    context_ = Access::context(engine_of(context));  // last: unwinding, it would end the job
  }
  TensorArena(const TensorArena&) = delete;
  TensorArena& operator=(const TensorArena&) = delete;

  /// 64-byte aligned, unspecified; null where there is no room, and where a collective has failed:
  /// peers may still write to what was freed.
  std::byte* allocate(std::size_t bytes) {
    const LockGuard lock(mutex_);
    if (!context_ || Access::has_failed(*context_)) return nullptr;
    const std::size_t length = class_of(bytes);
    auto block = take(length);
    if (!block && grow(length)) block = take(length);
    if (!block) return nullptr;
    std::byte* const data = segments_[block->segment].data() + block->offset;
    uses_.emplace(data, Use{*block, length});
    return data;
  }

  /// False where `data` is not of this arena. While an exception unwinds the stack before close(),
  /// the block is not used again, as hora::Buffer's.
  bool release(void* data) noexcept {
    if (!spans(data)) return false;
    std::vector<Buffer> unused;
    const LockGuard lock(mutex_);
    const auto use = uses_.find(data);
    if (use == uses_.end()) return false;
    // A dropped handle may leave a collective in flight on this memory.
    if (context_ && std::uncaught_exceptions() > 0) return true;
    kept_[use->second.length].push_back(use->second.block);
    uses_.erase(use);
    unused = unused_segments();
    return true;
  }

  /// Whether the byte at `data` lies in one of the segments.
  bool holds(const void* data) const noexcept {
    if (!spans(data)) return false;
    const LockGuard lock(mutex_);
    return std::any_of(segments_.begin(), segments_.end(), [data](const Buffer& segment) {
      return address(data) - address(segment.data()) < segment.size();
    });
  }

  /// Whether `data` may be of this arena; takes no lock.
  bool spans(const void* data) const noexcept {
    return address(data) >= lowest_ && address(data) < highest_;
  }

  /// Nothing is allocated from now on; the memory is given up with the last block. While the
  /// context's shutdown() runs.
  void close() noexcept {
    std::optional<Context> context;
    std::vector<Buffer> unused;
    const LockGuard lock(mutex_);
    context.swap(context_);
    unused = unused_segments();
  }

  TensorArena* const older;

 private:
  using Block = BlockAllocator::SegmentBlock;
  struct Use {
    Block block;
    std::size_t length;
  };

  std::optional<Block> take(std::size_t length) HORA_REQUIRES(mutex_) {
    auto& kept = kept_[length];
    if (!kept.empty()) {
      const Block block = kept.back();
      kept.pop_back();
      return block;
    }
    if (const auto block = blocks_.allocate(length)) return block;
    // Only now kept blocks are joined with their neighbours, and cut anew.
    for (auto& [each, blocks] : kept_) {
      for (const Block& block : blocks) blocks_.release(block);
      blocks.clear();
    }
    return blocks_.allocate(length);
  }

  bool grow(std::size_t wanted) HORA_REQUIRES(mutex_) {
    if (full_ || wanted > limit_ - std::min(bytes_, limit_)) return false;
    // A quarter of what there is: few segments, and little of them unused.
    const std::size_t length =
        std::min(std::max({wanted, bytes_ / 4, kFirstSegment}), limit_ - bytes_);
    try {
      add_segment(*context_, length);
      return true;
    } catch (const Error& error) {
      full_ = true;
      if (error.code() == ErrorCode::shut_down) return false;
      log_warning("tensor arena: it stays at " + std::to_string(bytes_ >> 20) +
                  " MiB, and further tensors are copied to be averaged (HORA_TENSOR_ARENA_LIMIT is "
                  "larger than what there is): " +
                  error.what());
      return false;
    }
  }

  void add_segment(const Context& context, std::size_t bytes) HORA_REQUIRES(mutex_) {
    const Buffer& segment = segments_.emplace_back(context, bytes);
    blocks_.add_segment(0, bytes);
    bytes_ += bytes;
    lowest_ = std::min(lowest_.load(), address(segment.data()));
    highest_ = std::max(highest_.load(), address(segment.data()) + bytes);
  }

  /// The segments, if they are to be given up: by the caller, who has released the lock.
  std::vector<Buffer> unused_segments() HORA_REQUIRES(mutex_) {
    if (context_ || !uses_.empty()) return {};
    blocks_ = {};
    kept_.clear();
    lowest_ = UINTPTR_MAX;
    highest_ = 0;
    return std::exchange(segments_, {});
  }

  const std::size_t limit_;
  mutable Mutex mutex_;
  std::optional<Context> context_ HORA_GUARDED_BY(mutex_);  ///< until it is closed
  bool full_ HORA_GUARDED_BY(mutex_) = false;               ///< it does not grow any more
  std::size_t bytes_ HORA_GUARDED_BY(mutex_) = 0;
  std::vector<Buffer> segments_ HORA_GUARDED_BY(mutex_);
  BlockAllocator blocks_ HORA_GUARDED_BY(mutex_);
  std::unordered_map<std::size_t, std::vector<Block>> kept_ HORA_GUARDED_BY(mutex_);  ///< by length
  std::unordered_map<const void*, Use> uses_ HORA_GUARDED_BY(mutex_);
  /// All segments lie between them, so that most other addresses need no lock.
  std::atomic<std::uintptr_t> lowest_{UINTPTR_MAX};
  std::atomic<std::uintptr_t> highest_{0};
};

/// The process's; never destroyed, for tensors may be freed by destructors of static objects.
struct Arenas {
  std::atomic<TensorArena*> newest{nullptr};
  Mutex start_mutex;
  std::atomic<bool> started{false};    ///< by the context that there is, with an arena or without
  std::atomic<bool> open{false};       ///< the newest one
  std::atomic<bool> is_child{false};   ///< of a fork: the memory is the parent's
  c10::Allocator* previous = nullptr;  ///< set once, before `newest`
};

Arenas& arenas() {
  static auto& all = *new Arenas;
  return all;
}

/// Frees arena blocks, and those of the allocator before.
void free_block(void* data) {
  const Arenas& all = arenas();
  for (TensorArena* arena = all.newest; arena != nullptr; arena = arena->older) {
    if (all.is_child ? arena->spans(data) : arena->release(data)) return;
  }
  all.previous->raw_deleter()(data);
}

/// allocate() is const up to LibTorch 2.2, from then on it is not; copy_data() came with 2.2. So
/// nothing is marked `override`.
class ArenaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) const { return take(bytes); }       // NOLINT
  c10::DataPtr allocate(std::size_t bytes) { return take(bytes); }             // NOLINT
  void copy_data(void* target, const void* source, std::size_t bytes) const {  // NOLINT
    std::memcpy(target, source, bytes);
  }
  c10::DeleterFnPtr raw_deleter() const { return &free_block; }  // NOLINT

 private:
  static c10::DataPtr take(std::size_t bytes) {
    const Arenas& all = arenas();
    if (bytes >= kLeastBytes && all.open && !all.is_child) {
      if (void* const data = all.newest.load()->allocate(bytes)) {
        return {data, data, &free_block, c10::Device(c10::DeviceType::CPU)};
      }
    }
    c10::DataPtr block = all.previous->allocate(bytes);
    static_cast<void>(block.compare_exchange_deleter(all.previous->raw_deleter(), &free_block));
    return block;
  }
};

/// False where the program's own allocator has a higher one.
bool take_over() {
  Arenas& all = arenas();
  if (all.previous != nullptr) return c10::GetAllocator(c10::kCPU) != all.previous;
  c10::Allocator* const previous = c10::GetAllocator(c10::kCPU);
  if (previous->raw_deleter() == nullptr) return false;
  all.previous = previous;
  static auto& allocator = *new ArenaAllocator;
  c10::SetAllocator(c10::kCPU, &allocator, /*priority=*/10);
  ::pthread_atfork(nullptr, nullptr, [] { arenas().is_child = true; });
  return c10::GetAllocator(c10::kCPU) == &allocator;
}

void open_arena(const Context& context) {
  Arenas& all = arenas();
  const auto warn = [&](const std::string& why) {
    if (context.settings().tensor_arena != TensorArenaUse::on) return;
    log_warning("HORA_TENSOR_ARENA=on has no effect, tensors are copied to be averaged: " + why);
  };
  try {
    if (!take_over()) return warn("the program has a CPU allocator of its own (c10::SetAllocator)");
    // Without a setting half of the host's memory, divided among its ranks.
    const std::size_t setting = context.settings().tensor_arena_limit;
    const auto ranks = static_cast<std::size_t>(context.local_size());
    const std::size_t limit = setting != 0 ? setting : memory_of_host() / 2 / ranks;
    all.newest = new TensorArena(context, limit, all.newest);
    all.open = true;
  } catch (const Error& error) {
    warn(error.what());
  }
}

}  // namespace

bool in_tensor_arena(const void* data) {
  const Arenas& all = arenas();
  return all.open && !all.is_child && all.newest.load()->holds(data);
}

bool wants_tensor_arena(const Context& context) {
  const TensorArenaUse setting = context.settings().tensor_arena;
  if (setting != TensorArenaUse::automatic) return setting == TensorArenaUse::on;
  return context.device().kind == DeviceKind::cpu && context.size() > context.cross_size();
}

void start_tensor_arena(const Context& context) {
  Arenas& all = arenas();
  if (all.started) return;
  const LockGuard lock(all.start_mutex);
  if (all.started) return;
  Access::at_shutdown(context, [] {
    Arenas& its = arenas();
    if (its.open.exchange(false)) its.newest.load()->close();
    its.started = false;
  });
  if (wants_tensor_arena(context)) open_arena(context);
  all.started = true;
}

}  // namespace hora::internal
