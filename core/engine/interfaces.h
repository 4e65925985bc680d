/// The engine's interfaces to transports and devices, and its parts. References outlive it.
#pragma once

#include <hora/collectives.h>
#include <hora/error.h>
#include <hora/settings.h>
#include <hora/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/base/process.h"
#include "core/control_block/node_control_block.h"
#include "core/control_block/tensor_id.h"
#include "core/flight/flight_recorder.h"
#include "core/negotiation/topology.h"
#include "core/plan/plan.h"
#include "core/trace/trace.h"

namespace hora::internal {

/// Memory that the node's ranks share: this one's, and theirs. Thread rule: any thread.
class NodeMemory {
 public:
  struct MemoryBlock {
    std::byte* data = nullptr;
    Location location;
  };
  virtual ~NodeMemory() = default;
  /// 64-byte aligned. Throws Error(out_of_memory).
  virtual MemoryBlock allocate(std::size_t bytes) = 0;
  virtual void release(std::byte* data) noexcept = 0;
  /// Where [data, data + bytes) lies in this rank's windows, if it does.
  virtual std::optional<Location> find(const std::byte* data, std::size_t bytes) const = 0;
  /// Where a peer keeps `bytes` bytes. Throws Error(transport) outside of its windows.
  virtual std::byte* address(int local_rank, Location location, std::size_t bytes) = 0;
  /// memcpy to where nothing is read soon, or by peers first: long ones leave the caches alone.
  virtual void copy_past_caches(std::byte* out, const std::byte* in, std::size_t bytes) = 0;
};

/// The node's memory, which outlives it, as a process set numbers its ranks. Thread rule: as that.
class MemberMemory final : public NodeMemory {
 public:
  /// `members[i]`: local rank in the world of the set's local rank i.
  MemberMemory(NodeMemory& memory, std::vector<int> members)
      : memory_(memory), members_(std::move(members)) {}

  MemoryBlock allocate(std::size_t bytes) override { return memory_.allocate(bytes); }
  void release(std::byte* data) noexcept override { memory_.release(data); }
  std::optional<Location> find(const std::byte* data, std::size_t bytes) const override {
    return memory_.find(data, bytes);
  }
  std::byte* address(int local_rank, Location location, std::size_t bytes) override {
    return memory_.address(members_[static_cast<std::size_t>(local_rank)], location, bytes);
  }
  void copy_past_caches(std::byte* out, const std::byte* in, std::size_t bytes) override {
    memory_.copy_past_caches(out, in, bytes);
  }

