/// The parts of an engine, and its interfaces to transports. References outlive the engine.
#pragma once

#include <hora/collectives.h>
#include <hora/settings.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/process.h"
#include "core/control_block/node_control_block.h"
#include "core/engine/device.h"
#include "core/engine/node_memory.h"
#include "core/negotiation/topology.h"
#include "core/plan/bound_unit.h"
#include "core/plan/memory_nodes.h"
#include "core/trace/trace.h"

namespace hora::internal {

class FlightRecorder;

/// Runs units in the order in which they are started, without ever blocking. What is complete is
/// counted in the control block (NodeControlBlock::set_done). Thread rule: the thread that holds
/// the engine's lock.
class DataPath {
 public:
  virtual ~DataPath() = default;
  /// Starts the unit; units are numbered 1, 2, ... in the order of these calls. Leaves another one
  /// in `unit`, whose memory may be used again.
  virtual void start(BoundUnit&& unit) = 0;
  /// Makes the progress that is possible now; true if there was any.
  virtual bool advance() = 0;
  /// The unit whose completion depends on local peers alone, 0 where there is none.
  virtual std::uint64_t awaited() const = 0;
  /// True while something is under way that only polling completes (the network).
  virtual bool polls() const = 0;
  /// In place of advance(), after a failure: what arrives from other nodes for the memory of
  /// callers (BoundUnit::is_lent) is cancelled where it can be, and goes on where it cannot.
  /// Returns what is still done to such memory.
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

/// The transports of a process set in the making, and then their owner.
/// Thread rule: the thread that holds the engine's lock.
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

/// Thread rule: the thread that holds the engine's lock, but for control_block_bytes: any
/// thread.
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
};

/// The identity of this rank in a timeline.
inline TraceIdentity identity_of(const Topology& topology, int rank) {
  return {
      .rank = rank, .size = topology.size(), .node = topology.node_of(rank), .host = host_name()};
}

}  // namespace hora::internal
