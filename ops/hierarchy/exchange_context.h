/// What all exchanges of a pipeline share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/control_block/exchange_rounds.h"
#include "core/negotiation/topology.h"
#include "ops/hierarchy/exchange_memory.h"
#include "ops/hierarchy/groups.h"

namespace hora {

struct ExchangeContext {
  Topology topology;  ///< of the set
  int node = 0;       ///< this rank's
  int local_rank = 0;
  int slices = 1;
  std::size_t chunk_bytes = 0;
  ExchangeRounds rounds;
  ExchangeMemory memory;
  CrossGroup* cross = nullptr;            ///< null on local ranks without a slice, and in one node
  std::uint64_t rounds_done = 0;          ///< of the exchanges that are complete
  std::uint64_t job_memory = UINT64_MAX;  ///< bytes that all results of an exchange can have

  /// The rank in the set of a local rank of this node.
  int rank_of(int local_rank_of_mine) const {
    return topology.ranks_of_node[static_cast<std::size_t>(node)]
                                 [static_cast<std::size_t>(local_rank_of_mine)];
  }
};

}  // namespace hora
