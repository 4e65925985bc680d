/// Process sets, the world among them, over windows and MPI.
#pragma once

#include <hora/settings.h>

#include <optional>
#include <vector>

#include "core/engine/interfaces.h"
#include "ops/context/gpu.h"
#include "ops/mpi/communicator.h"

namespace hora::internal {

/// What all process sets of a rank are built on. References outlive the sets.
struct SetContext {
  int rank = 0;  ///< world rank
  const Settings* settings = nullptr;
  NodeMemory* memory = nullptr;   ///< the node's, by local rank in the world
  std::uint64_t node_memory = 0;  ///< bytes of the node that has fewest
  bool over_sockets = false;      ///< NodeDiscovery
  std::vector<int> memory_nodes;  ///< likewise
  Tracer trace = {};
  Gpu* gpu = nullptr;  ///< where this rank has one
};

/// The control block of node `node` of a set; `world`: of the set of all ranks.
ControlBlockShape control_block_shape(const Topology& topology, int node, const Settings& settings,
                                      bool world);

/// A set of one node needs no communicator. One of several nodes has two of its own, of negotiation
/// and of data, duplicates of the world's made without blocking (MPI_Comm_idup), so that its
/// messages meet no others.
class MpiSets final : public SetFactory {
 public:
  /// `world`: of all ranks, only for making duplicates; outlives all sets until they are
  /// disconnected.
  MpiSets(const SetContext& context, const Topology& world_topology, const Communicator& world)
      : context_(context), topology_(world_topology), world_(world) {}

  std::size_t control_block_bytes(const Topology& of_set, int node) const override;
  /// The world (set 0) comes first.
  std::unique_ptr<SetTransport> begin(const SetPlan& plan) override;

 private:
  SetContext context_;
  const Topology& topology_;
  const Communicator& world_;
  std::optional<WakeupFlags> wakeup_flags_;  ///< the world's
};

}  // namespace hora::internal
