#include "ops/context/mpi_sets.h"

#include <array>
#include <optional>
#include <utility>

#include "core/engine/node_memory.h"

namespace hora {
namespace {

/// Communicators first, where the set has several nodes, then a member's data path over them.
class MpiSetTransport final : public SetTransport {
 public:
  MpiSetTransport(const SetContext& context, const SetPlan& plan, const Communicator& world,
                  std::vector<int> members, std::optional<NodeControlBlock> control_block)
      : context_(context),
        id_(plan.id),
        topology_(plan.topology),
        memory_(*context.memory, std::move(members)),
        control_block_(std::move(control_block)),
        world_(world) {}

  bool poll() override {
    if (topology_.nodes() > 1) {
      while (made_ < communicators_.size()) {
        if (!pending_) pending_.emplace(world_);
        auto communicator = pending_->poll();
        if (!communicator) return false;
        communicators_[made_++] = std::move(*communicator);
        pending_.reset();
      }
    }
    if (control_block_) {
      path_.emplace(context_, id_, topology_, memory_, std::move(*control_block_),
                    communicators_[0], communicators_[1]);
      if (context_.gpu) {
        gpu_ = context_.gpu->make_set(pipeline_options(topology_, context_, id_),
                                      path_->control_block());
      }
      path_->connect(gpu_ ? gpu_->groups() : GpuGroups());
    }
    return true;
  }

  SetParts parts() override { return path_->parts(); }

  void disconnect() override {
    if (path_) path_->disconnect();
    if (gpu_) gpu_->disconnect();
    for (Communicator& communicator : communicators_) communicator = Communicator();
  }

 private:
  SetContext context_;
  ProcessSet id_;
  Topology topology_;
  MemberMemory memory_;
  std::optional<NodeControlBlock> control_block_;  ///< until the path has it
  const Communicator& world_;
  std::optional<PendingDuplicate> pending_;
  std::size_t made_ = 0;
  std::array<Communicator, 2> communicators_;  ///< of negotiation, of data
  std::unique_ptr<GpuSet> gpu_;                ///< null where there is none
  std::optional<SetPath> path_;
};

}  // namespace

std::size_t MpiSets::control_block_bytes(const Topology& of_set, int node) const {
  return NodeControlBlock::bytes(control_block_shape(of_set, node, *context_.settings, false));
}

std::unique_ptr<SetTransport> MpiSets::begin(const SetPlan& plan) {
  const int node = plan.topology.node_of(context_.rank);
  std::vector<int> members;
  std::optional<NodeControlBlock> control_block;
  if (node >= 0) {
    for (const int rank : plan.topology.ranks_of_node[static_cast<std::size_t>(node)]) {
      members.push_back(topology_.local_rank_of(rank));
    }
    control_block.emplace(context_.memory->address(plan.control_block_owner, plan.control_block,
                                                   control_block_bytes(plan.topology, node)),
                          control_block_shape(plan.topology, node, *context_.settings, false),
                          plan.topology.local_rank_of(context_.rank),
                          control_block_.wakeup_flags().among(members));
  }
  return std::make_unique<MpiSetTransport>(context_, plan, world_, std::move(members),
                                           std::move(control_block));
}

}  // namespace hora