 private:
  NodeMemory& memory_;
  std::vector<int> members_;
};

/// An error of a device's library that may follow from what has happened on a peer, which hora
/// hears of on its own ways a little later: its cause then holds instead. Error(transport).
class PeerFailure final : public Error {
 public:
  using Error::Error;
};

/// One operation's memory on a device; streams are cudaStream_t. Only synchronize() blocks the
/// host. Thread rule: wait_done, synchronize: any thread after record_done; else the lock's holder.
class DeviceWork {
 public:
  virtual ~DeviceWork() = default;
  /// Work given to `stream` from now on begins after the caller's data is there.
  virtual void wait_ready(void* stream) = 0;
  /// The result is there when `stream` has done what it was given so far.
  virtual void record_done(void* stream) = 0;
  /// Work given to `stream` from now on begins after the result is there.
  virtual void wait_done(void* stream) = 0;
  /// Blocks the host until the result is there.
  virtual void synchronize() = 0;
};

/// Memory for results, whose life and copies are ordered by streams. No stream (nullopt): the
/// device's own, on which collectives run. Thread rule: any thread.
class DeviceHeap {
 public:
  virtual ~DeviceHeap() = default;
  /// For what `stream` is given from now on. 256-byte aligned. Throws Error(out_of_memory).
  virtual std::byte* allocate(std::size_t bytes, std::optional<void*> stream) = 0;
  /// Freed when `stream` has done what it was given so far.
  virtual void release(std::byte* data, std::optional<void*> stream) noexcept = 0;
  /// After what `stream` holds; both block until the copy is there. Throw Error(transport).
  virtual void to_host(std::byte* host, const std::byte* data, std::size_t bytes, void* stream) = 0;
  virtual void to_device(std::byte* data, const std::byte* host, std::size_t bytes,
                         void* stream) = 0;
  /// Called where memory is lacking, before allocate() tries once more: gives back to the device
  /// what the framework keeps for later. Null: nobody does. By any thread.
  virtual void set_cache_release(void (*give_back)()) noexcept = 0;
};

/// Memory that frees itself, in the order of the device's own stream. The heap outlives it.
inline std::shared_ptr<std::byte> allocate_owned(DeviceHeap& heap, std::size_t bytes,
                                                 std::optional<void*> stream = std::nullopt) {
  return {heap.allocate(bytes, stream),
          [&heap](std::byte* data) { heap.release(data, std::nullopt); }};
}

/// Runs a step with the engine's lock held; false, and it is not run, where the engine has failed.
using WithEngineLock = std::function<bool(const std::function<void()>&)>;

/// A operation's memory on a device, as it begins.
struct BegunOnDevice {
  std::shared_ptr<DeviceWork> work;
  /// For the ranks of the node, which see it beside their own (BoundUnit::places).
  Location place = {};
};

/// This process's device. Thread rule: begin() and release(): any thread, else the lock's holder.
class DevicePort {
 public:
  virtual ~DevicePort() = default;
  /// Memory is ready once `stream`, and that of a result on another `output_stream`, has done what
  /// it was given. `data`: of a tensor of the world worked on in place; null: without a place.
  virtual BegunOnDevice begin(const std::byte* data, void* stream,
                              std::optional<void*> output_stream) = 0;
  /// For buffers, 256-byte aligned. Throws Error(out_of_memory).
  virtual std::byte* allocate(std::size_t bytes) = 0;
  /// Waits for all that the device holds, as cudaFree() does, without the engine's lock. Frees
  /// nothing where the engine or the device has failed: peers may still write there.
  virtual void release(std::byte* data, const WithEngineLock& locked) noexcept = 0;
  /// Collectives are under way on the device. Throws Error(transport) where they fail, or hang.
  virtual bool check() = 0;
  /// Ends what is under way on the device, so that no thread waits for it any longer.
  virtual void abort() noexcept = 0;
};

/// Runs units in the order in which they are started, never blocking; complete ones are counted by
/// NodeControlBlock::set_done. Thread rule: the holder of the engine's lock.
class DataPath {
 public:
  virtual ~DataPath() = default;
  /// Starts unit number 1, 2, ... in the order of calls. Leaves one in `unit` to be used again.
  virtual void start(BoundUnit&& unit) = 0;
  /// Makes the progress that is possible now; true if there was any.
  virtual bool advance() = 0;
  /// The unit whose completion depends on local peers alone, 0 where there is none.
  virtual std::uint64_t awaited() const = 0;
  /// True while something is under way that only polling completes (the network).
  virtual bool polls() const = 0;
  /// An allreduce's sum at once, with the bits of a unit's: `inputs`, in their order, into each of
  /// `outputs`, all in host memory. Each input is multiplied by `pre`, the sum by `post`.
  virtual void reduce(const Signature& signature, std::span<const std::byte* const> inputs,
                      std::span<std::byte* const> outputs, double pre, double post) = 0;
  /// In place of advance(), after a failure: cancels what arrives from other nodes for callers'
  /// memory (BoundUnit::is_lent) where it can. Returns what is still done to such memory.
  virtual MemoryUse withdraw() = 0;
};

/// Whole messages between node leaders, in order between each pair. Failures throw
/// Error(transport). Thread rule: the thread that holds the engine's lock.
class TreeLink {
 public:
  struct Received {
    int node = 0;  ///< the sender's node index
    std::vector<std::byte> bytes;
  };

