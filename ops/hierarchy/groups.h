/// The interfaces that the hierarchy is built from. Every call starts work and returns its
/// Completion, which is polled, never waited for. Thread rule: the thread that holds the engine's
/// lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/plan/plan.h"

namespace hora::internal {

/// Work under way. poll() makes progress without blocking and returns whether it is complete; it
/// throws hora::Error when the work has failed. Not called again once it has returned true.
class PendingWork {
 public:
  virtual ~PendingWork() = default;
  virtual bool poll() = 0;
  /// In place of poll() from now on, after a failure: stops what can be stopped, makes progress
  /// with the rest, and returns what may be done to the work's memory between these calls. Nothing,
  /// where poll() alone moves data. Does not throw.
  virtual MemoryUse cancel() { return MemoryUse::none; }
};

/// Owner of pending work; default-constructed: complete already. Thread rule: one thread at a time.
class Completion {
 public:
  Completion() noexcept = default;
  explicit Completion(std::unique_ptr<PendingWork> work) noexcept : work_(std::move(work)) {}

  bool poll() {
    if (work_ && work_->poll()) work_.reset();
    return work_ == nullptr;
  }
  MemoryUse cancel() { return work_ ? work_->cancel() : MemoryUse::none; }

 private:
  std::unique_ptr<PendingWork> work_;
};

/// One chunk in the hierarchy's pipeline. Ranges are unit bytes.
struct ChunkPart {
  const BoundUnit& unit;  ///< valid until the chunk is complete
  Range chunk;
  int slices;             ///< into which the chunk is cut; local ranks from here on own none
  Range slice;            ///< this rank's; may be empty
  std::size_t slot;       ///< of the staging ring, this rank's until the chunk is complete
  bool has_input = true;  ///< false: a broadcast, and the root is on another node
};

/// Ranks that share a node, or all of a set (DeviceGroups::spans_nodes), of which run() alone
/// is called. By shared windows, by NCCL, or by threads in tests.
class LocalGroup {
 public:
  virtual ~LocalGroup() = default;
  /// True: all local ranks must take part in every chunk, and start its steps in one order.
  virtual bool is_collective() const = 0;
  /// Memory of this rank's slice between reduce_scatter and all_gather, where the cross group works
  /// that it is used with: 64-byte aligned, or where the slice lies in the tensor itself.
  virtual std::byte* staging(const ChunkPart& part) = 0;
  /// The whole operation, for a job of one node, or a group of all ranks whatever their nodes: the
  /// unit summed over (or taken from the root among) all ranks of the group, in all of them.
  virtual Completion run(const BoundUnit& unit) = 0;
  /// This rank's slice, summed over the node without scale (a broadcast: the root's bytes), into
  /// staging; without input: staging may be written to.
  virtual Completion reduce_scatter(const ChunkPart& part) = 0;
  /// This rank's slice from staging to all local ranks.
  virtual Completion all_gather(const ChunkPart& part) = 0;
};

/// The agreement of the ranks of a set, over the host, before an exchange on devices begins.
/// Polled, never waited for. Thread rule: the thread that holds the engine's lock.
class ExchangeAgreement {
 public:
  virtual ~ExchangeAgreement() = default;
  /// Extents of all ranks, by their place in the set; null: not known yet. Valid as long as this.
  virtual const ExchangeExtents* extents() = 0;
  /// Once, when they are known: whether this rank has the memory that it needs.
  virtual void tell(bool has_memory) = 0;
  static constexpr int kNoRank = -1;
  /// After tell(), until it has a value: the first rank, by its place in the set, that lacks
  /// memory, the same on every rank; kNoRank: none does.
  virtual std::optional<int> lacking() = 0;
  /// The number of the cross group's sequence numbers, and of rounds of ExchangeRounds, that it
  /// takes.
  virtual std::uint64_t rounds() const = 0;
};

/// Exchanges of tensors on devices, which all ranks start in the same order.
class ExchangeGroup {
 public:
  virtual ~ExchangeGroup() = default;
  /// This rank's part of the exchange; unit.exchange.result allocates the result. Unit and
  /// agreement stay until completion, which may come before the device has done it (DeviceWork).
  virtual Completion run(const BoundUnit& unit, ExchangeAgreement& agreement) = 0;
};

/// The ranks of one local rank, one in each node, whose index is theirs. By MPI. `sequence` numbers
/// the operations, equal on all members, which start them in that order, several at once. Staging
/// is 64-byte aligned, but of a broadcast, and stays valid until completion.
class CrossGroup {
 public:
  virtual ~CrossGroup() = default;
  /// staging = the nodes' stagings taken together (`reduction`). Bytes are a multiple of the
  /// element size.
  virtual Completion allreduce(const Reduction& reduction, std::span<std::byte> staging,
                               std::uint64_t sequence) = 0;
  /// staging = Adasum of the nodes' stagings, tensor by tensor (`tensors`: their bytes in it).
  virtual Completion adasum(DataType type, std::span<std::byte> staging, std::vector<Range> tensors,
                            std::uint64_t sequence) = 0;
  /// staging of all nodes = staging of node `root`, which is only read.
  virtual Completion broadcast(std::span<std::byte> staging, int root, std::uint64_t sequence) = 0;
  /// sends[n] goes to node n, receives[n] is filled by node n: by node, the own one unused. Lengths
  /// match pair by pair; memory stays until completion and may have any alignment.
  virtual Completion exchange(std::span<const std::span<const std::byte>> sends,
                              std::span<const std::span<std::byte>> receives,
                              std::uint64_t sequence) = 0;
};

/// The groups of devices in a process set; null where there is none.
struct DeviceGroups {
  LocalGroup* local = nullptr;
  ExchangeGroup* exchange = nullptr;  ///< null in sets of several nodes, but where it spans them
  /// For slices that stay in device memory; null: the memory's cross group.
  CrossGroup* cross = nullptr;
  bool spans_nodes = false;  ///< the groups are of all ranks of the set, whatever their nodes
};

}  // namespace hora::internal
