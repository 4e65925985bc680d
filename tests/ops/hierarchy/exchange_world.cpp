#include "tests/ops/hierarchy/exchange_world.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "core/plan/exchange.h"
#include "core/plan/plan.h"
#include "ops/hierarchy/memory_group.h"
#include "ops/hierarchy/pipeline.h"
#include "tests/core/control_block/shared_control_block.h"
#include "tests/support/threads/heap_memory.h"
#include "tests/support/threads/meeting.h"

namespace hora::internal::test {
namespace {

constexpr std::size_t kGuard = 64;
constexpr std::byte kGuardValue{0x5a};
constexpr std::size_t kMostIdleSteps = 1000000;

void require(bool condition, const char* what) {
  if (!condition) throw std::logic_error(what);
}

class GuardedResult final : public ExchangeResult, public ResultPlace {
 public:
  explicit GuardedResult(NodeMemory& memory) : memory_(memory) {}
  ~GuardedResult() override {
    if (block_) memory_.release(block_);
    if (expected_) memory_.release(expected_);
  }
  std::byte* expect(std::size_t bytes) override { return (expected_ = take(bytes)) + kGuard; }
  std::byte* allocate(std::span<const std::int64_t> rows, std::size_t bytes) override {
    require(!allocated_, "allocate() is called twice");
    allocated_ = true;
    rows_.assign(rows.begin(), rows.end());
    bytes_ = bytes;
    block_ = expected_ && is_even(rows) ? std::exchange(expected_, nullptr) : take(bytes);
    return bytes == 0 ? nullptr : block_ + kGuard;
  }
  ExchangeOutcome outcome() const {
    require(allocated_, "allocate() is never called");
    for (std::size_t i = 0; i < kGuard; ++i) {
      require(block_[i] == kGuardValue && block_[kGuard + bytes_ + i] == kGuardValue,
              "something is written beside the result");
    }
    return {rows_, {block_ + kGuard, block_ + kGuard + bytes_}};
  }

 private:
  std::byte* take(std::size_t bytes) {
    std::byte* const block = memory_.allocate(bytes + 2 * kGuard).data;
    std::fill_n(block, bytes + 2 * kGuard, kGuardValue);
    return block;
  }

  NodeMemory& memory_;
  bool allocated_ = false;
  std::vector<std::int64_t> rows_;
  std::size_t bytes_ = 0;
  std::byte* block_ = nullptr;
  std::byte* expected_ = nullptr;
};

}  // namespace

struct ExchangeWorld::Wires {
  explicit Wires(const Topology& topology) {
    for (int slice = 0; slice < topology.smallest_node(); ++slice) {
      meetings.push_back(std::make_unique<Meeting>(topology.nodes()));
    }
  }
  std::vector<std::unique_ptr<Meeting>> meetings;
};

struct ExchangeWorld::Node {
  Node(int local_size, bool single)
      : control_block({.local_size = local_size, .id_capacity = 8, .single_node = single}),
        memory(local_size) {}
  SharedControlBlock control_block;
  HeapNode memory;
};

struct ExchangeWorld::Rank {
  Rank(Node& node, const PipelineOptions& options, int local_size, Meeting* meeting)
      : memory(node.memory, options.local_rank), group(options.local_rank, local_size) {
    if (meeting) cross.emplace(*meeting, options.node);
    pipeline.emplace(options, node.control_block[options.local_rank], memory,
                     LocalGroups{.memory = &group},
                     CrossGroups{.memory = cross ? &*cross : nullptr});
  }
  HeapMemory memory;
  MemoryGroup group;
  std::optional<MeetingCrossGroup> cross;
  std::optional<Pipeline> pipeline;
};

/// One rank's part of an operation.
struct ExchangeWorld::Bound {
  Bytes memory;
  std::vector<std::int64_t> rows;
  std::shared_ptr<GuardedResult> result;
  bool pushes = false;
  Location expected = kNowhere;
  std::optional<ExchangeOutcome> outcome;  ///< once complete
  OperationKind kind;
};

ExchangeWorld::ExchangeWorld(const Topology& topology, std::size_t chunk_bytes)
    : topology_(topology), chunk_bytes_(chunk_bytes), wires_(std::make_unique<Wires>(topology)) {
  ranks_.resize(at(topology.size()));
  for (int n = 0; n < topology.nodes(); ++n) {
    const auto& ranks = topology.ranks_of_node[at(n)];
    const int local_size = static_cast<int>(ranks.size());
    nodes_.push_back(std::make_unique<Node>(local_size, topology.nodes() == 1));
    for (int local = 0; local < local_size; ++local) {
      const bool crosses = topology.nodes() > 1 && local < topology.smallest_node();
      const PipelineOptions options{.node = n,
                                    .nodes = topology.nodes(),
                                    .local_rank = local,
                                    .slices = topology.smallest_node(),
                                    .topology = topology,
                                    .chunk_bytes = chunk_bytes};
      ranks_[at(ranks[at(local)])] =
          std::make_unique<Rank>(*nodes_.back(), options, local_size,
                                 crosses ? wires_->meetings[at(local)].get() : nullptr);
    }
  }
}

ExchangeWorld::~ExchangeWorld() = default;

bool ExchangeWorld::polls() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const auto& rank) { return rank->pipeline->polls(); });
}

