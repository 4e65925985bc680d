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
  /// `world`: only for making duplicates; empty in jobs of one node. `board`: of the world.
  MpiSets(const SetGround& ground, const Topology& world_topology, Communicator world,
          const NodeBoard& board)
      : ground_(ground), topology_(world_topology), world_(std::move(world)), board_(board) {}

  std::size_t board_bytes(const Topology& of_set, int node) const override;
  std::unique_ptr<SetTransport> begin(const SetPlan& plan) override;
  void disconnect() { world_ = Communicator(); }

 private:
  SetGround ground_;
  const Topology& topology_;
  Communicator world_;
  const NodeBoard& board_;
};

}  // namespace hora
