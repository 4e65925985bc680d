/// The buffers on this rank's GPU, and which of them are windows of NCCL's symmetric memory.
///
/// What ranks say of their tensors, and what follows from that for the windows: on values.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "core/base/sync.h"
#include "core/control_block/tensor_id.h"
#include "core/plan/plan.h"
#include "ops/nccl/communicator.h"

namespace hora::internal {

/// A tensor's place (BegunOnDevice::place). Location::window is the number of the window that it
/// begins, and `offset` that of the first window of the rank whose buffer has been given back, 0:
/// none. Numbers count from 1.
inline constexpr std::uint32_t kNoWindow = 0;
/// In a window's place: the tensor begins a buffer of `offset` bytes that is to become one.
inline constexpr std::uint32_t kProposedWindow = UINT32_MAX - 1;

/// What the places of one tensor mean, on all ranks alike.
struct WindowAgreement {
  bool begins = false;             ///< all ranks' buffers become one window
  bool is_shared = false;          ///< the tensor begins the same window on all ranks
  std::uint32_t ends = kNoWindow;  ///< every rank has given its buffer back
  bool operator==(const WindowAgreement&) const = default;
};

/// `places`: by local rank; kNowhere of one that has joined.
WindowAgreement agreement_of(std::span<const Location> places);

/// What a unit changes about the windows, and what it does to this rank's tensors.
struct WindowPlan {
  std::vector<std::uint32_t> ends = {};
  std::vector<RegisteredMemory*> begins = {};
  /// By position: it lies in a window in which NCCL may not work, for not all ranks give the same
  /// one. Empty: none does.
  std::vector<bool> apart = {};
  /// By position: NCCL works in a window, on all ranks. Empty: in none.
  std::vector<bool> shared = {};
  bool changes() const { return !ends.empty() || !begins.empty(); }
  bool is_apart(std::size_t position) const { return !apart.empty() && apart[position]; }
  bool is_shared(std::size_t position) const { return !shared.empty() && shared[position]; }
};

/// NCCL chooses its kernels by whether memory lies in windows, each rank for itself, and where
/// ranks choose differently they wait for ever. So NCCL works in a window only where all ranks of
/// the communicator give the same one, from its beginning, which each knows of the others from
/// places. These are fixed when tensors are submitted, and units come in one order on all ranks: so
/// ranks make, use and end the same windows in one order. A buffer proposes itself in one
/// collective at a time, lest it be one already when it is agreed on; what is given back stays
/// until all ranks say so: NCCL's multicast puts memory where it does by the order of these calls.
/// Thread rule: place() by any thread; the others by the one that holds the engine's lock.
class NcclBuffers {
 public:
  NcclBuffers() = default;
  NcclBuffers(const NcclBuffers&) = delete;
  NcclBuffers& operator=(const NcclBuffers&) = delete;

  /// From now on buffers become windows; before there are any.
  void enable_windows() { enabled_ = true; }
  void add(RegisteredMemory memory);
  /// Nothing: it is a window, and is freed later. Such memory is used by no work any more.
  std::optional<RegisteredMemory> give_back(std::byte* data);

  /// Of a tensor that begins at `data`; null: of one without memory.
  Location place(const std::byte* data);
  /// For each unit that has places, in their order.
  WindowPlan plan(const BoundUnit& unit, int local_rank);
  /// In one launch, on a communicator that is ready. Throws Error(transport).
  void carry_out(const WindowPlan& plan, const NcclFunctions& nccl);
  /// Memory is or becomes a window.
  bool in_window(const std::byte* data);

  bool has_windows();
  /// There are none from now on. The communicator is ready, and all its collectives done.
  void end_windows() noexcept;
  bool empty();
  /// The communicator is gone, and nothing uses the memory any more.
  void free_all() noexcept;
  void leave_in_place() noexcept;

 private:
  struct Buffer {
    RegisteredMemory memory;
    std::uint32_t window = kNoWindow;
    bool is_proposed = false;
  };
  Buffer* find(const std::byte* data) HORA_REQUIRES(mutex_);

  std::atomic<bool> enabled_{false};
  Mutex mutex_;
  std::map<const std::byte*, Buffer, std::greater<>> buffers_ HORA_GUARDED_BY(mutex_);
  /// Given back, by number: windows that no plan has ended yet.
  std::map<std::uint32_t, RegisteredMemory> given_back_ HORA_GUARDED_BY(mutex_);
  std::map<std::uint32_t, RegisteredMemory> ending_;  ///< by a plan that is not carried out yet
  std::uint32_t last_window_ = kNoWindow;
};

}  // namespace hora::internal
