/// The groups of one process set, the world among them, on this process's GPU.
#pragma once

#include <cstdint>

#include "core/control_block/launch_ticket_lock.h"
#include "ops/nccl/launches.h"
#include "ops/nccl/nccl_exchange.h"
#include "ops/nccl/nccl_group.h"

namespace hora::internal {

/// The world's communicator is made at start-up, by connect(). That of another set is made with its
/// first collective on GPUs, from an id that the leader of its ranks of this node leaves in their
/// shared memory; so is its memory for chunks.
/// Thread rule: the thread that holds the engine's lock.
class NcclSet {
 public:
  enum class Connects : std::uint8_t { at_start, when_used };

  /// The world's comes first. The context outlives it.
  NcclSet(NcclContext& context, NcclGroupOptions options, LaunchTicketLock ticket_lock,
          Connects connects);
  /// Aborts before memory is freed: freeing waits for collectives that may never complete.
  ~NcclSet();
  NcclSet(const NcclSet&) = delete;
  NcclSet& operator=(const NcclSet&) = delete;

  /// Of the world: begins to make the communicator. Throws Error(transport).
  void connect(const ncclUniqueId& id);
  NcclCommunicator& communicator() { return communicator_; }
  LocalGroup& group() { return group_; }
  ExchangeGroup& exchange() { return exchange_; }
  /// The set is removed: see NcclCommunicators::retire.
  void disconnect();

 private:
  NcclLaunches::Connection connection(LaunchTicketLock ticket_lock);

  NcclContext& context_;
  NcclGroupOptions options_;
  NcclCommunicator& communicator_;
  NcclLaunches launches_;
  NcclGroup group_;
  NcclExchange exchange_;
};

}  // namespace hora::internal
