/// Owners of NCCL's communicators, and of the memory that is registered with them; waiting for
/// NCCL's background work, which only polling detects.
#pragma once

#include <hora/error.h>

#include <chrono>
#include <cstddef>
#include <list>
#include <memory>
#include <string_view>
#include <thread>

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

/// Polls `condition` as long as no pause is due, at least once; whether it was true. `clock` gives
/// the time since any fixed one.
template <class Condition, class Clock>
bool spin_until(Condition condition, Clock clock) {
  const std::chrono::nanoseconds begin = clock();
  while (!condition()) {
    if (pause_between_looks(clock() - begin).count() > 0) return false;
    std::this_thread::yield();
  }
  return true;
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
  /// What errors call that which goes on in the background from now on; a text that stays.
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

  const NcclFunctions* functions_ = nullptr;
  std::string_view background_ = kAnyOperation;
  /// Shared with the memory that is registered with it; null once it is gone.
  std::shared_ptr<ncclComm_t> comm_;
};

/// Move-only owner of memory from ncclMemAlloc, registered with a communicator that is ready. NCCL
/// works without the registration as well, only slower: where it fails, that is logged at debug
/// level. May outlive the communicator. Nothing is allocated for 0 bytes. Freeing waits for
/// nothing: no work that was enqueued may still use the memory. Thread rule: as NcclCommunicator;
/// once deregister() has been called, and the destructor after that, any one thread.
///
/// become_window() makes it a window of the communicator's symmetric memory besides: collective
/// over its ranks, like deregister() from then on, all of them in one order among these calls.
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
  bool registered() const noexcept { return handle_ != nullptr; }

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

}  // namespace hora::internal