std::vector<std::vector<ExchangeWorld::Bound>> ExchangeWorld::bind(
    const std::vector<ExchangeOperation>& operations) {
  std::vector<std::vector<Bound>> bound;
  for (const ExchangeOperation& operation : operations) {
    auto& of_rank = bound.emplace_back(ranks_.size());
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      Bound& own = of_rank[rank];
      HeapMemory& memory = ranks_[rank]->memory;
      own.memory = operation.inputs[rank];
      own.rows = operation.rows[rank];
      own.kind = operation.kind;
      own.result = std::make_shared<GuardedResult>(memory);
      if (!may_push(operation.kind) || topology_.nodes() > 1) continue;
      own.pushes = operation.pushes[rank] && !own.memory.empty();
      if (operation.expects[rank] && is_even(own.rows) && !own.memory.empty()) {
        const std::size_t copies = operation.kind == OperationKind::allgather ? ranks_.size() : 1;
        std::byte* const result = own.result->expect(copies * own.memory.size());
        own.expected = *memory.find(result, own.memory.size());
      }
    }
  }
  return bound;
}

BoundUnit ExchangeWorld::unit_for(const std::vector<Bound>& of_rank,
                                  const ExchangeOperation& operation, int rank) const {
  const auto& own = of_rank[at(rank)];
  const auto& neighbours = topology_.ranks_of_node[at(topology_.node_of(rank))];
  BoundUnit unit;
  unit.unit.kind = operation.kind;
  unit.unit.type = operation.type;
  unit.unit.prescale = operation.prescale;
  unit.unit.chunk_bytes = align_up(chunk_bytes_);
  unit.unit.tensors = {{0, {0, own.memory.size()}}};
  unit.scale = operation.scale;
  unit.local_size = static_cast<int>(neighbours.size());
  for (const int neighbour : neighbours) {
    const Bound& part = of_rank[at(neighbour)];
    const bool is_read = !part.memory.empty() && (!part.pushes || neighbour == rank);
    unit.memory.push_back(is_read ? const_cast<std::byte*>(part.memory.data()) : nullptr);
    unit.exchange.rows.push_back(part.rows);
    if (may_push(operation.kind) && topology_.nodes() == 1) {
      unit.exchange.pushes.push_back(part.pushes);
      unit.exchange.expected.push_back(part.expected);
    }
  }
  unit.exchange.row_bytes = operation.row_bytes;
  unit.exchange.result = own.result;
  if (operation.kind == OperationKind::allreduce) unit.unit.bytes = align_up(own.memory.size());
  return unit;
}

/// Takes the outcomes of what is complete, and destroys what no rank may read any more.
void ExchangeWorld::retire(std::vector<std::vector<Bound>>& bound, int rank) {
  const std::uint64_t completed = ranks_[at(rank)]->pipeline->completed();
  for (std::uint64_t i = 0; i < completed - std::min(completed, units_before_); ++i) {
    Bound& own = bound[i][at(rank)];
    if (own.outcome) continue;
    own.outcome = own.kind == OperationKind::allreduce ? ExchangeOutcome{{}, own.memory}
                                                       : own.result->outcome();
    std::fill(own.memory.begin(), own.memory.end(), std::byte{0xee});
    std::fill(own.rows.begin(), own.rows.end(), std::int64_t{-1});
  }
}

std::vector<std::vector<ExchangeOutcome>> ExchangeWorld::outcomes(
    const std::vector<std::vector<Bound>>& bound) {
  std::vector<std::vector<ExchangeOutcome>> result;
  for (const auto& of_rank : bound) {
    auto& all = result.emplace_back();
    for (const Bound& own : of_rank) all.push_back(own.outcome.value());
  }
  units_before_ += bound.size();
  return result;
}

std::vector<std::vector<ExchangeOutcome>> ExchangeWorld::run_in_steps(
    const std::vector<ExchangeOperation>& operations, std::mt19937_64& random) {
  auto bound = bind(operations);
  std::vector<std::size_t> started(ranks_.size(), 0);
  std::size_t idle = 0;
  const auto all_complete = [&] {
    return std::all_of(ranks_.begin(), ranks_.end(), [&](const auto& rank) {
      return rank->pipeline->completed() == units_before_ + operations.size();
    });
  };
  while (!all_complete()) {
    const auto rank = static_cast<int>(random() % ranks_.size());
    std::size_t& next = started[at(rank)];
    if (next < operations.size() && random() % 4 == 0) {
      ranks_[at(rank)]->pipeline->start(unit_for(bound[next], operations[next], rank));
      ++next;
    }
    idle = ranks_[at(rank)]->pipeline->advance() ? 0 : idle + 1;
    require(idle < kMostIdleSteps, "it stands still");
    retire(bound, rank);
  }
  for (int rank = 0; rank < topology_.size(); ++rank) retire(bound, rank);
  return outcomes(bound);
}

std::vector<std::vector<ExchangeOutcome>> ExchangeWorld::run_in_threads(
    const std::vector<ExchangeOperation>& operations) {
  auto bound = bind(operations);
  std::atomic<bool> failed{false};
  std::exception_ptr failure;  // the first one
  const auto run = [&](int rank) {
    Pipeline& pipeline = *ranks_[at(rank)]->pipeline;
    for (std::size_t i = 0; i < operations.size(); ++i) {
      pipeline.start(unit_for(bound[i], operations[i], rank));
    }
    while (pipeline.completed() < units_before_ + operations.size()) {
      require(!failed, "another rank has failed");
      if (!pipeline.advance()) std::this_thread::yield();
      retire(bound, rank);
    }
    retire(bound, rank);
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < topology_.size(); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          run(rank);
        } catch (...) {
          if (!failed.exchange(true)) failure = std::current_exception();
        }
      });
    }
  }
  if (failure) std::rethrow_exception(failure);
  return outcomes(bound);
}

}  // namespace hora::internal::test
