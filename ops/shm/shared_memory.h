/// NodeMemory in windows that the node's ranks map.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/engine/node_memory.h"
#include "core/thread_safety.h"
#include "ops/local/kernels.h"
#include "ops/shm/window.h"

namespace hora::internal {

/// Which bytes of a set of segments are in use; it never touches the memory. Best fit with
/// immediate coalescing; every block is a multiple of 64 bytes. Thread rule: one thread at a time.
class BlockAllocator {
 public:
  struct SegmentBlock {
    std::uint32_t segment = 0;
    std::uint64_t offset = 0;
    bool operator==(const SegmentBlock&) const = default;
  };

  /// Adds [begin, begin + bytes) of a new segment, the next one in number, as free memory.
  void add_segment(std::uint64_t begin, std::uint64_t bytes);
  /// Nothing where no free block is long enough.
  std::optional<SegmentBlock> allocate(std::size_t bytes);
  /// `block` as allocate() gave it.
  void release(SegmentBlock block);
  std::size_t blocks_in_use() const { return used_.size(); }

 private:
  using Place = std::pair<std::uint32_t, std::uint64_t>;  ///< segment, offset
  void insert_free(Place place, std::uint64_t bytes);
  void erase_free(std::map<Place, std::uint64_t>::iterator block);

  std::uint32_t segments_ = 0;
  std::map<Place, std::uint64_t> free_;                ///< place -> bytes
  std::set<std::pair<std::uint64_t, Place>> by_size_;  ///< the same, smallest first
  std::map<Place, std::uint64_t> used_;
};

/// This rank's windows and its peers'. Its first window begins with a directory of its own, so
/// that peers can open later ones by themselves; a window is never freed before the end.
/// Thread rule: any thread, once connect() has returned.
class SharedMemory final : public NodeMemory {
 public:
  /// Windows of one rank: each is larger than the one before, so this many never run out.
  static constexpr std::size_t kMaxWindows = 64;

  /// `first_bytes`: of the first window. Throws as Window does.
  explicit SharedMemory(std::size_t first_bytes);
  ~SharedMemory() override;

  /// Ticket of this rank's first window, for the peers.
  WindowTicket ticket() const;
  /// Opens a peer's first window; throws Error(transport) where that cannot be done.
  static Window open_first(const WindowTicket& ticket);
  /// The node's ranks and their first windows, by local rank (this rank's may be empty).
  void connect(int local_rank, std::vector<Window> first_windows);

  MemoryBlock allocate(std::size_t bytes) override;
  void release(std::byte* data) noexcept override;
  std::optional<Location> find(const std::byte* data, std::size_t bytes) const override;
  std::byte* address(int local_rank, Location location, std::size_t bytes) override;
  void publish(std::byte* block, const std::byte* data, std::size_t bytes) override {
    publish_copy(block, data, bytes);
  }

 private:
  struct Directory;
  struct Peer;

  Directory& directory() const HORA_REQUIRES(mutex_);
  /// Mapped when first asked for.
  const Window& window_of(Peer& peer, int local_rank, std::uint32_t index);
  void add_window(std::size_t bytes) HORA_REQUIRES(mutex_);

  mutable SharedMutex mutex_;
  std::vector<Window> windows_ HORA_GUARDED_BY(mutex_);
  BlockAllocator allocator_ HORA_GUARDED_BY(mutex_);
  int local_rank_ = 0;
  Mutex peers_mutex_;  ///< held to map a peer's window; what is mapped is read without
  std::vector<std::unique_ptr<Peer>> peers_;
};

}  // namespace hora::internal
