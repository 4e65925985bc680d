/// Owners of NCCL's communicators and of the memory that is registered with them; which buffers of
/// this GPU are windows of NCCL's symmetric memory, by what ranks say of their tensors; and hora's
/// types and reductions as NCCL's.
#pragma once

#include <hora/error.h>
#include <hora/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/sync.h"
#include "core/control_block/tensor_id.h"
#include "core/engine/interfaces.h"
#include "core/plan/plan.h"
#include "ops/cuda/functions.h"
#include "ops/cuda/stream.h"
#include "ops/nccl/functions.h"

namespace hora::internal {

/// How long to pause between two looks at what NCCL does in the background, `waited` after its
/// begin. Not at all in the first 100 us, in which NCCL should have taken in a call of a
/// communicator that is connected: a sleep would let the rest begin late. Then an eighth of the
/// wait, 1 ms at most.
std::chrono::nanoseconds pause_between_looks(std::chrono::nanoseconds waited);

/// Polls `condition`, ever less often; Error(transport) where it is not true by the deadline.
template <class Condition>
void wait_until(Condition condition, std::chrono::steady_clock::time_point deadline) {
  const auto begin = std::chrono::steady_clock::now();
  while (!condition()) {
    const auto time = std::chrono::steady_clock::now();
    if (time >= deadline) {
      throw Error(ErrorCode::transport,
                  "NCCL was not ready by the deadline; has another rank failed, or not come?");
    }
    const auto pause = pause_between_looks(time - begin);
    pause.count() > 0 ? std::this_thread::sleep_for(pause) : std::this_thread::yield();
  }
}

/// A non-blocking communicator: no member waits for other ranks, but for wait_ready() and close(),
/// which have a deadline. Errors are Error(transport). The destructor aborts what was not closed.
/// Thread rule: one thread at a time, that which makes all NCCL calls of this process.
class NcclCommunicator {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  NcclCommunicator() noexcept = default;
  /// Starts the initialisation; collective over the `ranks` that were given the same `id`.
  /// `most_ctas`: thread blocks of each of its kernels, the same on all ranks; 0: as NCCL chooses.
  NcclCommunicator(const NcclFunctions& functions, const ncclUniqueId& id, int ranks, int rank,
                   int most_ctas = 0);
  NcclCommunicator(NcclCommunicator&& other) noexcept = default;
  NcclCommunicator& operator=(NcclCommunicator&& other) noexcept;
  ~NcclCommunicator();

  /// Null after abort() and when closed().
  ncclComm_t get() const noexcept { return comm_ ? *comm_ : nullptr; }

  /// False while the initialisation, or a call that returned ncclInProgress, goes on: until then
  /// the communicator may not be used, and the collectives of that call are not yet on their
  /// streams.
  bool ready() const;
  /// Polls ready(); Error(transport) where it is not by then.
  void wait_ready(Deadline deadline) const;
  /// Throws where NCCL reports an error of this communicator.
  void check_async() const;
  /// Label of background work in errors. Must have static storage.
  void name_background(std::string_view what) { background_ = what; }
  static constexpr std::string_view kAnyOperation = "an NCCL operation in the background";

  /// Ends all collectives of this rank, whose results are then undefined. May be called again.
  void abort() noexcept;
  /// Collective: waits until all collectives are done and frees the communicator. Aborts and
  /// throws where that fails or is not done by the deadline.
  void close(Deadline deadline);
  /// close() in two steps, without waiting: the communicator is ready when it begins. Both abort
  /// and throw where it fails.
  void begin_close();
  bool closed();

 private:
  friend class RegisteredMemory;
  ncclResult_t state() const;
  template <class F>
  void or_abort(const F& call);

  const NcclFunctions* functions_ = nullptr;
  std::string_view background_ = kAnyOperation;
  /// Shared with the memory that is registered with it; null once it is gone.
  std::shared_ptr<ncclComm_t> comm_;
};

/// Move-only owner of memory from ncclMemAlloc, registered with a communicator that is ready;
/// without that, logged at debug level, NCCL is only slower. May outlive the communicator. Freeing
/// waits for nothing: no enqueued work may still use the memory. become_window() makes it a window
/// of symmetric memory besides: collective, like deregister() from then on, in one order on all
/// ranks. Thread rule: as NcclCommunicator; after deregister() any one thread.
class RegisteredMemory {
 public:
  RegisteredMemory() noexcept = default;
  /// Throws Error(out_of_memory) naming the bytes.
  RegisteredMemory(const NcclFunctions& functions, const NcclCommunicator& communicator,
                   std::size_t bytes);
  RegisteredMemory(RegisteredMemory&& other) noexcept;
  RegisteredMemory& operator=(RegisteredMemory&& other) noexcept;
  ~RegisteredMemory();

  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

