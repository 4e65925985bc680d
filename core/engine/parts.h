/// What engines are made of. References outlive the engine.
#pragma once

#include <hora/collectives.h>
#include <hora/settings.h>

#include <memory>
#include <vector>

#include "core/control_block/node_control_block.h"
#include "core/engine/data_path.h"
#include "core/engine/device.h"
#include "core/engine/tree_link.h"
#include "core/negotiation/topology.h"
#include "core/trace/trace.h"

namespace hora {

/// Of one process set.
struct SetParts {
  Topology topology;  ///< its members, by world rank
  NodeControlBlock* control_block = nullptr;
  NodeMemory* memory = nullptr;  ///< peers by their local rank in the set
  DataPath* data_path = nullptr;
  TreeLink* tree = nullptr;  ///< of its node leaders, where it has several nodes
};

/// The transports of a process set in the making, and then their owner.
/// Thread rule: the thread that holds the engine's lock.
class SetTransport {
 public:
  virtual ~SetTransport() = default;
  /// Goes on without blocking; true when parts() are ready. Throws Error(transport).
  virtual bool poll() = 0;
  virtual SetParts parts() = 0;
  /// Frees communicators; memory stays.
  virtual void disconnect() = 0;
};

/// A process set that all ranks of the world have agreed on.
struct SetPlan {
  ProcessSet id = 0;
  Topology topology;  ///< its members, by world rank
  /// The control block of the members on this node, all zero; unused where this rank is no member.
  Location control_block;
  int control_block_owner = 0;  ///< the local rank, in the world, whose window that is in
};

/// Thread rule: the thread that holds the engine's lock, but for board_bytes: any thread.
class SetFactory {
 public:
  virtual ~SetFactory() = default;
  /// Length of the control block of node `node` of such a set.
  virtual std::size_t control_block_bytes(const Topology& of_set, int node) const = 0;
  /// Called on every rank of the world, member or not, in one order; one at a time.
  virtual std::unique_ptr<SetTransport> begin(const SetPlan& plan) = 0;
};

/// Of one rank.
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
};

}  // namespace hora
