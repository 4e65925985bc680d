/// NodeMemory in windows that the node's ranks map.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/sync.h"
#include "core/engine/interfaces.h"
#include "ops/local/kernels.h"
#include "ops/shm/window.h"

namespace hora::internal {

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
  std::vector<ForkShield> shields_ HORA_GUARDED_BY(mutex_);  ///< of windows_
  BlockAllocator allocator_ HORA_GUARDED_BY(mutex_);
  int local_rank_ = 0;
  Mutex peers_mutex_;  ///< held to map a peer's window; what is mapped is read without
  std::vector<std::unique_ptr<Peer>> peers_;
};

}  // namespace hora::internal
