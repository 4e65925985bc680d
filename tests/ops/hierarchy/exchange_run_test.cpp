/// Exchanges as values, and what comes of them by their definitions.
//
/// Ranks of one set with real control blocks and pipelines, whose units need no engine.
//
// Exchanges on many layouts against their definitions, among themselves and among allreduces.
//
// What ranks tell one another before exchanges on devices, the ranks in one thread that goes on
// with any of them at random.
#include "ops/hierarchy/exchange_run.h"

#include <gtest/gtest.h>
#include <hora/error.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/negotiation/signature.h"
#include "core/negotiation/topology.h"
#include "core/plan/exchange.h"
#include "core/plan/plan.h"
#include "ops/hierarchy/memory_group.h"
#include "ops/hierarchy/pipeline.h"
#include "tests/core/control_block/shared_control_block.h"
#include "tests/support/reference/elements.h"
#include "tests/support/reference/reference.h"
#include "tests/support/seed.h"
#include "tests/support/threads/heap_memory.h"
#include "tests/support/threads/meeting.h"

namespace hora::internal::test {

/// A rank, node or member as an index.
inline std::size_t at(int number) {
  return static_cast<std::size_t>(number);
}

/// An exchange, or an allreduce beside it, of all ranks.
struct ExchangeOperation {
  OperationKind kind = OperationKind::allgather;
  DataType type = DataType::float32;
  double prescale = 1.0;  ///< a power of two: exact, before the sum or after
  double scale = 1.0;
  std::size_t row_bytes = 0;
  std::vector<std::vector<std::int64_t>> rows;  ///< by rank; see BoundExchange
  std::vector<Bytes> inputs;                    ///< by rank
  /// By rank, in one node: it pushes; it has a place for an even result.
  std::vector<bool> pushes, expects;

  /// By the operation's definition. Sums: over each node, rounded, then over the nodes.
  Exchanged expected(const Topology& topology, int rank) const;
};

/// Of random sizes, zero among them. `most_rows` of one rank (or for one rank).
ExchangeOperation random_exchange(OperationKind kind, int ranks, std::int64_t most_rows,
                                  std::mt19937_64& random);
/// The allreduce that this reduce-scatter is a part of.
ExchangeOperation allreduce_of(const ExchangeOperation& reduce_scatter);

struct ExchangeOutcome {
  std::vector<std::int64_t> rows;
  Bytes bytes;
};

/// Inputs and extents are overwritten as soon as their rank is told that its unit is complete.
/// Failures of checks during the run throw std::logic_error. Thread rule: one thread.
class ExchangeWorld {
 public:
  ExchangeWorld(const Topology& topology, std::size_t chunk_bytes);
  ~ExchangeWorld();

  /// [operation][rank]: the ranks in one thread, which goes on with any of them at random.
  std::vector<std::vector<ExchangeOutcome>> run_in_steps(
      const std::vector<ExchangeOperation>& operations, std::mt19937_64& random);
  /// Likewise, a thread for each rank.
  std::vector<std::vector<ExchangeOutcome>> run_in_threads(
      const std::vector<ExchangeOperation>& operations);
  bool polls() const;

 private:
  struct Node;
  struct Rank;
  struct Bound;

  std::vector<std::vector<Bound>> bind(const std::vector<ExchangeOperation>& operations);
  std::vector<std::vector<ExchangeOutcome>> outcomes(const std::vector<std::vector<Bound>>& bound);
  BoundUnit unit_for(const std::vector<Bound>& of_rank, const ExchangeOperation& operation,
                     int rank) const;
  void retire(std::vector<std::vector<Bound>>& bound, int rank);

