#include "ops/context/set_path.h"

#include <algorithm>
#include <utility>

namespace hora {
namespace {

/// Sets beside the world have fewer names and shorter queues.
constexpr int kSetIds = 1024;
constexpr std::size_t kSetMailbox = std::size_t{64} << 10;
constexpr std::size_t kSetControl = std::size_t{2} << 20;

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

PipelineOptions pipeline_options(const Topology& topology, const SetContext& context,
                                 ProcessSet set) {
  return {.node = topology.node_of(context.rank),
          .nodes = topology.nodes(),
          .local_rank = topology.local_rank_of(context.rank),
          .slices = topology.smallest_node(),
          .trace = context.trace.of_set(set),
          .topology = renumbered(topology),
          .chunk_bytes = context.settings->chunk_size,
          .job_memory = context.node_memory * static_cast<std::uint64_t>(topology.nodes())};
}

SetPath::SetPath(const SetContext& context, ProcessSet set, const Topology& topology,
                 NodeMemory& memory, NodeControlBlock control_block,
                 const Communicator& negotiation, const Communicator& data)
    : options_(pipeline_options(topology, context, set)),
      topology_(topology),
      memory_(memory),
      control_block_(std::move(control_block)),
      local_(control_block_.local_rank(), control_block_.local_size()) {
  if (options_.nodes == 1) return;
  const auto rank_in_each_node = [&](int local_rank) {
    std::vector<int> ranks;
    for (const auto& of_node : topology_.ranks_of_node) {
      ranks.push_back(of_node[static_cast<std::size_t>(local_rank)]);
    }
    return ranks;
  };
  if (options_.local_rank < options_.slices) {
    messages_.emplace(data, options_.node, rank_in_each_node(options_.local_rank));
    cross_.emplace(*messages_, cross_options(*context.settings));
  }
  if (options_.local_rank == 0) tree_.emplace(negotiation, rank_in_each_node(0), options_.node);
}

void SetPath::connect(const GpuGroups& gpu) {
  const LocalGroups locals{.memory = &local_, .device = gpu.local, .device_exchange = gpu.exchange};
  const CrossGroups crosses{.memory = cross_ ? &*cross_ : nullptr, .device = gpu.cross};
  pipeline_.emplace(options_, control_block_, memory_, locals, crosses);
}

SetParts SetPath::parts() {
  return {.topology = topology_,
          .control_block = &control_block_,
          .memory = &memory_,
          .data_path = &*pipeline_,
          .tree = tree_ ? &*tree_ : nullptr};
}

}  // namespace hora
