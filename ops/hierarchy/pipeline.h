/// The data path: units chunk by chunk through the node and between nodes, stages overlapping.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "core/board/board.h"
#include "core/board/start_order.h"
#include "core/engine/data_path.h"
#include "core/trace/tracer.h"
#include "ops/hierarchy/groups.h"

namespace hora {

struct PipelineOptions {
  int node = 0;  ///< mine
  int nodes = 1;
  int local_rank = 0;
  int slices = 1;         ///< local ranks that take part between nodes: the smallest node's size
  std::size_t slots = 4;  ///< chunks under way at once between nodes
  Tracer trace = {};
};

/// The local groups of a node, by where a unit's memory lies. `device` is null where there is none.
struct LocalGroups {
  LocalGroup* memory = nullptr;
  LocalGroup* device = nullptr;
};

/// One node: the local group runs each unit whole. Several nodes, for each chunk of a unit:
///   reduce-scatter of my slice into a staging slot -> allreduce (or broadcast) of it over my cross
///   group -> all-gather from the slot to the node.
/// Local ranks from `slices` on own no slice; they take part only where the local group is
/// collective. Each stage starts chunks in the order of the plan, on every rank the same; chunk
/// c + slots waits for the slot of chunk c. Steps of collective groups start in the order that the
/// node's leader gives (start_order.h). Chunks number the cross group's operations, over all units.
/// Thread rule: the thread that holds the engine's lock.
class Pipeline final : public DataPath {
 public:
  /// `cross` is null in jobs of one node and on local ranks without a slice.
  Pipeline(const PipelineOptions& options, NodeBoard& board, LocalGroups locals, CrossGroup* cross);

  void start(BoundUnit unit) override;
  bool advance() override;
  std::uint64_t completed() const override { return board_.done_by_all(); }
  std::uint64_t awaited() const override;
  bool polls() const override {
    return !chunks_.empty() || feeding_ < units_.size() || (options_.nodes == 1 && !units_.empty());
  }

 private:
  enum class Stage { local_in, between, cross, crossed, local_out };
  struct Entry {
    BoundUnit unit;
    LocalGroup* local = nullptr;
    std::size_t next_chunk = 0;  ///< to be started
    std::size_t spread = 0;      ///< chunks that are complete
    bool running = false;        ///< in a job of one node
    Completion in_node;
  };
  struct Chunk {
    Entry* entry;
    std::uint64_t sequence;
    ChunkPart part;
    Stage stage;
    Completion completion;
  };

  bool run_in_node();
  bool feed();
  bool step(Chunk& chunk);
  void start_cross(Chunk& chunk);
  bool may_start(const Entry& entry, StartOrder::Step step) const;
  void note_start(const Entry& entry, StartOrder::Step step);
  bool retire_units();
  void trace(const ChunkPart& part, ChunkStage stage) const;
  std::size_t chunks_of(const Entry& entry) const;

  PipelineOptions options_;
  NodeBoard& board_;
  StartOrder order_;
  LocalGroups locals_;
  CrossGroup* cross_;

  std::deque<std::unique_ptr<Entry>> units_;  ///< started, not done by me
  std::size_t feeding_ = 0;                   ///< first unit in units_ with chunks to start
  std::deque<Chunk> chunks_;
  std::uint64_t next_sequence_ = 0;
  std::uint64_t next_cross_ = 0;
  std::uint64_t next_out_ = 0;
  std::uint64_t done_ = 0;  ///< units, by me
};

}  // namespace hora