  Topology topology_;
  std::size_t chunk_bytes_;
  std::uint64_t units_before_ = 0;
  struct Wires;
  std::unique_ptr<Wires> wires_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::unique_ptr<Rank>> ranks_;  ///< by rank
};

namespace {

std::int64_t sum_of(const std::vector<std::int64_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

/// Sum of the nodes' sums, as the hierarchy rounds it.
Bytes sum_over_nodes(const ExchangeOperation& operation, const Topology& topology) {
  std::vector<Bytes> of_node;
  for (const auto& ranks : topology.ranks_of_node) {
    std::vector<Bytes> inputs;
    for (const int rank : ranks) inputs.push_back(operation.inputs[at(rank)]);
    const double scale = topology.nodes() == 1 ? operation.scale : 1.0;
    of_node.push_back(
        reduced(operation.type, ReduceOp::sum, inputs, {.post = operation.prescale * scale}));
  }
  return topology.nodes() == 1
             ? of_node[0]
             : reduced(operation.type, ReduceOp::sum, of_node, {.post = operation.scale});
}

}  // namespace

Exchanged ExchangeOperation::expected(const Topology& topology, int rank) const {
  switch (kind) {
    case OperationKind::allreduce:
      return {sum_over_nodes(*this, topology), {}};
    case OperationKind::reduce_scatter:
      return scattered(sum_over_nodes(*this, topology), rows[0][0], row_bytes, topology.size(),
                       rank);
    case OperationKind::alltoall:
      return alltoall_of(inputs, rows, row_bytes, rank);
    default:
      return allgathered(inputs, rows, row_bytes);
  }
}

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
    const std::size_t bytes = static_cast<std::size_t>(sum_of(own)) * result.row_bytes;
    result.inputs.push_back(random_values(result.type, bytes, random));
    result.pushes.push_back(random() % 2 == 0);
    result.expects.push_back(random() % 3 != 0);
  }
  return result;
}

ExchangeOperation allreduce_of(const ExchangeOperation& reduce_scatter) {
  ExchangeOperation result = reduce_scatter;
  result.kind = OperationKind::allreduce;
  return result;
}

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

