/// Owned MPI communicators, how they are made, and start-up's collectives on them.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ops/cross/point_to_point.h"
#include "ops/mpi/roll_call.h"

namespace hora::internal {

/// Move-only owner of a communicator whose errors are returned, not fatal. Every member but the
/// accessors is collective and blocks: for init only. All throw Error(transport). Where ranks of
/// the application may be missing, a roll call comes first, with `patience` (roll_call.h). The
/// destructor frees the communicator unless MPI is finalised. (MPI 4.0, 7.4.3: freeing is
/// collective, but anticipated to be local; it does not wait in Open MPI and MPICH.) Thread rule:
/// one thread at a time.
class Communicator {
 public:
  Communicator() noexcept = default;
  Communicator(Communicator&& other) noexcept;
  Communicator& operator=(Communicator&& other) noexcept;
  ~Communicator();

  /// Of all ranks, with messages of its own.
  static Communicator world(const Patience& patience = {});
  /// A duplicate of the application's. Throws Error(invalid_argument) for one that is null or an
  /// intercommunicator.
  static Communicator of(MPI_Comm application, const Patience& patience = {});
  /// Of these ranks of MPI_COMM_WORLD, this one among them: collective over them alone. Throws
  /// Error(invalid_argument) where they are not ascending, do not exist or leave this one out.
  static Communicator of(const std::vector<int>& ranks, const Patience& patience = {});
  Communicator duplicate() const;
  /// The ranks that give the same `color`, ordered by `key`, then by rank; a negative color gives
  /// an empty communicator.
  Communicator split(int color, int key) const;
  /// The ranks that MPI says can share memory with this one, in rank order.
  Communicator split_by_shared_memory() const;

  bool empty() const noexcept { return comm_ == MPI_COMM_NULL; }
  MPI_Comm get() const noexcept { return comm_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

 private:
  friend class PendingDuplicate;
  explicit Communicator(MPI_Comm comm);  // takes ownership
  static Communicator duplicate_of(MPI_Comm original, const char* call);
  void release() noexcept;

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 0;
};

/// A duplicate in the making (MPI_Comm_idup): begun on every rank of the original in one order, one
/// at a time, and never waited for. Destroyed before it is complete it leaks what MPI writes to,
/// for before an abort. Thread rule: one thread at a time.
class PendingDuplicate {
 public:
  explicit PendingDuplicate(const Communicator& original);
  PendingDuplicate(const PendingDuplicate&) = delete;
  PendingDuplicate& operator=(const PendingDuplicate&) = delete;
  ~PendingDuplicate();

  /// Makes progress without blocking; returns the duplicate, once. Throws Error(transport).
  std::optional<Communicator> poll();

 private:
  MPI_Request request_ = MPI_REQUEST_NULL;
  std::unique_ptr<MPI_Comm> duplicate_;  ///< MPI writes to it until the request is complete
};

/// Start-up's collectives. A roll call (roll_call.h) precedes each blocking call, so that missing
/// ranks are named and the wait is bounded. Thread rule: one thread at a time.
class MpiBootstrap final : public Bootstrap {
 public:
  /// `communicator` carries no other messages meanwhile.
  explicit MpiBootstrap(Communicator communicator, Patience patience = {});

  const Communicator& communicator() const noexcept { return communicator_; }

  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> bytes) override;
  std::vector<std::byte> broadcast(std::span<const std::byte> bytes, int root) override;
  void barrier() override;
  std::unique_ptr<Bootstrap> of_host() override;

 private:
  void meet(const char* call) const;

  Communicator communicator_;
  Patience patience_;
};

}  // namespace hora::internal
