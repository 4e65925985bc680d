/// Control blocks, and ranks as threads.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "core/control_block/node_control_block.h"

namespace hora::internal::test {

/// A node's control block in memory of this process, its own or given, with a view for each local
/// rank.
class SharedControlBlock {
 public:
  explicit SharedControlBlock(const ControlBlockShape& shape, std::byte* memory = nullptr)
      : bytes_(NodeControlBlock::bytes(shape)),
        own_(memory ? nullptr : std::make_unique<Line[]>(bytes_ / sizeof(Line) + 1)),
        memory_(memory ? memory : own_[0].bytes) {
    for (int r = 0; r < shape.local_size; ++r) views_.emplace_back(memory_, shape, r);
  }
  NodeControlBlock& operator[](int local_rank) {
    return views_[static_cast<std::size_t>(local_rank)];
  }
  /// For damage.
  std::span<std::byte> memory() { return {memory_, bytes_}; }

 private:
  struct alignas(64) Line {
    std::byte bytes[64] = {};
  };
  std::size_t bytes_;
  std::unique_ptr<Line[]> own_;
  std::byte* memory_;
  std::deque<NodeControlBlock> views_;
};

/// The next batch, if there is one.
inline std::optional<LogBatch> next_batch(NodeControlBlock& control_block) {
  LogBatch batch;
  return control_block.next_batch(batch) ? std::optional(std::move(batch)) : std::nullopt;
}

/// Runs `body(number)` on so many threads.
inline void on_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::jthread> threads;
  for (int number = 0; number < count; ++number) threads.emplace_back(body, number);
}

}  // namespace hora::internal::test
