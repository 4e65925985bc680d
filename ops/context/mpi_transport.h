/// All transports of one rank, put together for its engine.
#pragma once

#include <memory>
#include <optional>

#include "core/engine/runtime.h"
#include "ops/context/gpu.h"
#include "ops/context/node_discovery.h"
#include "ops/hierarchy/memory_group.h"
#include "ops/hierarchy/pipeline.h"
#include "ops/mpi/communicator.h"
#include "ops/mpi/cross_group.h"
#include "ops/mpi/environment.h"
#include "ops/mpi/mpi_point_to_point.h"
#include "ops/mpi/tree_link.h"

namespace hora {

/// Windows inside the node, MPI between nodes. Construction is collective and throws the same error
/// on every rank where that is possible.
class MpiTransport final : public Transport {
 public:
  MpiTransport(int* argc, char*** argv);

  EngineParts parts() override;
  void disconnect() override;
  [[noreturn]] void abort() noexcept override;

 private:
  void make_board();
  void connect_nodes();
  void report() const;
  void start_timeline();

  // In the order in which they are needed; destroyed in reverse.
  std::unique_ptr<MpiEnvironment> environment_;
  Communicator world_;
  Communicator data_;  ///< messages of cross groups, apart from the negotiation's
  Settings settings_;
  NodeDiscovery node_;
  Trace trace_;
  int my_node_ = 0;
  int my_local_rank_ = 0;
  std::optional<NodeBoard> board_;
  std::optional<MemoryGroup> local_;
  std::optional<MpiPointToPoint> messages_;
  std::optional<MessageCrossGroup> cross_;
  std::optional<MpiTreeLink> tree_;
  std::unique_ptr<Gpu> gpu_;
  std::optional<Pipeline> pipeline_;
};

}  // namespace hora
