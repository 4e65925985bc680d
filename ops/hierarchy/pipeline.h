/// The data path: units chunk by chunk through the node and between nodes, stages overlapping.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "core/base/sync.h"
#include "core/control_block/node_control_block.h"
#include "core/control_block/node_progress.h"
#include "core/engine/interfaces.h"
#include "core/negotiation/topology.h"
#include "core/plan/plan.h"
#include "core/trace/trace.h"
#include "ops/hierarchy/groups.h"

namespace hora::internal {

struct PipelineOptions {
  int node = 0;  ///< this rank's
  int nodes = 1;
  int local_rank = 0;
  int slices = 1;         ///< local ranks that take part between nodes: the smallest node's size
  std::size_t slots = 4;  ///< chunks under way at once between nodes
  MemoryNodes memory_nodes = {};  ///< of a set of one node
  Tracer trace = {};

  // For exchanges:
  Topology topology = {};  ///< of the set
  std::size_t chunk_bytes = std::size_t{1} << 20;
  /// Bytes that the results of an exchange can have on all ranks together; the same everywhere.
  std::uint64_t job_memory = UINT64_MAX;

  /// The place of world rank `rank` in a set; the rest as above.
  static PipelineOptions of(const Topology& set, int rank);
};

/// Allgathers, alltoalls and reduce-scatters of a set, one after another (exchange_run.cpp). Thread
/// rule: the thread that holds the engine's lock.
class Exchanges {
 public:
  /// `cross`: null on local ranks without a slice, and in one node. References outlive it.
  Exchanges(const PipelineOptions& options, NodeControlBlock& control_block, NodeMemory& memory,
            CrossGroup* cross);
  ~Exchanges();

  /// Starts one of host memory. `first_sequence`: of the cross group's operations. The unit stays
  /// until end().
  void start(const BoundUnit& unit, std::uint64_t first_sequence);
  /// Makes the progress that is possible now; true if there was any.
  bool advance();
  /// This rank's result is there, and it reads no peer's input any more.
  bool complete() const;
  /// The agreement of one on devices, in place of start(), advance() and complete().
  ExchangeAgreement& agree(const BoundUnit& unit, std::uint64_t first_sequence);
  /// The exchange is complete. Returns how many sequence numbers it took.
  std::uint64_t end();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// One node: the local group runs each unit whole, or a sum goes by memory nodes (MemoryNodeSum).
/// Several nodes, for each chunk: reduce-scatter of this rank's slice into a staging slot, its
/// allreduce (or broadcast) over the cross group, all-gather from the slot to the node. Local ranks
/// from `slices` on own no slice. Each stage starts chunks in the order of the plan; chunk c +
/// slots waits for the slot of chunk c. Steps of collective groups start in the order of the node's
/// leader. Chunks number the cross group's operations.
///
/// An exchange (Exchanges) has the pipeline to itself. Where the groups of devices span nodes,
/// their units run whole, one after the other, beside the chunks of host memory; of an exchange on
/// devices only the agreement goes through the cross group. Thread rule: the thread that holds the
/// engine's lock.
class Pipeline final : public DataPath {
 public:
  /// `cross`: null in jobs of one node and on local ranks without a slice. Its operations and those
  /// of devices are numbered together; staging is that of the local group beside it.
  Pipeline(const PipelineOptions& options, NodeControlBlock& control_block, NodeMemory& memory,
           LocalGroup& local, CrossGroup* cross, const DeviceGroups& device = {});

  /// Throws Error(invalid_argument) for tensors on a device where there is no group for them.
  void start(BoundUnit&& unit) override;
  bool advance() override;
  /// Units 1 .. n are complete: this rank's memory holds their results, and no peer accesses it.
  std::uint64_t completed() const { return control_block_.done_by_all(); }
  std::uint64_t awaited() const override;
  void reduce(const Signature& signature, std::span<const std::byte* const> inputs,
              std::span<std::byte* const> outputs, double pre, double post) override;
  bool polls() const override {
    return !chunks_.empty() || !whole_.empty() || feeding_ < units_.size() ||
           (options_.nodes == 1 && !units_.empty());
  }
  MemoryUse withdraw() override;

 private:
  enum class Stage { local_in, between, cross, crossed, local_out };
  struct ActiveUnit {
    BoundUnit unit;
    LocalGroup* local = nullptr;
    CrossGroup* cross = nullptr;
    std::size_t next_chunk = 0;       ///< to be started
    std::size_t complete_chunks = 0;  ///< chunks that are complete
    // Work without chunks: an exchange, or what runs whole.
    bool whole = false;
    bool running = false;
    bool done = false;
    Completion completion;  ///< not of an exchange of host memory (Exchanges)
  };
  struct Chunk {
    ActiveUnit* entry;
    std::uint64_t sequence;
    ChunkPart part;
    Stage stage;
    Completion completion;
  };

  bool lacks_group(const BoundUnit& unit) const;
  bool run_in_node();
  bool run_whole();
  bool advance_whole(ActiveUnit& entry);
  void start_whole(ActiveUnit& entry);
  bool feed();
  bool step(Chunk& chunk);
  void start_cross(Chunk& chunk);
  bool may_start(const ActiveUnit& entry, StartOrder::Step step) const {
    return !entry.local->is_collective() || order_.allows(step);
  }
  void note_start(const ActiveUnit& entry, StartOrder::Step step) {
    if (entry.local->is_collective()) order_.start(step);
  }
  void pop_unit();
  bool retire_units();
  bool is_complete(const ActiveUnit& entry) const {
    return entry.whole ? entry.done : entry.complete_chunks == chunks_of(entry);
  }
  void note_begin(BoundUnit& unit) const {
    if (unit.on_start) unit.on_start(unit);
  }
  void trace(const ChunkPart& part, ChunkStage stage) const;
  std::size_t chunks_of(const ActiveUnit& entry) const;
  int slices_of(const Unit& unit) const;

  PipelineOptions options_;
  NodeControlBlock& control_block_;
  StartOrder order_;
  LocalGroup& local_;
  CrossGroup* cross_;
  DeviceGroups device_;
  Exchanges exchanges_;

  RingQueue<std::unique_ptr<ActiveUnit>> units_;  ///< started, not completed by this rank
  std::size_t feeding_ = 0;                       ///< first unit in units_ with chunks to start
  std::deque<Chunk> chunks_;
  std::deque<ActiveUnit*> whole_;  ///< fed, not complete; the first one runs
  std::uint64_t next_sequence_ = 0;
  std::uint64_t next_cross_ = 0;
  std::uint64_t next_out_ = 0;
  std::uint64_t done_ = 0;  ///< units, by this rank
};

}  // namespace hora::internal
