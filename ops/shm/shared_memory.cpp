#include "ops/shm/shared_memory.h"

#include <hora/error.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "core/base/checked.h"

namespace hora::internal {

/// In this rank's first window, after its header. Entries below `count` are complete.
struct SharedMemory::Directory {
  std::atomic<std::uint32_t> count;
  std::array<WindowTicket, kMaxWindows> tickets;
};

struct SharedMemory::Peer {
  std::array<Window, kMaxWindows> windows;
  std::array<std::atomic<bool>, kMaxWindows> mapped{};  ///< then the window stays as it is
};

namespace {

/// Data begins here in every window; in the first one the directory lies before it.
constexpr std::size_t kDataOffset = 2 * Window::kHeaderBytes;

}  // namespace

SharedMemory::SharedMemory(std::size_t first_bytes) {
  static_assert(sizeof(Directory) <= kDataOffset - Window::kHeaderBytes);
  add_window(first_bytes);
}

SharedMemory::~SharedMemory() = default;

WindowTicket SharedMemory::ticket() const {
  const SharedGuard lock(mutex_);
  return windows_.front().ticket();
}

Window SharedMemory::open_first(const WindowTicket& ticket) {
  Window window(ticket);
  if (window.size() < kDataOffset) {
    throw Error(ErrorCode::transport, "shared memory: a peer's first window of " +
                                          std::to_string(window.size()) +
                                          " bytes has no room for the directory of the others");
  }
  return window;
}

SharedMemory::Directory& SharedMemory::directory() const {
  return *reinterpret_cast<Directory*>(windows_.front().data() + Window::kHeaderBytes);
}

void SharedMemory::add_window(std::size_t bytes) {
  if (windows_.size() == kMaxWindows) {
    throw Error(ErrorCode::out_of_memory, "shared memory: all " + std::to_string(kMaxWindows) +
                                              " windows of this rank are in use");
  }
  const std::size_t length = align_up(bytes, 4096) + kDataOffset;
  windows_.emplace_back(length);
  shields_.emplace_back(windows_.back().data(), length, windows_.back().ticket().descriptor);
  allocator_.add_segment(kDataOffset, length - kDataOffset);
  const auto index = static_cast<std::uint32_t>(windows_.size() - 1);
  directory().tickets[index] = windows_.back().ticket();
  directory().count.store(index + 1, std::memory_order_release);
}

void SharedMemory::connect(int local_rank, std::vector<Window> first_windows) {
  local_rank_ = local_rank;
  for (Window& window : first_windows) {
    auto peer = std::make_unique<Peer>();
    peer->mapped[0].store(window.data() != nullptr, std::memory_order_release);
    peer->windows[0] = std::move(window);
    peers_.push_back(std::move(peer));
  }
}

NodeMemory::MemoryBlock SharedMemory::allocate(std::size_t bytes) {
  if (bytes > kMaxBytes) {
    throw Error(ErrorCode::out_of_memory,
                "shared memory: " + std::to_string(bytes) +
                    " bytes wanted, which is more than a process can address");
  }
  const LockGuard lock(mutex_);
  auto block = allocator_.allocate(bytes);
  if (!block) {
    // At least half of what exists already, so that the number of windows stays small.
    std::size_t total = 0;
    for (const Window& window : windows_) total += window.size();
    add_window(std::max(align_up(bytes), total / 2));
    block = allocator_.allocate(bytes);
  }
  return {windows_[block->segment].data() + block->offset, {block->segment, 0, block->offset}};
}

void SharedMemory::release(std::byte* data) noexcept {
  const auto location = find(data, 1);
  if (!location) return;
  const LockGuard lock(mutex_);
  allocator_.release({location->window, location->offset});
}

std::optional<Location> SharedMemory::find(const std::byte* data, std::size_t bytes) const {
  const SharedGuard lock(mutex_);
  for (std::size_t w = 0; w < windows_.size(); ++w) {
    const std::byte* begin = windows_[w].data();
    if (data >= begin && data + bytes <= begin + windows_[w].size()) {
      return Location{static_cast<std::uint32_t>(w), 0, static_cast<std::uint64_t>(data - begin)};
    }
  }
  return std::nullopt;
}

std::byte* SharedMemory::address(int local_rank, Location location, std::size_t bytes) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::transport,
                "shared memory: local rank " + std::to_string(local_rank) + " names " + what);
  };
  if (location.window >= kMaxWindows) refuse("window " + std::to_string(location.window));
  const auto inside = [&](const Window& window) {
    if (location.offset < Window::kHeaderBytes ||
        !(Checked(location.offset) + bytes).at_most(window.size())) {
      refuse(std::to_string(bytes) + " bytes from " + std::to_string(location.offset) +
             " on in window " + std::to_string(location.window) + ", which has " +
             std::to_string(window.size()));
    }
    return window.data() + location.offset;
  };
  if (local_rank == local_rank_) {
    const SharedGuard lock(mutex_);
    return inside(windows_.at(location.window));
  }
  return inside(
      window_of(*peers_.at(static_cast<std::size_t>(local_rank)), local_rank, location.window));
}

const Window& SharedMemory::window_of(Peer& peer, int local_rank, std::uint32_t index) {
  Window& window = peer.windows[index];
  auto& mapped = peer.mapped[index];
  if (mapped.load(std::memory_order_acquire)) return window;
  const LockGuard lock(peers_mutex_);
  if (mapped.load(std::memory_order_acquire)) return window;
  const auto* names =
      reinterpret_cast<const Directory*>(peer.windows[0].data() + Window::kHeaderBytes);
  if (names->count.load(std::memory_order_acquire) <= index) {
    throw Error(ErrorCode::transport, "shared memory: local rank " + std::to_string(local_rank) +
                                          " has no window " + std::to_string(index));
  }
  window = Window(names->tickets[index]);
  mapped.store(true, std::memory_order_release);
  return window;
}

}  // namespace hora::internal
