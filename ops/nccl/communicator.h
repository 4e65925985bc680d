/// Move-only owner of an NCCL communicator.
#pragma once

#include <chrono>
#include <memory>

#include "ops/nccl/functions.h"

namespace hora {

/// A non-blocking communicator: no member waits for other ranks, but for wait_ready() and close(),
/// which have a deadline. Errors are Error(transport). The destructor aborts what was not closed.
/// Thread rule: one thread at a time, that which makes all NCCL calls of this process.
class NcclCommunicator {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  NcclCommunicator() noexcept = default;
  /// Starts the initialisation; collective over the `ranks` that were given the same `id`.
  NcclCommunicator(const NcclFunctions& functions, const ncclUniqueId& id, int ranks, int rank);
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
  /// Shared with the memory that is registered with it; null once it is gone.
  std::shared_ptr<ncclComm_t> comm_;
};

}  // namespace hora
