/// Memory that several processes map: windows, which of their bytes are in use, and NodeMemory in
/// windows that the node's ranks map.
#pragma once

#include <hora/export.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/sync.h"
#include "core/engine/interfaces.h"
#include "ops/local/kernels.h"

namespace hora::internal {

/// Tells which bytes of a set of segments are in use, without touching them. Best fit with
/// immediate coalescing; every block is a multiple of 64 bytes. Pure. Thread rule: one thread at a
/// time.
class HORA_EXPORT BlockAllocator {
 public:
  struct SegmentBlock {
    std::uint32_t segment = 0;
    std::uint64_t offset = 0;
    bool operator==(const SegmentBlock&) const = default;
  };

  /// Adds [begin, begin + bytes) of a new segment, the next one in number, as free memory.
  void add_segment(std::uint64_t begin, std::uint64_t bytes) {
    free_.emplace(Place{segments_++, begin}, bytes);
  }
  /// Nothing where no free block is long enough.
  std::optional<SegmentBlock> allocate(std::size_t bytes);
  /// `block` as allocate() gave it.
  void release(SegmentBlock block);
  std::size_t blocks_in_use() const { return used_.size(); }

 private:
  using Place = std::pair<std::uint32_t, std::uint64_t>;  ///< segment, offset

  std::uint32_t segments_ = 0;
  std::map<Place, std::uint64_t> free_;  ///< bytes by place; no two touch
  std::map<Place, std::uint64_t> used_;
};

/// The means of a peer to open a window. The nonce tells another process's file from the owner's:
/// in another PID namespace the same pid and descriptor can mean something else.
struct WindowTicket {
  std::int32_t pid = 0;
  std::int32_t descriptor = -1;
  std::uint64_t bytes = 0;  ///< whole length, header included
  std::uint64_t nonce = 0;
};

/// A memfd and its mapping, without a name in a file system. Move-only. fork() gives the child a
/// copy: it reads what the rank has written, and what it writes reaches no rank; pages that it has
/// not written to go on showing what ranks write. clone() and vfork() are not covered.
class Window {
 public:
  /// Bytes at the beginning that belong to the window itself.
  static constexpr std::size_t kHeaderBytes = 4096;
  /// Data begins here; in a rank's first window a directory of the others lies before it.
  static constexpr std::size_t kDataOffset = 2 * kHeaderBytes;

  Window() noexcept = default;
  /// A new window, all zero. Throws Error(out_of_memory) where `bytes` is more than this machine or
  /// its control group has left, Error(transport) where the kernel refuses.
  explicit Window(std::size_t bytes);
  /// A peer's window. Throws Error(transport) where it cannot be opened or is not the peer's.
  explicit Window(const WindowTicket& ticket);
  Window(Window&& other) noexcept { *this = std::move(other); }
  Window& operator=(Window&& other) noexcept;
  ~Window();

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  const WindowTicket& ticket() const noexcept { return ticket_; }

 private:
  void map(std::size_t bytes);

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  int descriptor_ = -1;
  WindowTicket ticket_;
};

/// Bytes that are still available: the smaller of MemAvailable and what the control group has left.
std::uint64_t available_memory();
/// All bytes of memory, used or not, swap included: at most 2^48.
HORA_EXPORT std::uint64_t memory_of_host();

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
  /// The node's ranks and their first windows, by local rank (this rank's may be empty).
  void connect(int local_rank, std::vector<Window> first_windows);

  MemoryBlock allocate(std::size_t bytes) override;
  void release(std::byte* data) noexcept override;
  std::optional<Location> find(const std::byte* data, std::size_t bytes) const override;
  std::byte* address(int local_rank, Location location, std::size_t bytes) override;
  void copy_past_caches(std::byte* out, const std::byte* in, std::size_t bytes) override {
    publish_copy(out, in, bytes);
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
