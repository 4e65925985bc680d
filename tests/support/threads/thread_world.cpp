#include "tests/support/threads/thread_world.h"

#include <iterator>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include "ops/hierarchy/memory_group.h"
#include "ops/hierarchy/pipeline.h"
#include "tests/support/seed.h"
#include "tests/support/threads/heap_memory.h"
#include "tests/support/threads/meeting.h"
#include "tests/support/tree_network.h"

namespace hora::internal::test {
namespace {

/// Connects the nodes of one set.
struct SetWires {
  SetWires(int nodes, int slices) : leaders(nodes) {
    for (int slice = 0; slice < slices; ++slice) {
      meetings.push_back(std::make_unique<Meeting>(nodes));
    }
  }
  TreeNetwork leaders;
  std::vector<std::unique_ptr<Meeting>> meetings;  ///< by slice
};

}  // namespace

/// The wires of all sets, made by the first rank that needs them. Thread rule: any thread.
class WireRoom {
 public:
  SetWires& wires(ProcessSet set, const Topology& topology) {
    const std::lock_guard lock(mutex_);
    auto& entry = wires_[set];
    if (!entry) entry = std::make_unique<SetWires>(topology.nodes(), topology.smallest_node());
    return *entry;
  }

 private:
  std::mutex mutex_;
  std::map<ProcessSet, std::unique_ptr<SetWires>> wires_;
};

namespace {

/// One rank's connections in one set.
class ThreadPath {
 public:
  ThreadPath(const Topology& topology, int rank, NodeControlBlock control_block, NodeMemory& memory,
             SetWires& wires, const Settings& settings, MemoryNodes memory_nodes,
             const RankDevice& device, const Tracer& trace)
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
    pipeline_.emplace(
        options, control_block_, memory, group_, cross_ ? &*cross_ : nullptr,
        DeviceGroups{device.group, device.exchange, device.cross, device.spans_nodes});
  }
  NodeControlBlock& control_block() { return control_block_; }
  DataPath& data_path() { return *pipeline_; }
  TreeLink* tree() { return link_ ? &*link_ : nullptr; }

 private:
  NodeControlBlock control_block_;
  MemoryGroup group_;
  std::optional<MeetingCrossGroup> cross_;
  std::optional<NetworkTreeLink> link_;
  std::optional<Pipeline> pipeline_;
};

/// Memory nodes of a set; all in one unless the settings say otherwise.
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

/// Process sets of a ThreadWorld.
class ThreadSets final : public SetFactory {
 public:
  ThreadSets(WireRoom& room, const Topology& topology, int rank, const Settings& settings,
             HeapNode& node, const NodeControlBlock& control_block, const Tracer& trace,
             decltype(ThreadWorldOptions::set_device) device)
      : room_(room),
        topology_(topology),
        rank_(rank),
        settings_(settings),
        node_(node),
        control_block_(control_block),
        trace_(trace),
        device_(std::move(device)) {}
  std::size_t control_block_bytes(const Topology& of_set, int node) const override {
    return NodeControlBlock::bytes(thread_control_block_shape(of_set, node, settings_));
  }
  std::unique_ptr<SetTransport> begin(const SetPlan& plan) override {
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

 private:
  WireRoom& room_;
  Topology topology_;
  int rank_;
  const Settings& settings_;
  HeapNode& node_;
  const NodeControlBlock& control_block_;
  Tracer trace_;
  decltype(ThreadWorldOptions::set_device) device_;
};

}  // namespace

struct ThreadWorld::Node {
  Node(const ControlBlockShape& control_block_shape)
      : shape(control_block_shape),
        memory(shape.local_size),
        words(NodeControlBlock::bytes(shape) / 64 + 1) {}
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  ControlBlockShape shape;
  HeapNode memory;
  std::vector<Line> words;  ///< the control block
};

struct ThreadWorld::Rank {
  Rank(Node& node, const Topology& of_world, int own_rank, const ThreadWorldOptions& options,
       WireRoom& room)
      : topology(of_world),
        rank(own_rank),
        memory(node.memory, topology.local_rank_of(rank)),
        trace(options.trace ? options.trace(rank) : Tracer()),
        flight(options.flight ? options.flight(rank) : nullptr),
        settings(options.settings),
        device(options.device
                   ? options.device(rank, topology.node_of(rank), topology.local_rank_of(rank))
                   : RankDevice{}),
        path(topology, rank,
             NodeControlBlock(node.words.data()->bytes, node.shape, topology.local_rank_of(rank)),
             memory, room.wires(kWorld, topology), settings,
             thread_memory_nodes(topology, topology, settings), device, trace),
        sets(room, topology, rank, settings, node.memory, path.control_block(), trace,
             options.set_device) {
    if (options.engines) engine.emplace(parts());
  }
  EngineParts parts() {
    return {.world = {.topology = topology,
                      .control_block = &path.control_block(),
                      .memory = &memory,
                      .data_path = &path.data_path(),
                      .tree = path.tree(),
                      .memory_nodes = thread_memory_nodes(topology, topology, settings),
                      .device_spans_nodes = device.spans_nodes},
            .rank = rank,
            .settings = settings,
            .device = device.port,
            .device_heap = device.heap,
            .sets = &sets,
            .trace = trace,
            .flight = flight};
  }
  Topology topology;
  int rank;
  HeapMemory memory;
  Tracer trace;
  FlightRecorder* flight;
  Settings settings;
  RankDevice device;
  ThreadPath path;
  ThreadSets sets;
  std::optional<Engine> engine;
};

ThreadWorld::ThreadWorld(const ThreadWorldOptions& options) : room_(std::make_unique<WireRoom>()) {
  Topology topology;
  int next_rank = 0;
  for (const int size : options.node_sizes) {
    auto& ranks = topology.ranks_of_node.emplace_back(static_cast<std::size_t>(size));
    std::iota(ranks.begin(), ranks.end(), next_rank);
    next_rank += size;
  }
  for (int node = 0; node < topology.nodes(); ++node) {
    nodes_.push_back(
        std::make_unique<Node>(thread_control_block_shape(topology, node, options.settings)));
    for (const int rank : topology.ranks_of_node[static_cast<std::size_t>(node)]) {
      ranks_.push_back(std::make_unique<Rank>(*nodes_.back(), topology, rank, options, *room_));
    }
  }
  if (!options.engine_threads) return;
  for (auto& rank : ranks_) {
    if (rank->engine) rank->engine->start_thread();
  }
}

ThreadWorld::~ThreadWorld() {
  for (auto& rank : ranks_) {
    if (rank->engine) rank->engine->stop();
  }
}

int ThreadWorld::size() const {
  return static_cast<int>(ranks_.size());
}
Engine& ThreadWorld::engine(int rank) {
  return *ranks_[static_cast<std::size_t>(rank)]->engine;
}
EngineParts ThreadWorld::parts(int rank) {
  return ranks_[static_cast<std::size_t>(rank)]->parts();
}
NodeMemory& ThreadWorld::memory(int rank) {
  return ranks_[static_cast<std::size_t>(rank)]->memory;
}

std::uint64_t ThreadWorld::crossings() const {
  return room_->wires(kWorld, ranks_.front()->topology).meetings.front()->begun();
}

bool ThreadWorld::progress() {
  bool progress = false;
  for (auto& rank : ranks_) progress |= rank->engine->progress();
  return progress;
}

}  // namespace hora::internal::test
