/// ExchangeGroup on the GPUs of a communicator's ranks, by NCCL.
///
/// The groups of one process set, the world among them, on this process's GPU.
#pragma once

#include <cstdint>
#include <memory>

#include "core/control_block/launch_ticket_lock.h"
#include "core/plan/exchange.h"
#include "ops/hierarchy/groups.h"
#include "ops/nccl/launches.h"
#include "ops/nccl/nccl_group.h"

namespace hora::internal {

/// Straight from the inputs into the results: an allgather and a reduce-scatter whose parts are all
/// of one length by NCCL's own, others by a broadcast or a reduce for each part, an alltoall by
/// sends and receives, all in one group. Inputs stay as they are: where values must be prepared
/// (communicator.h), a copy of them is, which also stands for an input in a window (NcclBuffers)
/// whose result lies in one: other ranks' may lie elsewhere. Thread rule: the thread that holds the
/// engine's lock.
class NcclExchange final : public ExchangeGroup {
 public:
  /// `place`: among the ranks of the launches' communicator, which are those of the set. References
  /// outlive it.
  NcclExchange(int local_rank, PlaceInSet place, NcclLaunches& launches, DeviceHeap& heap);

  /// Memory for the result is taken as soon as extents are known. Nothing is launched before every
  /// rank has said whether it has that memory: where one lacks it, this exchange alone fails, on
  /// every rank with the same Error(out_of_memory).
  Completion run(const BoundUnit& unit, ExchangeAgreement& agreement) override;

 private:
  struct Work;
  class Run;

  bool take_memory(Work& work, const ExchangeExtents& extents);
  void refuse(const Work& work, const ExchangeExtents& extents, int lacking) const;
  Completion launch(const std::shared_ptr<Work>& work);
  void enqueue(Work& work);
  void gather(const Work& work);
  void send_and_receive(const Work& work);
  void prepare(const Work& work);
  std::size_t input_bytes(const Work& work) const;
  void reduce(const Work& work);
  void scale(const Work& work);
  void copy(const BatchedCopy& kind, const std::byte* source, std::byte* target, std::size_t bytes);

  int local_rank_;
  int rank_;           ///< of the communicator
  Topology topology_;  ///< its ranks, as of one node
  NcclLaunches& launches_;
  DeviceHeap& heap_;
};

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

  /// Begins to make the communicator of the world. Throws Error(transport).
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
