#include "core/plan/plan.h"

#include <gtest/gtest.h>
#include <hora/error.h>

#include <array>
#include <limits>
#include <numeric>
#include <tuple>

#include "tests/support/expect_error.h"
#include "tests/support/reference/reference.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

Signature tensor(std::int64_t elements, DataType type = DataType::float32,
                 ReduceOp op = ReduceOp::sum) {
  return {.type = type, .op = op, .shape = {elements}};
}

std::vector<Unit> plan_of(const std::vector<Signature>& signatures, const PlanLimits& limits) {
  std::vector<const Signature*> pointers;
  for (const Signature& signature : signatures) pointers.push_back(&signature);
  std::vector<Unit> units;
  for (std::size_t next = 0; next < pointers.size();) {
    next = plan_unit(pointers, next, limits, units.emplace_back());
  }
  return units;
}

TEST(Plan, FusesNeighboursOfOneKindUpToTheThreshold) {
  const auto units = plan_of({tensor(1), tensor(16), tensor(17), tensor(1)}, {.fusion_bytes = 256});
  ASSERT_EQ(units.size(), 2u);
  EXPECT_EQ(units[0].tensors,
            (std::vector<UnitTensor>{{0, {0, 4}}, {1, {64, 64}}, {2, {128, 68}}}));
  EXPECT_EQ(units[0].bytes, 256u);
  EXPECT_EQ(units[1].tensors, (std::vector<UnitTensor>{{3, {0, 4}}}));
  const Signature broadcast{.kind = OperationKind::broadcast, .shape = {4}};
  Signature from_1 = broadcast;
  from_1.root = 1;
  EXPECT_EQ(plan_of({tensor(4), tensor(4, DataType::float64),
                     tensor(4, DataType::float64, ReduceOp::average), broadcast, from_1},
                    {.fusion_bytes = 1 << 20})
                .size(),
            5u);
  const auto over = plan_of({tensor(4), tensor(1000), tensor(4)}, {.fusion_bytes = 128});
  ASSERT_EQ(over.size(), 3u);
  EXPECT_EQ(over[1].bytes, align_up(4000));
  const auto alone = plan_of({tensor(4), tensor(100), tensor(99), tensor(4)},
                             {.fusion_bytes = 1 << 20, .alone_bytes = 400});
  ASSERT_EQ(alone.size(), 3u);
  EXPECT_EQ(alone[1].tensors, (std::vector<UnitTensor>{{1, {0, 400}}}));
  EXPECT_EQ(alone[2].tensors.size(), 2u) << "what follows may travel together again";
  const auto empty = plan_of({tensor(0)}, {.fusion_bytes = 128, .chunk_bytes = 64});
  EXPECT_EQ(empty.at(0).chunks(), 0u);
  EXPECT_TRUE(runs(empty[0], {0, 0}).empty());
}

TEST(Plan, ChunksFitTheNumberOfNodesAndRanks) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  for (const int nodes : {1, 2, 31, 32}) EXPECT_EQ(chunk_limit(0, nodes), kMiB) << nodes;
  EXPECT_EQ(chunk_limit(0, 33), 33 * kMiB / 32);
  for (const int nodes : {1024, 2147483647}) EXPECT_EQ(chunk_limit(0, nodes), 32 * kMiB);
  for (int nodes = 33; nodes <= 1024; ++nodes) {
    const Range chunk{0, chunk_limit(0, nodes)};
    EXPECT_EQ(slice_range(chunk, nodes - 1, nodes).bytes, std::size_t{32} << 10) << nodes;
  }
  EXPECT_EQ(broadcast_chunk_limit(0), kMiB / 2);
  for (const int slices : {1, 2, 8, 16}) {
    const Range chunk{0, device_chunk_limit(0, 2, slices)};
    EXPECT_EQ(slice_range(chunk, slices - 1, slices).bytes, 2 * kMiB) << slices;
  }
  EXPECT_EQ(device_chunk_limit(0, 2, 17), 32 * kMiB);
  EXPECT_EQ(device_chunk_limit(0, 256, 1), chunk_limit(0, 256)) << "of many nodes";
  // Settings hold.
  EXPECT_EQ(chunk_limit(1024 * kMiB, 1024), 1024 * kMiB);
  EXPECT_EQ(broadcast_chunk_limit(4096), 4096u);
  EXPECT_EQ(device_chunk_limit(4096, 2, 8), 4096u);
}