  virtual ~TreeLink() = default;
  /// Sends a copy of `message` to the leader of `node`. Never blocks.
  virtual void send(int node, std::span<const std::byte> message) = 0;
  /// The next message from any node, without blocking.
  virtual std::optional<Received> receive() = 0;
  /// True when every message sent so far has left; makes progress.
  virtual bool flushed() = 0;
};

/// The parts that one process set has on this rank.
struct SetParts {
  Topology topology;  ///< its members, by world rank
  NodeControlBlock* control_block = nullptr;
  NodeMemory* memory = nullptr;  ///< peers by their local rank in the set
  DataPath* data_path = nullptr;
  TreeLink* tree = nullptr;       ///< of its node leaders, where it has several nodes
  MemoryNodes memory_nodes = {};  ///< of its only node, the same on all ranks
  /// Collectives on devices run whole among all its ranks, whatever their nodes. The same on all.
  bool device_spans_nodes = false;
};

/// A process set's transports, in the making and after. Thread rule: the engine's lock's holder.
class SetTransport {
 public:
  virtual ~SetTransport() = default;
  /// Makes progress without blocking; true when parts() are ready. Throws Error(transport).
  virtual bool poll() = 0;
  virtual SetParts parts() = 0;
  /// Frees communicators; memory stays.
  virtual void disconnect() = 0;
};

/// A process set that all ranks of the world have agreed on.
struct SetPlan {
  ProcessSet id = kWorld;
  Topology topology;  ///< its members, by world rank
  /// The control block of the members on this node, all zero; unused where this rank is no member.
  Location control_block;
  int control_block_owner = 0;  ///< the local rank, in the world, whose window that is in
};

/// Thread rule: the holder of the engine's lock; control_block_bytes: any thread.
class SetFactory {
 public:
  virtual ~SetFactory() = default;
  /// Length of the control block of node `node` of such a set.
  virtual std::size_t control_block_bytes(const Topology& of_set, int node) const = 0;
  /// Called on every rank of the world, member or not, in one order; one at a time.
  virtual std::unique_ptr<SetTransport> begin(const SetPlan& plan) = 0;
};

/// The parts that one rank has.
struct EngineParts {
  SetParts world;
  int rank = 0;  ///< world rank
  Settings settings;
  bool has_core = false;           ///< no fewer cores than ranks: polling need not yield
  bool threads_supported = false;  ///< the application may call the transport's library beside it
  DevicePort* device = nullptr;    ///< where this process has one
  DeviceHeap* device_heap = nullptr;  ///< likewise
  int device_index = 0;               ///< which one that is
  SetFactory* sets = nullptr;
  Tracer trace = {};
  FlightRecorder* flight = nullptr;  ///< where there is a record
  /// By world rank, for messages; empty where they are not known.
  std::vector<ProcessIdentity> processes = {};
  /// Ends every rank of the job without waiting for anything.
  std::function<void()> abort = [] { std::abort(); };

  RecordWriter record() const { return flight ? flight->writer() : RecordWriter(); }
  /// This rank's.
  RankStatus& status() const {
    return world.control_block->status(world.control_block->local_rank());
  }
};

/// The transports of an engine, created and owned by ops.
class Transport {
 public:
  virtual ~Transport() = default;
  /// For the one engine; references stay valid as long as the transport.
  virtual EngineParts parts() = 0;
  /// Frees communicators once every rank has departed. Memory stays until destruction. Collective.
  virtual void disconnect() = 0;
  /// Fails the job when this process exits, or after `grace`; calls `first` before that.
  virtual void abort_at_exit(std::chrono::milliseconds grace, std::function<void()> first) = 0;
};

/// The identity of this rank in a timeline.
inline TraceIdentity identity_of(const Topology& topology, int rank) {
  return {
      .rank = rank, .size = topology.size(), .node = topology.node_of(rank), .host = host_name()};
}

}  // namespace hora::internal
