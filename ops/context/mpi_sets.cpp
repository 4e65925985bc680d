#include "ops/context/mpi_sets.h"

#include <array>
#include <optional>
#include <utility>

#include "core/engine/member_memory.h"

namespace hora {
namespace {

/// Communicators first, where the set has several nodes, then a member's data path over them.
class MpiSetTransport final : public SetTransport {
 public:
  MpiSetTransport(const SetGround& ground, const SetPlan& plan, const Communicator& world,
                  std::vector<int> members, std::optional<NodeBoard> board)
      : ground_(ground),
        id_(plan.id),
        topology_(plan.topology),
        memory_(*ground.memory, std::move(members)),
        board_(std::move(board)),
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
    if (board_) {
      path_.emplace(ground_, id_, topology_, memory_, std::move(*board_), communicators_[0],
                    communicators_[1]);
      if (ground_.gpu) {
        gpu_ = ground_.gpu->make_set(pipeline_options(topology_, ground_, id_), path_->board());
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
  SetGround ground_;
  ProcessSet id_;
  Topology topology_;
  MemberMemory memory_;
  std::optional<NodeBoard> board_;  ///< until the path has it
  const Communicator& world_;
  std::optional<PendingDuplicate> pending_;
  std::size_t made_ = 0;
  std::array<Communicator, 2> communicators_;  ///< of negotiation, of data
  std::unique_ptr<GpuSet> gpu_;                ///< null where there is none
  std::optional<SetPath> path_;
};

}  // namespace

std::size_t MpiSets::board_bytes(const Topology& of_set, int node) const {
  return NodeBoard::bytes(board_shape(of_set, node, *ground_.settings, false));
}

std::unique_ptr<SetTransport> MpiSets::begin(const SetPlan& plan) {
  const int node = plan.topology.node_of(ground_.rank);
  std::vector<int> members;
  std::optional<NodeBoard> board;
  if (node >= 0) {
    for (const int rank : plan.topology.ranks_of_node[static_cast<std::size_t>(node)]) {
      members.push_back(topology_.local_rank_of(rank));
    }
    board.emplace(
        ground_.memory->address(plan.board_owner, plan.board, board_bytes(plan.topology, node)),
        board_shape(plan.topology, node, *ground_.settings, false),
        plan.topology.local_rank_of(ground_.rank), board_.bells().among(members));
  }
  return std::make_unique<MpiSetTransport>(ground_, plan, world_, std::move(members),
                                           std::move(board));
}

}  // namespace hora
