#include "ops/context/mpi_sets.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/engine/interfaces.h"
#include "ops/cross/cross_group.h"
#include "ops/hierarchy/memory_group.h"
#include "ops/hierarchy/pipeline.h"
#include "ops/mpi/mpi_point_to_point.h"
#include "ops/mpi/tree_link.h"

namespace hora::internal {
namespace {

/// Sets beside the world have fewer names and shorter queues.
constexpr int kSetIds = 1024;
constexpr std::size_t kSetMailbox = std::size_t{64} << 10;
constexpr std::size_t kSetControl = std::size_t{2} << 20;

/// The rank's position in the set, as options of its data path.
PipelineOptions pipeline_options(const Topology& topology, const SetContext& context,
                                 ProcessSet set) {
  return {.node = topology.node_of(context.rank),
          .nodes = topology.nodes(),
          .local_rank = topology.local_rank_of(context.rank),
          .slices = topology.smallest_node(),
          .memory_nodes = MemoryNodes::of(topology, context.memory_nodes),
          .trace = context.trace.of_set(set),
          .topology = renumbered(topology),
          .chunk_bytes = chunk_limit(context.settings->chunk_size, topology.nodes()),
          .job_memory = context.node_memory * static_cast<std::uint64_t>(topology.nodes())};
}

/// The data path and the negotiation's link of one set, for a member.
class SetPath {
 public:
  /// The communicators hold all ranks of the world, carry no other messages, and outlive this; they
  /// are not used in a set of one node.
  SetPath(const SetContext& context, const SetPlan& plan, NodeMemory& memory,
          NodeControlBlock control_block, const Communicator& negotiation, const Communicator& data)
      : topology_(plan.topology),
        memory_(memory),
        control_block_(std::move(control_block)),
        local_(control_block_.local_rank(), control_block_.local_size()) {
    const PipelineOptions options = pipeline_options(topology_, context, plan.id);
    memory_nodes_ = options.memory_nodes;
    if (options.nodes > 1 && options.local_rank < options.slices) {
      messages_.emplace(data, options.node, rank_in_each_node(options.local_rank),
                        message_limit(context.settings->message_size, context.over_sockets));
      cross_.emplace(*messages_, cross_options(*context.settings));
    }
    if (options.nodes > 1 && options.local_rank == 0) {
      tree_.emplace(negotiation, rank_in_each_node(0), options.node);
    }
    GpuGroups gpu;
    if (context.gpu) {
      gpu_ = context.gpu->make_set(plan.id, options, control_block_,
                                   messages_ ? &*messages_ : nullptr);
      gpu = gpu_->groups();
    }
    device_spans_nodes_ = gpu.spans_nodes;
    const LocalGroups locals{.memory = &local_,
                             .device = gpu.local,
                             .device_exchange = gpu.exchange,
                             .device_spans_nodes = gpu.spans_nodes};
    const CrossGroups crosses{.memory = cross_ ? &*cross_ : nullptr, .device = gpu.cross};
    pipeline_.emplace(options, control_block_, memory_, locals, crosses);
  }

  SetParts parts() {
    return {.topology = topology_,
            .control_block = &control_block_,
            .memory = &memory_,
            .data_path = &*pipeline_,
            .tree = tree_ ? &*tree_ : nullptr,
            .memory_nodes = memory_nodes_,
            .device_spans_nodes = device_spans_nodes_};
  }

  /// Before the communicators are freed.
  void disconnect() {
    tree_.reset();
    if (gpu_) gpu_->disconnect();
  }

 private:
  std::vector<int> rank_in_each_node(int local_rank) const {
    std::vector<int> ranks;
    for (const auto& of_node : topology_.ranks_of_node) {
      ranks.push_back(of_node[static_cast<std::size_t>(local_rank)]);
    }
    return ranks;
  }