namespace hora::internal {
namespace {

using test::ExchangeOperation;
using test::ExchangeOutcome;
using test::ExchangeWorld;
using Layout = std::vector<std::vector<int>>;
using Outcomes = std::vector<std::vector<ExchangeOutcome>>;

constexpr OperationKind kKinds[] = {OperationKind::allgather, OperationKind::alltoall,
                                    OperationKind::reduce_scatter};

const Layout kLayouts[] = {
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

std::string name_of_layout(const Layout& layout) {
  std::string name;
  for (const auto& ranks : layout) {
    name += name.empty() ? "" : "_and";
    for (const int rank : ranks) name += "_" + std::to_string(rank);
  }
  return name.front() == '_' ? name.substr(1) : name;
}

class ExchangeOn : public testing::TestWithParam<Layout> {
 protected:
  std::size_t random_chunk() { return 64 * (1 + random_() % 12); }

  /// Exchanges of every kind, allreduces between them.
  std::vector<ExchangeOperation> random_operations(std::size_t count) {
    std::vector<ExchangeOperation> result;
    while (result.size() < count) {
      const OperationKind kind = kKinds[random_() % std::size(kKinds)];
      result.push_back(test::random_exchange(kind, topology_.size(), 40, random_));
      if (kind == OperationKind::reduce_scatter && random_() % 2 == 0) {
        result.back() = allreduce_of(result.back());
      }
    }
    return result;
  }

  void expect_outcomes(const std::vector<ExchangeOperation>& operations, const Outcomes& outcomes) {
    for (std::size_t i = 0; i < operations.size(); ++i) {
      for (int rank = 0; rank < topology_.size(); ++rank) {
        const ExchangeOutcome& outcome = outcomes[i][static_cast<std::size_t>(rank)];
        const test::Exchanged expected = operations[i].expected(topology_, rank);
        ASSERT_EQ(outcome.rows, expected.rows);
        ASSERT_TRUE(outcome.bytes == expected.bytes)
            << "operation " << i << ", " << name_of(operations[i].kind) << " of "
            << name_of(operations[i].type) << " in rows of " << operations[i].row_bytes
            << " bytes, on rank " << rank;
      }
    }
  }

  std::mt19937_64 random_ = test::generator();
  Topology topology_{GetParam()};
};

TEST_P(ExchangeOn, GivesWhatItsDefinitionSays) {
  for (int round = 0; round < 40; ++round) {
    ExchangeWorld world(topology_, random_chunk());
    for (const OperationKind kind : kKinds) {
      const std::vector operations = {
          test::random_exchange(kind, topology_.size(), 1 + 30 * (round % 4), random_)};
      ASSERT_NO_FATAL_FAILURE(expect_outcomes(operations, world.run_in_steps(operations, random_)));
    }
    EXPECT_FALSE(world.polls());
  }
}

TEST_P(ExchangeOn, MixesWithAllreducesInAnyOrder) {
  for (int round = 0; round < 10; ++round) {
    ExchangeWorld world(topology_, random_chunk());
    for (int batch = 0; batch < 3; ++batch) {
      const auto operations = random_operations(1 + random_() % 12);
      ASSERT_NO_FATAL_FAILURE(expect_outcomes(operations, world.run_in_steps(operations, random_)));
    }
  }
}

TEST_P(ExchangeOn, AReduceScatterHasTheBitsOfTheAllreduce) {
  for (int round = 0; round < 30; ++round) {
    ExchangeWorld world(topology_, random_chunk());
    const auto scattered =
        test::random_exchange(OperationKind::reduce_scatter, topology_.size(), 60, random_);
    const Outcomes outcomes = world.run_in_steps({scattered, allreduce_of(scattered)}, random_);
    test::Bytes parts;
    for (const ExchangeOutcome& outcome : outcomes[0]) {
      parts.insert(parts.end(), outcome.bytes.begin(), outcome.bytes.end());
    }
    for (const ExchangeOutcome& outcome : outcomes[1]) {
      ASSERT_TRUE(outcome.bytes == parts) << name_of(scattered.type);
    }
  }
}

TEST_P(ExchangeOn, ManyRoundsInThreads) {
  ExchangeWorld world(topology_, 256);
  const auto operations = random_operations(12);
  expect_outcomes(operations, world.run_in_threads(operations));
}

// The first extents fill a round's memory, later ones need more of it.
TEST_P(ExchangeOn, GrowsItsMemoryFromOneExchangeToTheNext) {
  ExchangeWorld world(topology_, std::size_t{1} << 14);
  for (const std::int64_t most_rows : {1, 10, 100, 1000}) {
    for (const OperationKind kind : kKinds) {
      const std::vector operations = {
          test::random_exchange(kind, topology_.size(), most_rows, random_)};
      ASSERT_NO_FATAL_FAILURE(expect_outcomes(operations, world.run_in_steps(operations, random_)));
    }
  }
}

TEST_P(ExchangeOn, OneRankAloneGives) {
  for (int giver = 0; giver < topology_.size(); ++giver) {
    ExchangeWorld world(topology_, 128);
    for (const OperationKind kind : {OperationKind::allgather, OperationKind::alltoall}) {
      auto operation = test::random_exchange(kind, topology_.size(), 0, random_);
      operation.row_bytes = 24;
      operation.type = DataType::float64;
      auto& own = operation.rows[static_cast<std::size_t>(giver)];
      std::fill(own.begin(), own.end(), std::int64_t{37});
      operation.inputs[static_cast<std::size_t>(giver)] =
          test::random_values(DataType::float64, own.size() * 37 * 24, random_);
      const std::vector operations = {operation};
      ASSERT_NO_FATAL_FAILURE(expect_outcomes(operations, world.run_in_steps(operations, random_)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, ExchangeOn, testing::ValuesIn(kLayouts),
                         [](const auto& parameters) { return name_of_layout(parameters.param); });

using test::at;
using Rows = std::vector<std::vector<std::int64_t>>;  ///< by rank

constexpr std::size_t kMostPolls = 100000;

/// The ranks' places in their nodes, without devices.
class Agreements : public testing::TestWithParam<std::vector<std::vector<int>>> {
 protected:
  Agreements() {
    for (int slice = 0; slice < topology_.smallest_node(); ++slice) {
      meetings_.emplace_back(topology_.nodes());
    }
    ranks_.resize(at(topology_.size()));
    for (int node = 0; node < topology_.nodes(); ++node) {
      const auto& members = topology_.ranks_of_node[at(node)];
      const int size = static_cast<int>(members.size());
      Node& made = nodes_.emplace_back(size);
      for (int local = 0; local < size; ++local) {
        ranks_[at(members[at(local)])] = std::make_unique<Rank>(
            topology_, made, node, local,
            local < topology_.smallest_node() ? &meetings_[at(local)] : nullptr);
      }
    }
  }

  Rows random_rows(OperationKind kind) {
    Rows rows;
    const auto whole = static_cast<std::int64_t>(random_() % 9);
    for (int rank = 0; rank < topology_.size(); ++rank) {
      auto& own = rows.emplace_back(extents_of_rank(kind, topology_.size()));
      for (std::int64_t& extent : own) {
        extent = kind == OperationKind::reduce_scatter ? whole
                                                       : static_cast<std::int64_t>(random_() % 9);
      }
    }
    return rows;
  }

  /// One exchange, of which every rank must learn alike: all extents, and who lacks memory.
  void agree(OperationKind kind, const Rows& rows, const std::vector<bool>& has_memory,
             bool repeats = false) {
    int first = ExchangeAgreement::kNoRank;
    for (int rank = topology_.size() - 1; rank >= 0; --rank) {
      if (!has_memory[at(rank)]) first = rank;
    }
    std::vector<std::uint32_t> words(ranks_.size());
    for (auto& rank : ranks_) rank->begin(topology_, kind, rows, words, repeats);
    std::size_t done = 0;
    for (std::size_t polls = 0; done < ranks_.size(); ++polls) {
      ASSERT_LT(polls, kMostPolls) << "no end";
      Rank& rank = *ranks_[random_() % ranks_.size()];
      if (rank.answer) continue;
      const ExchangeExtents* const extents = rank.agreement->extents();
      if (!extents) continue;
      ASSERT_EQ(extents->kind, kind);
      for (std::size_t other = 0; other < rows.size(); ++other) {
        ASSERT_TRUE(std::ranges::equal(extents->rows[other], rows[other])) << "rank " << other;
      }
      if (!rank.told) rank.agreement->tell(has_memory[at(rank.number)]);
      rank.told = true;
      rank.answer = rank.agreement->lacking();
      if (!rank.answer) continue;
      ++done;
      EXPECT_EQ(*rank.answer, first);
    }
    const bool are_told = extents_may_differ(kind) && !repeats;
    for (auto& rank : ranks_) {
      ASSERT_EQ(rank->agreement->rounds(), are_told ? 2u : 1u);
      rank->context.rounds_done += rank->agreement->rounds();
      rank->sequence += rank->agreement->rounds();
    }
  }

  struct Node {
    explicit Node(int size)
        : control_block({.local_size = size, .id_capacity = 8, .single_node = false}),
          memory(size) {}
    test::SharedControlBlock control_block;
    test::HeapNode memory;
  };
  struct Rank {
    Rank(const Topology& topology, Node& node, int of_node, int local_rank, test::Meeting* meeting)
        : number(topology.ranks_of_node[at(of_node)][at(local_rank)]),
          memory(node.memory, local_rank),
          context{.topology = topology,
                  .node = of_node,
                  .local_rank = local_rank,
                  .slices = topology.smallest_node(),
                  .rounds = node.control_block[local_rank].exchange_rounds(),
                  .memory = ExchangeMemory(memory)} {
      if (meeting) cross = std::make_unique<test::MeetingCrossGroup>(*meeting, of_node);
      context.cross = cross.get();
    }
    void begin(const Topology& topology, OperationKind kind, const Rows& rows,
               std::vector<std::uint32_t>& words, bool repeats = false) {
      unit.clear();
      unit.unit.kind = kind;
      unit.exchange = {};
      unit.exchange.row_bytes = 4;
      unit.exchange.last = last;
      unit.exchange.repeats = repeats;
      for (const int rank : topology.ranks_of_node[at(context.node)]) {
        unit.exchange.rows.emplace_back(rows[at(rank)]);
        unit.exchange.room.emplace_back(words[at(rank)]);
      }
      told = false;
      answer.reset();
      agreement = std::make_unique<AgreementOverNodes>(unit, context, sequence);
    }

    int number;
    test::HeapMemory memory;
    std::unique_ptr<test::MeetingCrossGroup> cross;
    ExchangeContext context;
    BoundUnit unit;
    std::shared_ptr<LastExtents> last = std::make_shared<LastExtents>();
    std::uint64_t sequence = 0;
    std::unique_ptr<AgreementOverNodes> agreement;
    bool told = false;
    std::optional<int> answer;
  };

  std::mt19937_64 random_ = test::generator();
  Topology topology_{GetParam()};
  std::deque<test::Meeting> meetings_;
  std::deque<Node> nodes_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

TEST_P(Agreements, EveryRankLearnsTheSame) {
  for (int round = 0; round < 300; ++round) {
    const OperationKind kind = kKinds[random_() % std::size(kKinds)];
    std::vector<bool> has_memory;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
      has_memory.push_back(random_() % 4 > 0);
    const Rows rows = random_rows(kind);
    ASSERT_NO_FATAL_FAILURE(agree(kind, rows, has_memory));
    if (random_() % 2 == 0) continue;
    ASSERT_NO_FATAL_FAILURE(agree(kind, rows, has_memory, /*repeats=*/true));
  }
}

TEST_P(Agreements, NoRankIsToldBeforeTheLastHasAnswered) {
  const Rows rows(ranks_.size(), {3});
  std::vector<std::uint32_t> words(ranks_.size());
  for (auto& rank : ranks_) {
    rank->begin(topology_, OperationKind::reduce_scatter, rows, words);
    ASSERT_NE(rank->agreement->extents(), nullptr) << "every rank has the same";
    if (rank != ranks_.back()) rank->agreement->tell(true);
  }
  for (int polls = 0; polls < 1000; ++polls) {
    ASSERT_FALSE(ranks_[random_() % ranks_.size()]->agreement->lacking());
  }
  ranks_.back()->agreement->tell(true);
  for (std::size_t polls = 0; polls < kMostPolls && !ranks_.front()->answer; ++polls) {
    for (auto& rank : ranks_) {
      if (!rank->answer) rank->answer = rank->agreement->lacking();
    }
  }
  EXPECT_EQ(ranks_.front()->answer, ExchangeAgreement::kNoRank);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Agreements,
                         testing::Values(std::vector<std::vector<int>>{{0}, {1}},
                                         std::vector<std::vector<int>>{{0, 1}, {2}},
                                         std::vector<std::vector<int>>{{0, 2}, {1, 3}},
                                         std::vector<std::vector<int>>{{0, 3, 5}, {1, 4}, {2, 6}}));

TEST(AgreementInNode, IsWhatTheHeadersSay) {
  const std::vector<std::vector<std::int64_t>> rows = {{1}, {2}, {3}};
  std::array<std::uint32_t, 3> words{};
  BoundUnit unit;
  unit.unit.kind = OperationKind::allgather;
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    unit.exchange.rows.emplace_back(rows[rank]);
    unit.exchange.room.emplace_back(words[rank]);
  }
  std::deque<AgreementInNode> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.emplace_back(unit, rank);
  ASSERT_NE(ranks[0].extents(), nullptr);
  EXPECT_EQ(ranks[0].extents()->rows[2][0], 3);
  ranks[0].tell(true);
  ranks[2].tell(false);
  EXPECT_FALSE(ranks[0].lacking());
  ranks[1].tell(true);
  for (AgreementInNode& rank : ranks) EXPECT_EQ(rank.lacking(), 2);
}

}  // namespace

}  // namespace hora::internal
