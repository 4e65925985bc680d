#include "tests/support/threads/thread_world.h"

#include <atomic>
#include <numeric>
#include <optional>

#include "tests/support/threads/heap_memory.h"
#include "tests/support/threads/thread_sets.h"

namespace hora::internal::test {

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