  Topology topology_;
  NodeMemory& memory_;
  NodeControlBlock control_block_;
  MemoryGroup local_;
  std::optional<MpiPointToPoint> messages_;
  std::optional<MessageCrossGroup> cross_;
  std::optional<MpiTreeLink> tree_;
  std::unique_ptr<GpuSet> gpu_;  ///< null where there is none; uses the messages
  MemoryNodes memory_nodes_;
  bool device_spans_nodes_ = false;
  std::optional<Pipeline> pipeline_;
};

/// Communicators first, where the set has several nodes, then a member's data path over them.
class MpiSet final : public SetTransport {
 public:
  /// `memory`: by local rank in the set. `control_block`: a member's.
  MpiSet(const SetContext& context, const SetPlan& plan, std::optional<MemberMemory> memory,
         std::optional<NodeControlBlock> control_block, const Communicator& world)
      : context_(context),
        plan_(plan),
        memory_(std::move(memory)),
        control_block_(std::move(control_block)),
        world_(world) {}

  bool poll() override {
    if (plan_.topology.nodes() > 1 && !make_communicators()) return false;
    if (control_block_) {
      path_.emplace(context_, plan_, memory_ ? *memory_ : *context_.memory,
                    std::move(*control_block_), communicators_[0], communicators_[1]);
    }
    return true;
  }

  SetParts parts() override { return path_->parts(); }

  void disconnect() override {
    if (path_) path_->disconnect();
    for (Communicator& communicator : communicators_) communicator = Communicator();
  }

 private:
  bool make_communicators() {
    for (; made_ < communicators_.size(); ++made_) {
      if (!pending_) pending_.emplace(world_);
      auto communicator = pending_->poll();
      if (!communicator) return false;
      communicators_[made_] = std::move(*communicator);
      pending_.reset();
    }
    return true;
  }

  SetContext context_;
  SetPlan plan_;
  std::optional<MemberMemory> memory_;             ///< none: numbered as the node's
  std::optional<NodeControlBlock> control_block_;  ///< until the path has it
  const Communicator& world_;
  std::optional<PendingDuplicate> pending_;
  std::size_t made_ = 0;
  std::array<Communicator, 2> communicators_;  ///< of negotiation, of data
  std::optional<SetPath> path_;
};

}  // namespace

ControlBlockShape control_block_shape(const Topology& topology, int node, const Settings& settings,
                                      bool world) {
  ControlBlockShape shape;
  shape.local_size =
      static_cast<int>(topology.ranks_of_node[static_cast<std::size_t>(node)].size());
  shape.id_capacity = world ? settings.id_capacity : std::min(settings.id_capacity, kSetIds);
  shape.single_node = topology.nodes() == 1;
  if (!world) {
    shape.mailbox_bytes = kSetMailbox;
    shape.control_bytes = kSetControl;
  }
  // Room for a decision that assigns every id, with a location for each local rank.
  shape.control_bytes +=
      static_cast<std::size_t>(shape.id_capacity) * static_cast<std::size_t>(shape.local_size) * 16;
  return shape;
}

std::size_t MpiSets::control_block_bytes(const Topology& of_set, int node) const {
  return NodeControlBlock::bytes(control_block_shape(of_set, node, *context_.settings, false));
}

std::unique_ptr<SetTransport> MpiSets::begin(const SetPlan& plan) {
  const int node = plan.topology.node_of(context_.rank);
  if (node < 0) {
    return std::make_unique<MpiSet>(context_, plan, std::nullopt, std::nullopt, world_);
  }
  const bool is_world = plan.id == kWorld;
  const ControlBlockShape shape =
      control_block_shape(plan.topology, node, *context_.settings, is_world);
  std::byte* const block = context_.memory->address(plan.control_block_owner, plan.control_block,
                                                    NodeControlBlock::bytes(shape));
  const int local_rank = plan.topology.local_rank_of(context_.rank);
  if (is_world) {
    NodeControlBlock control_block(block, shape, local_rank);
    wakeup_flags_ = control_block.wakeup_flags();
    return std::make_unique<MpiSet>(context_, plan, std::nullopt, std::move(control_block), world_);
  }
  std::vector<int> members;
  for (const int rank : plan.topology.ranks_of_node[static_cast<std::size_t>(node)]) {
    members.push_back(topology_.local_rank_of(rank));
  }
  NodeControlBlock control_block(block, shape, local_rank, wakeup_flags_->among(members));
  return std::make_unique<MpiSet>(context_, plan,
                                  MemberMemory(*context_.memory, std::move(members)),
                                  std::move(control_block), world_);
}

}  // namespace hora::internal