TEST(Plan, ChunksSlicesAndRunsCoverEveryByteOnce) {
  std::mt19937_64 random(test::seed());
  for (int round = 0; round < 500; ++round) {
    std::vector<Signature> signatures;
    for (int i = 0; i < 1 + static_cast<int>(random() % 20); ++i) {
      signatures.push_back(tensor(static_cast<std::int64_t>(random() % 500)));
    }
    const PlanLimits limits{.fusion_bytes = random() % 8192, .chunk_bytes = random() % 2048};
    const int slices = 1 + static_cast<int>(random() % 5);
    std::vector<std::vector<int>> seen;
    for (const Signature& signature : signatures) seen.emplace_back(signature.bytes(), 0);
    for (const Unit& unit : plan_of(signatures, limits)) {
      EXPECT_EQ(unit.chunk_bytes % kAlignment, 0u);
      for (std::size_t c = 0; c < unit.chunks(); ++c) {
        for (int s = 0; s < slices; ++s) {
          const Range slice = slice_range(chunk_range(unit, c), s, slices);
          for (const auto& run : runs(unit, slice)) {
            EXPECT_EQ(slice.begin % kAlignment, 0u);
            EXPECT_LE(run.offset + run.range.bytes, slice.bytes);
            const UnitTensor& place = unit.tensors[run.tensor];
            EXPECT_EQ(place.range.begin + run.range.begin, slice.begin + run.offset);
            for (std::size_t b = 0; b < run.range.bytes; ++b) {
              ++seen[place.index][run.range.begin + b];
            }
          }
        }
      }
    }
    for (const auto& bytes : seen) {
      for (const int count : bytes) ASSERT_EQ(count, 1);
    }
  }
}

TEST(LastExtents, AreThoseOfEachRankUnlessTheyAreTooMany) {
  LastExtents last;
  const auto all = last.renew(2, 3);
  std::iota(all.begin(), all.end(), 10);
  last.end_run();
  EXPECT_TRUE(last.known());
  EXPECT_TRUE(last.are(2, test::RowCounts{14, 15}));
  EXPECT_FALSE(last.are(1, test::RowCounts{10, 11}));
  EXPECT_FALSE(last.are(0, test::RowCounts{10}));
  last.renew(1, LastExtents::kMostKept);
  last.end_run();
  EXPECT_TRUE(last.known());
  last.renew(1, LastExtents::kMostKept + 1).back() = 7;
  EXPECT_EQ(last.of(static_cast<int>(LastExtents::kMostKept))[0], 7) << "until the run has ended";
  last.end_run();
  EXPECT_FALSE(last.known());
  EXPECT_FALSE(last.are(0, test::RowCounts{0}));
}

constexpr MemoryNodes kOne;

TEST(MemoryNodes, AreThoseThatRanksShareEvenlyElseOne) {
  using Ranks = std::vector<int>;
  EXPECT_EQ(MemoryNodes::of(Ranks{0, 0, 1, 1}), (MemoryNodes{.count = 2, .ranks = 2}));
  EXPECT_EQ(MemoryNodes::of(Ranks{3, 3, 3, 1, 1, 1}), (MemoryNodes{.count = 2, .ranks = 3}));
  EXPECT_EQ(MemoryNodes::of(Ranks{0, 0, 1, 1, 2, 2, 3, 3}), (MemoryNodes{.count = 4, .ranks = 2}));
  // There is one; no two ranks share one; uneven; ranks are not next to each other; one comes
  // again; ranks that may use several.
  for (const Ranks& of_rank :
       {Ranks{}, Ranks{0}, Ranks{0, 0, 0, 0}, Ranks{0, 1}, Ranks{0, 0, 0, 1, 1},
        Ranks{0, 0, 0, 1, 1, 2}, Ranks{0, 0, 1, 1, 1, 1}, Ranks{0, 1, 0, 1},
        Ranks{0, 0, 1, 1, 0, 0}, Ranks{-1, -1, 1, 1}, Ranks{0, 0, 1, -1}}) {
    EXPECT_EQ(MemoryNodes::of(of_rank), kOne) << testing::PrintToString(of_rank);
  }
}

