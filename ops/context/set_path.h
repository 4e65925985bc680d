/// Builds and owns the transports of one process set, the world's among them.
#pragma once

#include <hora/settings.h>

#include <optional>

#include "core/engine/parts.h"
#include "ops/context/gpu.h"
#include "ops/cross/cross_group.h"
#include "ops/hierarchy/memory_group.h"
#include "ops/hierarchy/pipeline.h"
#include "ops/mpi/communicator.h"
#include "ops/mpi/mpi_point_to_point.h"
#include "ops/mpi/tree_link.h"

namespace hora {

/// What all process sets of a rank are built on. References outlive the sets.
struct SetContext {
  int rank = 0;  ///< world rank
  const Settings* settings = nullptr;
  NodeMemory* memory = nullptr;   ///< the node's, by local rank in the world
  std::uint64_t node_memory = 0;  ///< bytes of the node that has fewest
  Tracer trace = {};
  Gpu* gpu = nullptr;  ///< where this rank has one
};

/// The control block of node `node` of a set; `world`: of the set of all ranks.
ControlBlockShape control_block_shape(const Topology& topology, int node, const Settings& settings,
                                      bool world);

/// Where the rank is in the set, as its data path needs it.
PipelineOptions pipeline_options(const Topology& topology, const SetContext& context,
                                 ProcessSet set);

/// The data path and the negotiation's link of one set, for a member.
/// Thread rule: the thread that holds the engine's lock.
class SetPath {
 public:
  /// The communicators hold all ranks of the world, carry no other messages, and outlive this; they
  /// are not used in a set of one node.
  SetPath(const SetContext& context, ProcessSet set, const Topology& topology, NodeMemory& memory,
          NodeControlBlock control_block, const Communicator& negotiation,
          const Communicator& data);

  NodeControlBlock& control_block() { return control_block_; }
  /// Of this rank's cross group; null where it has none.
  PointToPoint* messages() { return messages_ ? &*messages_ : nullptr; }
  /// `gpu`: the groups for tensors on this rank's GPU; they outlive this.
  void connect(const GpuGroups& gpu);
  /// Once connected.
  SetParts parts();
  /// Before the communicators are freed.
  void disconnect() { tree_.reset(); }

 private:
  PipelineOptions options_;
  Topology topology_;
  NodeMemory& memory_;
  NodeControlBlock control_block_;
  MemoryGroup local_;
  std::optional<MpiPointToPoint> messages_;
  std::optional<MessageCrossGroup> cross_;
  std::optional<MpiTreeLink> tree_;
  std::optional<Pipeline> pipeline_;
};

}  // namespace hora
