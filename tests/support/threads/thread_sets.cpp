#include "tests/support/threads/thread_sets.h"

#include <iterator>
#include <utility>

#include "core/engine/interfaces.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

struct ThreadSetTransport final : SetTransport {
  bool poll() override { return true; }
  SetParts parts() override {
    return {.topology = topology,
            .control_block = &path->control_block(),
            .memory = &*memory,
            .data_path = &path->data_path(),
            .tree = path->tree(),
            .memory_nodes = memory_nodes};
  }
  void disconnect() override {
    if (device.disconnect) device.disconnect();
  }

  Topology topology;
  std::optional<HeapMemory> own;
  std::optional<MemberMemory> memory;
  MemoryNodes memory_nodes;
  RankDevice device;
  std::optional<ThreadPath> path;
};

}  // namespace

SetWires::SetWires(int nodes, int slices) : leaders(nodes) {
  for (int slice = 0; slice < slices; ++slice) meetings.push_back(std::make_unique<Meeting>(nodes));
}

SetWires& WireRoom::wires(ProcessSet set, const Topology& topology) {
  const std::lock_guard lock(mutex_);
  auto& entry = wires_[set];
  if (!entry) entry = std::make_unique<SetWires>(topology.nodes(), topology.smallest_node());
  return *entry;
}

ThreadPath::ThreadPath(const Topology& topology, int rank, NodeControlBlock control_block,
                       NodeMemory& memory, SetWires& wires, const Settings& settings,
                       MemoryNodes memory_nodes, const RankDevice& device, const Tracer& trace)
    : control_block_(std::move(control_block)),
      group_(control_block_.local_rank(), control_block_.local_size()) {
  PipelineOptions options = PipelineOptions::of(topology, rank);
  options.memory_nodes = memory_nodes;
  options.trace = trace;
  options.chunk_bytes = chunk_limit(settings.chunk_size, topology.nodes());
  if (options.nodes > 1 && options.local_rank < options.slices) {
    cross_.emplace(*wires.meetings[static_cast<std::size_t>(options.local_rank)], options.node);
  }
  if (options.nodes > 1 && options.local_rank == 0) link_.emplace(wires.leaders, options.node);
  pipeline_.emplace(options, control_block_, memory, group_, cross_ ? &*cross_ : nullptr,
                    DeviceGroups{device.group, device.exchange, device.cross, device.spans_nodes});
}

MemoryNodes thread_memory_nodes(const Topology& world, const Topology& set,
                                const Settings& settings) {
  if (settings.ranks_per_memory_node == 0) return {};
  return MemoryNodes::of(set, virtual_memory_nodes(world, settings.ranks_per_memory_node));
}

/// A run of the tests has ready bits in one word, or in several.
ControlBlockShape thread_control_block_shape(const Topology& topology, int node,
                                             const Settings& settings) {
  constexpr int kRanksPerReadyWord[] = {1, 2, ReadyWords::kRanksPerWord};
  ControlBlockShape shape;
  shape.ranks_per_ready_word = kRanksPerReadyWord[seed() % std::size(kRanksPerReadyWord)];
  shape.local_size =
      static_cast<int>(topology.ranks_of_node[static_cast<std::size_t>(node)].size());
  shape.id_capacity = settings.id_capacity;
  shape.single_node = topology.nodes() == 1;
  return shape;
}

std::unique_ptr<SetTransport> ThreadSets::begin(const SetPlan& plan) {
  auto transport = std::make_unique<ThreadSetTransport>();
  transport->topology = plan.topology;
  const int node = plan.topology.node_of(rank_);
  if (node < 0) return transport;
  std::vector<int> members;
  for (const int rank : plan.topology.ranks_of_node[static_cast<std::size_t>(node)]) {
    members.push_back(topology_.local_rank_of(rank));
  }
  NodeControlBlock control_block(node_.address(plan.control_block_owner, plan.control_block,
                                               control_block_bytes(plan.topology, node)),
                                 thread_control_block_shape(plan.topology, node, settings_),
                                 plan.topology.local_rank_of(rank_),
                                 control_block_.wakeup_flags().among(members));
  transport->own.emplace(node_, topology_.local_rank_of(rank_));
  transport->memory.emplace(*transport->own, std::move(members));
  transport->memory_nodes = thread_memory_nodes(topology_, plan.topology, settings_);
  if (device_) transport->device = device_(rank_, plan, control_block);
  transport->path.emplace(plan.topology, rank_, std::move(control_block), *transport->memory,
                          room_.wires(plan.id, plan.topology), settings_, transport->memory_nodes,
                          transport->device, trace_.of_set(plan.id));
  return transport;
}

}  // namespace hora::internal::test
