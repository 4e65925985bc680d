#include "frameworks/torch/memory/cpu_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <hora/error.h>
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "core/api/internals.h"
#include "core/base/diagnostics.h"
#include "core/base/sync.h"
#include "frameworks/torch/memory/arena_use.h"
#include "frameworks/torch/memory/c10_allocator.h"
#include "frameworks/torch/memory/tensor_arena.h"
#include "ops/shm/shared_memory.h"

namespace hora::internal {
namespace {

/// One for each context that has had one: tensors of earlier ones may still live.
struct ArenaNode {
  ArenaNode(const Context& context, std::size_t limit, ArenaNode* its_older)
      : arena(context, limit), older(its_older) {}
  TensorArena arena;
  ArenaNode* const older;
};

/// The process's; never destroyed, for tensors may be freed by destructors of static objects.
struct Arenas {
  std::atomic<ArenaNode*> newest{nullptr};
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
  for (ArenaNode* node = all.newest; node != nullptr; node = node->older) {
    if (all.is_child) {
      if (node->arena.spans(data)) return;
    } else if (node->arena.release(data)) {
      return;
    }
  }
  all.previous->raw_deleter()(data);
}

class ArenaAllocator final : public C10Allocator {
 public:
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }

 protected:
  c10::DataPtr take(std::size_t bytes) const override {
    const Arenas& all = arenas();
    if (bytes >= TensorArena::kLeastBytes && all.open && !all.is_child) {
      if (void* const data = all.newest.load()->arena.allocate(bytes)) {
        return {data, data, &free_block, c10::Device(c10::DeviceType::CPU)};
      }
    }
    c10::DataPtr block = all.previous->allocate(bytes);
    static_cast<void>(block.compare_exchange_deleter(all.previous->raw_deleter(), &free_block));
    return block;
  }
};

constexpr std::uint8_t kPriority = 10;

/// False where the program's own allocator has a higher one.
bool take_over() {
  Arenas& all = arenas();
  if (all.previous != nullptr) return c10::GetAllocator(c10::kCPU) != all.previous;
  c10::Allocator* const previous = c10::GetAllocator(c10::kCPU);
  if (previous->raw_deleter() == nullptr) return false;
  all.previous = previous;
  static auto& allocator = *new ArenaAllocator;
  c10::SetAllocator(c10::kCPU, &allocator, kPriority);
  ::pthread_atfork(nullptr, nullptr, [] { arenas().is_child = true; });
  return c10::GetAllocator(c10::kCPU) == &allocator;
}

ArenaFacts facts_of(const Context& context) {
  return {.setting = context.settings().tensor_arena,
          .on_cpu = context.device().kind == DeviceKind::cpu,
          .ranks = context.size(),
          .nodes = context.cross_size()};
}

std::size_t limit_for(const Context& context) {
  return arena_limit(context.settings().tensor_arena_limit, memory_of_host(), context.local_size());
}

void open_arena(const Context& context) {
  Arenas& all = arenas();
  const auto warn = [&](const std::string& why) {
    if (context.settings().tensor_arena != TensorArenaUse::on) return;
    log_warning("HORA_TENSOR_ARENA=on has no effect, tensors are copied to be averaged: " + why);
  };
  try {
    if (!take_over()) return warn("the program has a CPU allocator of its own (c10::SetAllocator)");
    all.newest = new ArenaNode(context, limit_for(context), all.newest);
    all.open = true;
  } catch (const Error& error) {
    warn(error.what());
  }
}

}  // namespace

bool in_tensor_arena(const void* data) {
  const Arenas& all = arenas();
  return all.open && !all.is_child && all.newest.load()->arena.holds(data);
}

bool wants_tensor_arena(const Context& context) {
  return arena_is_wanted(facts_of(context));
}

void start_tensor_arena(const Context& context) {
  Arenas& all = arenas();
  if (all.started) return;
  const LockGuard lock(all.start_mutex);
  if (all.started) return;
  Access::at_shutdown(context, [] {
    Arenas& its = arenas();
    if (its.open.exchange(false)) its.newest.load()->arena.close();
    its.started = false;
  });
  if (wants_tensor_arena(context)) open_arena(context);
  all.started = true;
}

}  // namespace hora::internal
