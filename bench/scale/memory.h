/// The memory of simulated ranks, and what its use costs in simulated time.
///
/// All ranks are in one process. Blocks from kFoldedFrom bytes on are *folded*: they are the same
/// memory for all ranks, since the machine that simulates could not hold them. Nothing is computed
/// there; only its time passes. Smaller ones are real, and so are the results in them.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>

#include "core/engine/interfaces.h"
#include "ops/cross/cross_group.h"
#include "ops/hierarchy/memory_group.h"

namespace bench::scale {

inline constexpr std::size_t kFoldedFrom = std::size_t{64} << 10;
/// Work memory of reductions between nodes: what a small allreduce gathers from all nodes is real.
inline constexpr std::size_t kFoldedWorkFrom = std::size_t{512} << 10;
inline constexpr std::size_t kFoldedBytes = std::size_t{64} << 20;

/// 64-byte aligned, kFoldedBytes long.
std::byte* folded_memory();
bool is_folded(const void* data);

/// Lets the simulated time pass in which one of `ranks` ranks of a node, all of which use its
/// memory at once, moves that many bytes. `bandwidth`: the node's, bytes a second; reads and
/// writes count alike.
struct MemoryTime {
  double bandwidth = 1;
  int ranks = 1;
  void pass(std::size_t bytes) const;
};

/// Locations are addresses. Thread rule: the simulated ranks, which are one thread.
class SimulatedMemory final : public hora::internal::NodeMemory {
 public:
  SimulatedMemory() = default;
  SimulatedMemory(const SimulatedMemory&) = delete;
  SimulatedMemory& operator=(const SimulatedMemory&) = delete;
  ~SimulatedMemory() override;
  MemoryBlock allocate(std::size_t bytes) override;
  void release(std::byte* data) noexcept override;
  std::optional<hora::internal::Location> find(const std::byte* data,
                                               std::size_t bytes) const override;
  std::byte* address(int local_rank, hora::internal::Location location, std::size_t bytes) override;
  void copy_past_caches(std::byte* out, const std::byte* in, std::size_t bytes) override;

 private:
  std::map<const std::byte*, std::size_t> blocks_;
};

/// Reductions between nodes.
class SimulatedSpace final : public hora::internal::StagingSpace {
 public:
  explicit SimulatedSpace(const MemoryTime& time) : time_(time) {}
  std::byte* allocate(std::size_t bytes) override;
  void release(std::byte* data) noexcept override;
  hora::internal::Completion reduce(const hora::internal::Reduction& reduction,
                                    std::span<const std::byte* const> inputs, std::byte* output,
                                    std::size_t count) override;
  hora::internal::Completion convert(hora::DataType source, const std::byte* input,
                                     hora::DataType target, std::byte* output,
                                     std::size_t count) override;

 private:
  MemoryTime time_;
};

/// A MemoryGroup whose passes take their time: each rank reads its slice of all ranks' tensors, and
/// writes the result to all of them.
class SimulatedGroup final : public hora::internal::LocalGroup {
 public:
  SimulatedGroup(int local_rank, int local_size, const MemoryTime& time)
      : group_(local_rank, local_size),
        local_rank_(local_rank),
        local_size_(local_size),
        time_(time) {}
  bool is_collective() const override { return false; }
  std::byte* staging(const hora::internal::ChunkPart& part) override;
  hora::internal::Completion run(const hora::internal::BoundUnit& unit) override;
  hora::internal::Completion reduce_scatter(const hora::internal::ChunkPart& part) override;
  hora::internal::Completion all_gather(const hora::internal::ChunkPart& part) override;

 private:
  hora::internal::MemoryGroup group_;
  int local_rank_;
  int local_size_;
  MemoryTime time_;
};

}  // namespace bench::scale