TEST(MemoryNodes, OfASetAreThoseOfItsMembers) {
  const Topology world{{{0, 2, 4, 6, 1, 3, 5, 7}}};
  const std::vector<int> of_rank = virtual_memory_nodes(world, 4);
  EXPECT_EQ(of_rank, (std::vector<int>{0, 1, 0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(MemoryNodes::of(world, of_rank), (MemoryNodes{.count = 2, .ranks = 4}));
  const MemoryNodes of_two{.count = 2, .ranks = 2};
  EXPECT_EQ(MemoryNodes::of(Topology{{{0, 2, 1, 3}}}, of_rank), of_two);
  for (const Topology& set : {Topology{{{0, 2, 1}}}, {{{0, 2, 4}}}, {{{0, 2}, {1, 3}}}}) {
    EXPECT_EQ(MemoryNodes::of(set, of_rank), kOne) << set.nodes() << " nodes";
  }
  EXPECT_EQ(virtual_memory_nodes(Topology{{{0, 1, 2}, {3, 4, 5, 6}}}, 2),
            (std::vector<int>{0, 0, 1, 0, 0, 1, 1}));
}

/// One tensor on four ranks.
class SumOf : public testing::Test {
 protected:
  static Signature signature(DataType type = DataType::float32) {
    return tensor(static_cast<std::int64_t>(MemoryNodes::kLeastBytes / size_of(type)), type);
  }
  BoundUnit unit(const std::vector<Signature>& signatures) {
    BoundUnit unit;
    unit.unit = plan_of(signatures, {.fusion_bytes = std::size_t{1} << 30}).at(0);
    EXPECT_EQ(unit.unit.tensors.size(), signatures.size());
    unit.local_size = 4;
    unit.memory.assign(4 * signatures.size(), &byte_);
    return unit;
  }
  /// As a submission of it, and as a unit of it alone, which must agree.
  bool apart(const Signature& signature) {
    const bool before = kTwo.sum_apart(signature, signature.bytes());
    EXPECT_EQ(kTwo.sum_apart(unit({signature})), before);
    return before;
  }
  static constexpr MemoryNodes kTwo{.count = 2, .ranks = 2};
  std::byte byte_{};
};

TEST_F(SumOf, ALargeTensorGoesByMemoryNodes) {
  for (const DataType type :
       {DataType::float32, DataType::float64, DataType::int8, DataType::boolean}) {
    EXPECT_TRUE(apart(signature(type))) << name_of(type);
  }
  EXPECT_FALSE(kOne.sum_apart(signature(), MemoryNodes::kLeastBytes));
  EXPECT_FALSE(kOne.sum_apart(unit({signature()})));
  std::vector<Signature> others(3, signature());
  others[0].prescale = 0.5;
  others[1].kind = OperationKind::broadcast;
  others[2].shape[0] -= 16;
  others.push_back(signature(DataType::float16));
  others.push_back(signature(DataType::bfloat16));
  for (const Signature& other : others) EXPECT_FALSE(apart(other)) << to_string(other);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    BoundUnit lacks = unit({signature()});  // a rank that has joined
    lacks.memory[rank] = nullptr;
    EXPECT_FALSE(kTwo.sum_apart(lacks)) << rank;
  }
  BoundUnit lacks_nothing = unit({tensor(0), signature()});
  lacks_nothing.memory[0] = nullptr;
  EXPECT_TRUE(kTwo.sum_apart(lacks_nothing)) << "but an empty tensor";
}

using Rows = std::vector<test::RowCounts>;

ExchangeExtents extents_of(OperationKind kind, std::size_t row_bytes, const Rows& rows) {
  return {kind, row_bytes, {rows.begin(), rows.end()}};
}

TEST(Exchange, EveryPieceIsMovedByOneRank) {
  const Topology topology{{{0, 1, 2}}};
  const Rows rows = {{1, 2, 3}, {4, 5, 6}, {7, 8, 0}};
  const ExchangeMap map(topology, extents_of(OperationKind::alltoall, 1, rows));
  const ByteLayout whole = map.layout(0, 0);
  // Rank 1 pushes.
  const std::vector<bool> pushes = {false, true, false};
  EXPECT_EQ(moved_by(0, pushes, whole), (ByteLayout{{0, 0, 0, 0, {0, 1}}, {2, 0, 0, 5, {1, 7}}}));
  EXPECT_EQ(moved_by(1, pushes, whole), (ByteLayout{{0, 1, 1, 0, {0, 2}},
                                                    {1, 0, 0, 1, {2, 4}},
                                                    {1, 4, 1, 2, {6, 5}},
                                                    {1, 9, 2, 3, {11, 6}},
                                                    {2, 7, 1, 7, {17, 8}}}));
  EXPECT_EQ(moved_by(2, pushes, whole), (ByteLayout{{0, 3, 2, 0, {0, 3}}}));
}

TEST(Exchange, RowsToARankFollowThoseToTheRankBefore) {
  using enum OperationKind;
  const std::vector<std::int64_t> splits = {3, 0, 2}, whole = {5};
  EXPECT_EQ(rows_to_rank(alltoall, splits, 3, 1, 8), (Range{24, 0}));
  EXPECT_EQ(rows_to_rank(alltoall, splits, 3, 2, 8), (Range{24, 16}));
  EXPECT_EQ(rows_to_rank(reduce_scatter, whole, 3, 0, 8), (Range{0, 16}));
  EXPECT_EQ(rows_to_rank(reduce_scatter, whole, 3, 2, 8), (Range{32, 8}));
  EXPECT_EQ(rows_to_rank(allgather, whole, 3, 1, 8).bytes, 0u);
  const auto even = [](std::vector<std::int64_t> rows) { return is_even(rows); };
  EXPECT_TRUE(even({3}) && even({2, 2, 2}));
  EXPECT_FALSE(even({2, 2, 3}) || even({0, 0}) || even({}));
  EXPECT_EQ(round_bytes(4096, 2), 4096u);
  EXPECT_EQ(round_bytes(4096, 4), align_up(4096 / 3));
  EXPECT_EQ(round_bytes(64, 1000), 64u);
}

TEST(Exchange, CountsBeyond32Bits) {
  const std::int64_t rows = std::int64_t{5} << 31;
  const Topology topology{{{0}, {1}}};
  const std::size_t bytes = std::size_t{5} << 34;
  const Rows gathered = {{rows}, {rows + 1}}, exchanged = {{rows, 3}, {1, rows}};
  const ExchangeMap gather(topology, extents_of(OperationKind::allgather, 8, gathered));
  EXPECT_EQ(gather.layout(1, 0), (ByteLayout{{0, 0, Transfer::kAll, bytes, {0, bytes + 8}}}));
  EXPECT_EQ(gather.result_bytes(0), 2 * bytes + 8);
  EXPECT_EQ(cut(gather.layout(1, 0), {bytes - 64, 1000}),
            (ByteLayout{{0, bytes - 64, Transfer::kAll, 2 * bytes - 64, {0, 72}}}));
  const ExchangeMap exchange(topology, extents_of(OperationKind::alltoall, 8, exchanged));
  EXPECT_EQ(exchange.layout(0, 1), (ByteLayout{{0, bytes, 0, 0, {0, 24}}}));
  EXPECT_EQ(exchange.layout(1, 1), (ByteLayout{{0, 8, 0, 24, {0, bytes}}}));
  EXPECT_EQ(scattered_rows(2 * rows + 1, 2, 0), rows + 1);
  EXPECT_EQ(first_scattered_row(2 * rows + 1, 2, 1), rows + 1);
}

TEST(Exchange, ResultsOfMoreThanTheMemoryOfAllAreRefused) {
  using enum OperationKind;
  const auto refused = [](OperationKind kind, const Rows& rows, std::uint64_t memory) {
    const Topology topology{{{0, 1}, {2}}};
    const auto refusal = ExchangeMap(topology, extents_of(kind, 8, rows)).refusal(memory);
    EXPECT_EQ(refusal ? refusal->code() : ErrorCode::out_of_memory, ErrorCode::out_of_memory);
    return refusal.has_value();
  };
  const std::tuple<OperationKind, Rows, std::uint64_t> needed[] = {
      {allgather, {{2}, {3}, {1}}, 3 * 48},
      {alltoall, {{1, 2, 3}, {4, 5, 6}, {7, 8, 0}}, 36 * 8},
      {reduce_scatter, {{5}, {5}, {5}}, 40}};
  for (const auto& [kind, rows, bytes] : needed) {
    EXPECT_FALSE(refused(kind, rows, bytes)) << name_of(kind);
    EXPECT_TRUE(refused(kind, rows, bytes - 1)) << name_of(kind);
  }
  const std::int64_t most = std::int64_t{1} << 45;  // no sum wraps
  EXPECT_TRUE(refused(allgather, {{most}, {most}, {most}}, std::uint64_t{1} << 49));
}

struct RandomExchange {
  explicit RandomExchange(OperationKind operation, std::mt19937_64& random) : kind(operation) {
    std::vector<int> group_of_rank(1 + random() % 8);
    for (int& group : group_of_rank) group = static_cast<int>(random() % 4);
    topology = make_topology(group_of_rank, 0);
    const int size = topology.size();
    row_bytes = random() % 5;
    const auto some = [&] {
      return random() % 3 == 0 ? 0 : static_cast<std::int64_t>(random() % 9);
    };
    const std::int64_t whole = some();
    for (int rank = 0; rank < size; ++rank) {
      auto& own = rows.emplace_back(extents_of_rank(kind, size), whole);
      if (kind != OperationKind::reduce_scatter) std::ranges::generate(own, some);
      const std::int64_t brought = std::accumulate(own.begin(), own.end(), std::int64_t{0});
      test::Bytes& input = inputs.emplace_back(static_cast<std::size_t>(brought) * row_bytes);
      for (std::byte& byte : input) byte = static_cast<std::byte>(random());
    }
  }

  test::Bytes expected(int rank) const {
    if (kind == OperationKind::reduce_scatter) {
      return test::scattered(inputs[0], rows[0][0], row_bytes, topology.size(), rank).bytes;
    }
    return kind == OperationKind::allgather
               ? test::allgathered(inputs, rows, row_bytes).bytes
               : test::alltoall_of(inputs, rows, row_bytes, rank).bytes;
  }

  OperationKind kind;
  Topology topology;
  std::size_t row_bytes = 0;
  Rows rows;
  std::vector<test::Bytes> inputs;  ///< by rank; of sums the first is that of all
};

TEST(ExchangeExtents, ThatCannotBeAreAnErrorOfTheRank) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t largest = std::int64_t{1} << 45;
  const Topology two{{{0, 1}}}, three{{{0, 1, 2}}};
  for (const Rows& bad : {Rows{{-1}, {2}}, Rows{{most}, {most}}, Rows{{largest + 1}, {0}}}) {
    test::expect_error(ErrorCode::transport,
                       [&] { ExchangeMap(two, extents_of(OperationKind::allgather, 8, bad)); });
  }
  const Rows wraps{{most, most, 2}, {0, 0, 0}, {0, 0, 0}}, fits{{largest}, {largest}};
  EXPECT_THROW(ExchangeMap(three, extents_of(OperationKind::alltoall, 1, wraps)), Error);
  const ExchangeMap map(two, extents_of(OperationKind::allgather, 8, fits));
  EXPECT_EQ(map.result_bytes(0), std::size_t{1} << 49);
}

// All streams into each node, cut at random places: every byte of every result comes once.
TEST(Exchange, StreamsFillEveryResultOnce) {
  using enum OperationKind;
  auto random = test::generator();
  for (int round = 0; round < 1200; ++round) {
    const RandomExchange exchange(std::array{allgather, alltoall, reduce_scatter}[round % 3],
                                  random);
    const Topology& topology = exchange.topology;
    const ExchangeMap map(topology, extents_of(exchange.kind, exchange.row_bytes, exchange.rows));
    std::size_t longest = 0;
    for (int node = 0; node < topology.nodes(); ++node) {
      const auto& ranks = topology.ranks_of_node[static_cast<std::size_t>(node)];
      for (std::size_t local = 0; local < ranks.size(); ++local) {
        const int rank = ranks[local];
        test::Bytes result(map.result_bytes(rank));
        const auto rows = map.result_rows(rank);
        const std::int64_t all_rows = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
        EXPECT_EQ(static_cast<std::size_t>(all_rows) * exchange.row_bytes, result.size());
        std::vector<int> times(result.size(), 0);
        for (int from = 0; from < topology.nodes(); ++from) {
          const auto& members = topology.ranks_of_node[static_cast<std::size_t>(from)];
          const ByteLayout whole = map.layout(from, node);
          if (from != node) longest = std::max(longest, length_of(whole));
          const ByteLayout own = moved_by(static_cast<int>(local), {}, whole);
          for (std::size_t next = 0, length = 0; next < length_of(own); next += length) {
            length = 1 + random() % 40;
            std::size_t filled = 0;
            for (const Transfer& transfer : cut(own, {next, length})) {
              ASSERT_EQ(transfer.range.begin, filled);
              filled += transfer.range.bytes;
              for (std::size_t i = 0; i < transfer.range.bytes; ++i) {
                const std::size_t at = transfer.destination_offset + i;
                ASSERT_LT(at, result.size());
                const auto from_rank =
                    transfer.source == Transfer::kAll
                        ? 0
                        : static_cast<std::size_t>(
                              members[static_cast<std::size_t>(transfer.source)]);
                result[at] = exchange.inputs[from_rank].at(transfer.source_offset + i);
                ++times[at];
              }
            }
            ASSERT_EQ(filled, std::min(length, length_of(own) - next));
          }
        }
        const bool sums = exchange.kind == OperationKind::reduce_scatter;
        EXPECT_EQ(times, std::vector<int>(result.size(), sums ? topology.nodes() : 1));
        EXPECT_EQ(result, exchange.expected(rank));
      }
    }
    EXPECT_EQ(map.longest_stream(), longest);
  }
}

}  // namespace
}  // namespace hora::internal