  /// Done when the communicator, which must be ready, is ready again; the object stays where it is
  /// until then. The others' have as many bytes. Throws Error(transport).
  void become_window();

  /// The communicator must be ready, or gone; the destructor does it as well.
  void deregister() noexcept;
  /// It is never freed.
  void leave_in_place() noexcept { data_ = nullptr; }

 private:
  void release() noexcept;

  const NcclFunctions* functions_ = nullptr;
  std::shared_ptr<ncclComm_t> comm_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  void* handle_ = nullptr;
  /// Null: it is none. Where it has no symmetric memory NCCL may give a handle, too.
  void* window_ = nullptr;
};

/// All of a process: the world's, and those of other process sets.
/// Thread rule: as NcclCommunicator.
class NcclCommunicators {
 public:
  /// Adds one, whose address does not change. The first one is the world's.
  NcclCommunicator& add() { return open_.emplace_back(); }
  NcclCommunicator& world() { return open_.front(); }

  /// Throws where NCCL reports an error of any.
  void check_async() const;
  /// Ends all collectives of this rank.
  void abort() noexcept;

  /// True while retired ones may be left.
  bool closes() const { return !closing_.empty(); }
  /// Frees one, whose launches have all begun, when its collectives are done: collective over
  /// its members, continued by advance(). Throws Error(transport).
  void retire(NcclCommunicator& communicator);
  /// True while retired ones are left.
  bool advance();
  /// Frees all: collective over the members of each, which may have them in any order. Throws
  /// Error(transport) where that fails or is not done by the deadline.
  void close(NcclCommunicator::Deadline deadline);

 private:
  std::list<NcclCommunicator> open_;
  std::list<NcclCommunicator> closing_;
};

/// A tensor's place (BegunOnDevice::place). Location::window is the number of the window that it
/// begins, and `offset` that of the first window of the rank whose buffer has been given back, 0:
/// none. Numbers count from 1.
inline constexpr std::uint32_t kNoWindow = 0;
/// In a window's place: the tensor begins a buffer of `offset` bytes that is to become one.
inline constexpr std::uint32_t kProposedWindow = UINT32_MAX - 1;

/// The meaning of the places of one tensor, on all ranks alike.
struct WindowAgreement {
  bool begins = false;             ///< all ranks' buffers become one window
  bool is_shared = false;          ///< the tensor begins the same window on all ranks
  std::uint32_t ends = kNoWindow;  ///< every rank has given its buffer back
  bool operator==(const WindowAgreement&) const = default;
};

/// `places`: by local rank; kNowhere of one that has joined.
WindowAgreement agreement_of(std::span<const Location> places);

/// Changes of a unit to the windows, and its use of this rank's tensors.
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

  /// The place of a tensor that begins at `data`; null: of one without memory.
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

/// Blocks of identity elements (fill_identity in ops/local/kernels.h) on the GPU, from which memory
/// is filled. The first use of each type and operation blocks the host for a copy of a few KiB.
/// Thread rule: the thread that holds the engine's lock.
class IdentityElements {
 public:
  /// References outlive it.
  IdentityElements(const CudaFunctions& cuda, const CudaStream& stream, DeviceHeap& heap)
      : cuda_(cuda), stream_(stream), heap_(heap) {}

  /// Fills `count` elements in the order of the stream. Throws Error(out_of_memory).
  void fill(DataType type, ReduceOp op, std::byte* target, std::size_t count);

 private:
  const std::byte* block(DataType type, ReduceOp op);

  const CudaFunctions& cuda_;
  const CudaStream& stream_;
  DeviceHeap& heap_;
  std::map<std::pair<DataType, ReduceOp>, std::shared_ptr<std::byte>> blocks_;
};

/// Booleans are uint8 with the values 0 and 1. Throws Error(invalid_argument) for int16 and
/// uint16, which NCCL does not have, and for an unknown type.
ncclDataType_t to_nccl(DataType type);
/// A type of the same size, whatever the type: for values that are only copied.
ncclDataType_t travelling_type(DataType type);

/// Booleans, which are 0 or 1 then: maximum for sum and max, minimum for product and min. An
/// average is NCCL's own. Throws Error(invalid_argument) for Adasum.
ncclRedOp_t to_nccl(ReduceOp op, DataType type);

/// An average of which NCCL's symmetric kernels (NcclBuffers) have the sum alone: in windows it is
/// to be a sum of values that are scaled before, as NCCL scales them for its other kernels.
bool sums_scaled_in_windows(const Unit& unit);
/// NCCL would misinterpret the values: they are scaled (Unit::prescale), or booleans, of which
/// every byte but 0 is true.
bool needs_preparation(const Unit& unit);
/// The copy that prepares such values, without its pieces; a plain one where nothing is needed.
BatchedCopy preparation(const Unit& unit);

}  // namespace hora::internal
