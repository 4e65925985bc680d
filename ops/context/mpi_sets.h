/// Process sets beside the world, over windows and MPI.
#pragma once

#include <vector>

#include "core/engine/parts.h"
#include "ops/context/set_path.h"
#include "ops/mpi/communicator.h"

namespace hora {

/// A set of one node needs no communicator. One of several nodes has two of its own, duplicates of
/// the world's made without blocking (MPI_Comm_idup), so that its messages meet no others.
class MpiSets final : public SetFactory {
 public:
  /// `world`: only for making duplicates; empty in jobs of one node. `control block`: of the world.
  MpiSets(const SetContext& context, const Topology& world_topology, Communicator world,
          const NodeControlBlock& control_block)
      : context_(context),
        topology_(world_topology),
        world_(std::move(world)),
        control_block_(control_block) {}

  std::size_t control_block_bytes(const Topology& of_set, int node) const override;
  std::unique_ptr<SetTransport> begin(const SetPlan& plan) override;
  void disconnect() { world_ = Communicator(); }

 private:
  SetContext context_;
  const Topology& topology_;
  Communicator world_;
  const NodeControlBlock& control_block_;
};

}  // namespace hora
