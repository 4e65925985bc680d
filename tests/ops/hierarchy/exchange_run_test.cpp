// Exchanges on many layouts against their definitions, and what ranks tell one another before
// exchanges on devices: the ranks, with real control blocks and pipelines, in one thread that goes
// on with any of them at random.
#include <gtest/gtest.h>
#include <hora/error.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/messages/messages.h"
#include "core/negotiation/topology.h"
#include "core/plan/plan.h"
#include "ops/hierarchy/memory_group.h"
#include "ops/hierarchy/pipeline.h"
#include "tests/core/control_block/shared_control_block.h"
#include "tests/support/reference/elements.h"
#include "tests/support/reference/reference.h"
#include "tests/support/seed.h"
#include "tests/support/threads/heap_memory.h"
#include "tests/support/threads/meeting.h"

namespace hora::internal {
namespace {

using namespace test;

/// A rank, node or member as an index.
std::size_t at(int number) {
  return static_cast<std::size_t>(number);
}

/// An exchange, or an allreduce beside it, of all ranks.
struct ExchangeOperation {
  OperationKind kind = OperationKind::allgather;
  DataType type = DataType::float32;
  double prescale = 1.0;
  double scale = 1.0;
  std::size_t row_bytes = 0;
  std::vector<std::vector<std::int64_t>> rows;  ///< by rank; see BoundExchange
  std::vector<Bytes> inputs;                    ///< by rank
  /// By rank, in one node: it pushes; it has a place for an even result.
  std::vector<bool> pushes, expects;
};

/// By the operation's definition. Sums are exact in every order.
Exchanged expected_of(const ExchangeOperation& of, int rank) {
  const auto sum = [&] {
    return reduced(of.type, ReduceOp::sum, of.inputs, {.pre = of.prescale, .post = of.scale});
  };
  switch (of.kind) {
    case OperationKind::allreduce:
      return {sum(), {}};
    case OperationKind::reduce_scatter:
      return scattered(sum(), of.rows[0][0], of.row_bytes, static_cast<int>(of.inputs.size()),
                       rank);
    case OperationKind::alltoall:
      return alltoall_of(of.inputs, of.rows, of.row_bytes, rank);
    default:
      return allgathered(of.inputs, of.rows, of.row_bytes);
  }
}

/// An exchange of random sizes, zero among them. `most_rows` of one rank (or for one rank).
ExchangeOperation random_exchange(OperationKind kind, int ranks, std::int64_t most_rows,
                                  std::mt19937_64& random) {
  ExchangeOperation result;
  result.kind = kind;
  result.type = kAllTypes[random() % kAllTypes.size()];
  if (random() % 2 == 0 && is_floating_point(result.type)) result.scale = 1.0 / ranks;
  if (random() % 2 == 0 && is_floating_point(result.type)) result.prescale = 0.5;
  result.row_bytes = random() % 8 * size_of(result.type);
  const bool nothing = random() % 10 == 0;
  const auto some_rows = [&] {
    return nothing || random() % 4 == 0
               ? std::int64_t{0}
               : static_cast<std::int64_t>(random() % (static_cast<std::uint64_t>(most_rows) + 1));
  };
  const std::int64_t whole = some_rows() * (kind == OperationKind::reduce_scatter ? ranks : 1);
  const bool differ = kind != OperationKind::reduce_scatter && random() % 3 != 0;
  for (int rank = 0; rank < ranks; ++rank) {
    auto& own = result.rows.emplace_back(extents_of_rank(kind, ranks), whole);
    if (differ) std::generate(own.begin(), own.end(), some_rows);
    const auto rows = std::accumulate(own.begin(), own.end(), std::int64_t{0});
    const auto count = rows * static_cast<std::int64_t>(result.row_bytes / size_of(result.type));
    result.inputs.push_back(whole_numbers(result.type, count, random));
    result.pushes.push_back(random() % 2 == 0);
    result.expects.push_back(random() % 3 != 0);
  }
  return result;
}

constexpr std::size_t kGuard = 64;
constexpr std::byte kGuardValue{0x5a};
constexpr std::size_t kMostIdleSteps = 1000000;

void require(bool condition, const char* what) {
  if (!condition) throw std::logic_error(what);
}

class GuardedResult final : public ExchangeResult {
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
  Exchanged outcome() const {
    require(allocated_, "allocate() is never called");
    for (std::size_t i = 0; i < kGuard; ++i) {
      require(block_[i] == kGuardValue && block_[kGuard + bytes_ + i] == kGuardValue,
              "something is written beside the result");
    }
    return {{block_ + kGuard, block_ + kGuard + bytes_}, rows_};
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

/// Inputs and extents are overwritten as soon as their rank is told that its unit is complete.
/// Failures of checks during the run throw std::logic_error. Thread rule: one thread.
class ExchangeWorld {
 public:
  ExchangeWorld(const Topology& topology, std::size_t chunk_bytes)
      : topology_(topology), chunk_bytes_(chunk_bytes) {
    for (int slice = 0; slice < topology.smallest_node(); ++slice) {
      meetings_.emplace_back(topology.nodes());
    }
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
        ranks_[at(ranks[at(local)])] = std::make_unique<Rank>(
            *nodes_.back(), options, local_size, crosses ? &meetings_[at(local)] : nullptr);
      }
    }
  }

