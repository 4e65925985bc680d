/// Builds and owns all transports of one rank, for its engine.
#pragma once

#include <hora/context.h>

#include <memory>
#include <optional>

#include "core/engine/runtime.h"
#include "ops/context/gpu.h"
#include "ops/context/mpi_sets.h"
#include "ops/context/node_discovery.h"
#include "ops/context/set_path.h"
#include "ops/mpi/communicator.h"
#include "ops/mpi/environment.h"

namespace hora {

/// Windows inside the node, MPI between nodes. Construction is collective and throws the same error
/// on every rank where that is possible.
class MpiTransport final : public Transport {
 public:
  MpiTransport(int* argc, char*** argv, const InitOptions& options);

  EngineParts parts() override;
  void disconnect() override;
  [[noreturn]] void abort() noexcept override;
  void abort_at_exit(std::chrono::milliseconds grace) noexcept override;

 private:
  NodeControlBlock make_control_block();
  void report();
  void start_timeline();

  // In the order in which they are needed; destroyed in reverse.
  std::unique_ptr<MpiEnvironment> environment_;
  Communicator world_;
  Communicator data_;  ///< messages of cross groups, apart from the negotiation's
  Settings settings_;
  NodeDiscovery node_;
  Trace trace_;
  std::optional<SetPath> path_;  ///< the world's
  std::unique_ptr<Gpu> gpu_;     ///< uses the path's messages
  std::optional<MpiSets> sets_;
};

}  // namespace hora
