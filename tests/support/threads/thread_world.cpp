#include "tests/support/threads/thread_world.h"

#include <atomic>
#include <numeric>
#include <optional>

#include "ops/hierarchy/memory_group.h"
#include "ops/hierarchy/pipeline.h"
#include "tests/support/threads/heap_memory.h"
#include "tests/support/threads/wires.h"

namespace hora::test {

struct ThreadWorld::Wires {
  explicit Wires(int nodes, int slices) : post(nodes) {
    for (int slice = 0; slice < slices; ++slice) {
      meetings.push_back(std::make_unique<Meeting>(nodes));
    }
  }
  Post post;
  std::vector<std::unique_ptr<Meeting>> meetings;
};

struct ThreadWorld::Node {
  Node(const BoardShape& board_shape)
      : shape(board_shape), memory(shape.local_size), words(NodeBoard::bytes(shape) / 64 + 1) {}
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  BoardShape shape;
  HeapNode memory;
  std::vector<Line> words;  ///< the board
};

struct ThreadWorld::Rank {
  Rank(Node& node, int local_rank)
      : board(node.words.data()->bytes, node.shape, local_rank),
        memory(node.memory, local_rank),
        group(local_rank, node.shape.local_size) {}
  NodeBoard board;
  HeapMemory memory;
  MemoryGroup group;
  RankDevice device;
  std::optional<MeetingCrossGroup> cross;
  std::optional<PostLink> link;
  std::optional<Pipeline> pipeline;
  std::optional<Engine> engine;
};

ThreadWorld::ThreadWorld(const ThreadWorldOptions& options) {
  Topology topology;
  int next_rank = 0;
  for (const int size : options.node_sizes) {
    auto& ranks = topology.ranks_of_node.emplace_back(static_cast<std::size_t>(size));
    std::iota(ranks.begin(), ranks.end(), next_rank);
    next_rank += size;
  }
  const int slices = topology.smallest_node();
  wires_ = std::make_unique<Wires>(topology.nodes(), slices);
  for (int n = 0; n < topology.nodes(); ++n) {
    BoardShape shape;
    shape.local_size = options.node_sizes[static_cast<std::size_t>(n)];
    shape.id_capacity = options.settings.id_capacity;
    shape.single_node = topology.nodes() == 1;
    nodes_.push_back(std::make_unique<Node>(shape));
    for (int local = 0; local < shape.local_size; ++local) {
      auto& rank = *ranks_.emplace_back(std::make_unique<Rank>(*nodes_.back(), local));
      if (topology.nodes() > 1 && local < slices) {
        rank.cross.emplace(*wires_->meetings[static_cast<std::size_t>(local)], n);
      }
      if (topology.nodes() > 1 && local == 0) rank.link.emplace(wires_->post, n);
      const Tracer trace =
          options.trace ? options.trace(static_cast<int>(ranks_.size()) - 1) : Tracer();
      const PipelineOptions pipeline{.node = n,
                                     .nodes = topology.nodes(),
                                     .local_rank = local,
                                     .slices = slices,
                                     .trace = trace};
      if (options.device) {
        rank.device = options.device(static_cast<int>(ranks_.size()) - 1, n, local);
      }
      const LocalGroups locals{.memory = &rank.group, .device = rank.device.group};
      rank.pipeline.emplace(pipeline, rank.board, locals, rank.cross ? &*rank.cross : nullptr);
      rank.engine.emplace(EngineParts{.topology = topology,
                                      .rank = static_cast<int>(ranks_.size()) - 1,
                                      .settings = options.settings,
                                      .board = &rank.board,
                                      .memory = &rank.memory,
                                      .data_path = &*rank.pipeline,
                                      .device = rank.device.port,
                                      .tree = rank.link ? &*rank.link : nullptr,
                                      .trace = trace});
    }
  }
  if (!options.engine_threads) return;
  for (auto& rank : ranks_) rank->engine->start_thread();
}

ThreadWorld::~ThreadWorld() {
  for (auto& rank : ranks_) rank->engine->stop();
}

int ThreadWorld::size() const {
  return static_cast<int>(ranks_.size());
}
Engine& ThreadWorld::engine(int rank) {
  return *ranks_[static_cast<std::size_t>(rank)]->engine;
}
NodeMemory& ThreadWorld::memory(int rank) {
  return ranks_[static_cast<std::size_t>(rank)]->memory;
}

bool ThreadWorld::step() {
  bool progress = false;
  for (auto& rank : ranks_) progress |= rank->engine->step();
  return progress;
}

}  // namespace hora::test