  bool polls() const {
    return std::any_of(ranks_.begin(), ranks_.end(),
                       [](const auto& rank) { return rank->pipeline->polls(); });
  }
  /// [operation][rank].
  std::vector<std::vector<Exchanged>> run(const std::vector<ExchangeOperation>& operations,
                                          std::mt19937_64& random) {
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
    std::vector<std::vector<Exchanged>> result;
    for (const auto& of_rank : bound) {
      auto& all = result.emplace_back();
      for (const Bound& own : of_rank) all.push_back(own.outcome.value());
    }
    units_before_ += bound.size();
    return result;
  }

 private:
  struct Node {
    Node(int local_size, bool single)
        : control_block({.local_size = local_size, .id_capacity = 8, .single_node = single}),
          memory(local_size) {}
    SharedControlBlock control_block;
    HeapNode memory;
  };

  struct Rank {
    Rank(Node& node, const PipelineOptions& options, int local_size, Meeting* meeting)
        : memory(node.memory, options.local_rank), group(options.local_rank, local_size) {
      if (meeting) cross.emplace(*meeting, options.node);
      pipeline.emplace(options, node.control_block[options.local_rank], memory, group,
                       cross ? &*cross : nullptr);
    }
    HeapMemory memory;
    MemoryGroup group;
    std::optional<MeetingCrossGroup> cross;
    std::optional<Pipeline> pipeline;
  };

  /// One rank's part of an operation.
  struct Bound {
    Bytes memory;
    std::vector<std::int64_t> rows;
    std::shared_ptr<GuardedResult> result;
    bool pushes = false;
    Location expected = kNowhere;
    std::optional<Exchanged> outcome;  ///< once complete
    OperationKind kind;
  };

  std::vector<std::vector<Bound>> bind(const std::vector<ExchangeOperation>& operations) {
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

  BoundUnit unit_for(const std::vector<Bound>& of_rank, const ExchangeOperation& operation,
                     int rank) const {
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
  void retire(std::vector<std::vector<Bound>>& bound, int rank) {
    const std::uint64_t completed = ranks_[at(rank)]->pipeline->completed();
    for (std::uint64_t i = 0; i < completed - std::min(completed, units_before_); ++i) {
      Bound& own = bound[i][at(rank)];
      if (own.outcome) continue;
      own.outcome =
          own.kind == OperationKind::allreduce ? Exchanged{own.memory, {}} : own.result->outcome();
      std::fill(own.memory.begin(), own.memory.end(), std::byte{0xee});
      std::fill(own.rows.begin(), own.rows.end(), std::int64_t{-1});
    }
  }

  Topology topology_;
  std::size_t chunk_bytes_;
  std::uint64_t units_before_ = 0;
  std::deque<Meeting> meetings_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::unique_ptr<Rank>> ranks_;  ///< by rank
};

constexpr OperationKind kKinds[] = {OperationKind::allgather, OperationKind::alltoall,
                                    OperationKind::reduce_scatter};

const std::vector<std::vector<int>> kLayouts[] = {
    {{0}},
    {{0, 1}},
    {{0, 1, 2}},
    {{0, 1, 2, 3}},
    {{0}, {1}},
    {{0, 1}, {2, 3}},
    {{0, 1, 2}, {3, 4}},
    {{0}, {1, 2}, {3}},
    {{0, 2}, {1, 3}},
    {{0, 3, 5}, {1, 4}, {2, 6}},
};

/// Exchanges of every kind, allreduces between them.
std::vector<ExchangeOperation> random_operations(int ranks, std::mt19937_64& random) {
  std::vector<ExchangeOperation> result;
  for (std::uint64_t left = 1 + random() % 12; left > 0; --left) {
    const OperationKind kind = kKinds[random() % std::size(kKinds)];
    result.push_back(random_exchange(kind, ranks, random() % 8 == 0 ? 400 : 40, random));
    if (kind == OperationKind::reduce_scatter && random() % 2 == 0) {
      result.back().kind = OperationKind::allreduce;
    }
  }
  return result;
}

TEST(ExchangeRun, GivesWhatItsDefinitionSaysAmongAllreducesInAnyOrder) {
  auto random = generator();
  for (const auto& layout : kLayouts) {
    const Topology topology{layout};
    for (int round = 0; round < 20; ++round) {
      // In the larger chunks the first extents fill a round's memory, and later ones need more.
      ExchangeWorld world(topology,
                          round % 4 == 0 ? std::size_t{1} << 14 : 64 * (1 + random() % 12));
      for (int batch = 0; batch < 3; ++batch) {
        const auto operations = random_operations(topology.size(), random);
        const auto outcomes = world.run(operations, random);
        for (std::size_t i = 0; i < operations.size(); ++i) {
          for (int rank = 0; rank < topology.size(); ++rank) {
            const Exchanged& outcome = outcomes[i][at(rank)];
            const Exchanged expected = expected_of(operations[i], rank);
            ASSERT_EQ(outcome.rows, expected.rows);
            ASSERT_TRUE(outcome.bytes == expected.bytes)
                << "operation " << i << ", " << name_of(operations[i].kind) << " of "
                << name_of(operations[i].type) << " in rows of " << operations[i].row_bytes
                << " bytes, on rank " << rank << " of "
                << testing::PrintToString(topology.ranks_of_node);
          }
        }
      }
      EXPECT_FALSE(world.polls());
    }
  }
}

}  // namespace
}  // namespace hora::internal
