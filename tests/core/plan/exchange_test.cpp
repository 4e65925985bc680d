#include "core/plan/exchange.h"

#include <gtest/gtest.h>
#include <hora/error.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using Random = std::mt19937_64;
using Rows = std::vector<std::vector<std::int64_t>>;

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
  {
    const Rows all = {{rows}, {rows + 1}};
    const ExchangeMap map(topology, extents_of(OperationKind::allgather, 8, all));
    EXPECT_EQ(map.layout(1, 0), (ByteLayout{{0, 0, Transfer::kAll, bytes, {0, bytes + 8}}}));
    EXPECT_EQ(map.result_bytes(0), 2 * bytes + 8);
    EXPECT_EQ(cut(map.layout(1, 0), {bytes - 64, 1000}),
              (ByteLayout{{0, bytes - 64, Transfer::kAll, 2 * bytes - 64, {0, 72}}}));
  }
  {
    const Rows all = {{rows, 3}, {1, rows}};
    const ExchangeMap map(topology, extents_of(OperationKind::alltoall, 8, all));
    EXPECT_EQ(map.layout(0, 1), (ByteLayout{{0, bytes, 0, 0, {0, 24}}}));
    EXPECT_EQ(map.layout(1, 1), (ByteLayout{{0, 8, 0, 24, {0, bytes}}}));
  }
  EXPECT_EQ(scattered_rows(2 * rows + 1, 2, 0), rows + 1);
  EXPECT_EQ(first_scattered_row(2 * rows + 1, 2, 1), rows + 1);
}

TEST(Exchange, ResultsOfMoreThanTheMemoryOfAllAreRefused) {
  const Topology topology{{{0, 1}, {2}}};
  const auto refused = [&](OperationKind kind, const Rows& rows, std::uint64_t memory) {
    const auto refusal = ExchangeMap(topology, extents_of(kind, 8, rows)).refusal(memory);
    if (refusal) {
      EXPECT_EQ(refusal->code(), ErrorCode::out_of_memory);
    }
    return refusal.has_value();
  };
  const Rows gathered = {{2}, {3}, {1}};  // 48 bytes for each
  EXPECT_FALSE(refused(OperationKind::allgather, gathered, 144));
  EXPECT_TRUE(refused(OperationKind::allgather, gathered, 143));
  const Rows exchanged = {{1, 2, 3}, {4, 5, 6}, {7, 8, 0}};
  EXPECT_FALSE(refused(OperationKind::alltoall, exchanged, 36 * 8));
  EXPECT_TRUE(refused(OperationKind::alltoall, exchanged, 36 * 8 - 1));
  const Rows scattered = {{5}, {5}, {5}};
  EXPECT_FALSE(refused(OperationKind::reduce_scatter, scattered, 40));
  EXPECT_TRUE(refused(OperationKind::reduce_scatter, scattered, 39));
  // No sum wraps.
  const std::int64_t most = std::int64_t{1} << 45;
  EXPECT_TRUE(refused(OperationKind::allgather, {{most}, {most}, {most}}, std::uint64_t{1} << 49));
}

/// A byte is known by where it comes from; a sum by the offset alone.
struct Source {
  int rank = -1;
  std::size_t offset = 0;
  bool operator==(const Source&) const = default;
};

struct RandomExchange {
  explicit RandomExchange(OperationKind operation, Random& random) : kind(operation) {
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
      if (kind == OperationKind::reduce_scatter) continue;
      for (auto& extent : own) extent = some();
    }
  }

  std::size_t bytes(std::int64_t count) const {
    return static_cast<std::size_t>(count) * row_bytes;
  }

  /// Written down from the operations' definitions.
  std::vector<Source> expected(int rank) const {
    std::vector<Source> result;
    const auto take = [&](int from, std::size_t offset, std::size_t length) {
      for (std::size_t i = 0; i < length; ++i) result.push_back({from, offset + i});
    };
    const auto to = static_cast<std::size_t>(rank);
    if (kind == OperationKind::reduce_scatter) {
      // Rank r gets floor((rows + ranks - 1 - r) / ranks) rows.
      const auto ranks = static_cast<std::int64_t>(topology.size());
      const auto rows_of = [&](std::int64_t r) {
        return bytes((rows[0][0] + ranks - 1 - r) / ranks);
      };
      std::size_t offset = 0;
      for (int r = 0; r < rank; ++r) offset += rows_of(r);
      take(Transfer::kAll, offset, rows_of(rank));
      return result;
    }
    for (int from = 0; from < topology.size(); ++from) {
      const auto& own = rows[static_cast<std::size_t>(from)];
      if (kind == OperationKind::allgather) {
        take(from, 0, bytes(own[0]));
      } else {
        take(from, bytes(std::accumulate(own.begin(), own.begin() + rank, std::int64_t{0})),
             bytes(own[to]));
      }
    }
    return result;
  }

  OperationKind kind;
  Topology topology;
  std::size_t row_bytes = 0;
  Rows rows;
};

class ExchangeOf : public testing::TestWithParam<OperationKind> {};

TEST(ExchangeExtents, ThatCannotBeAreAnErrorOfTheRank) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const Topology topology{{{0, 1}}};
  for (const Rows& bad :
       {Rows{{-1}, {2}}, Rows{{most}, {most}}, Rows{{(std::int64_t{1} << 45) + 1}, {0}}}) {
    test::expect_error(ErrorCode::transport, [&] {
      ExchangeMap(topology, extents_of(OperationKind::allgather, 8, bad));
    });
  }
  const Rows wraps{{most, most, 2}, {0, 0, 0}, {0, 0, 0}};
  EXPECT_THROW(ExchangeMap(Topology{{{0, 1, 2}}}, extents_of(OperationKind::alltoall, 1, wraps)),
               Error);
  const Rows largest{{std::int64_t{1} << 45}, {std::int64_t{1} << 45}};
  const ExchangeMap map(topology, extents_of(OperationKind::allgather, 8, largest));
  EXPECT_EQ(map.result_bytes(0), std::size_t{1} << 49);
}

// All streams into each node, cut at random places: every byte of every result comes once.
TEST_P(ExchangeOf, StreamsFillEveryResultOnce) {
  auto random = test::generator();
  for (int round = 0; round < 400; ++round) {
    const RandomExchange exchange(GetParam(), random);
    const Topology& topology = exchange.topology;
    const ExchangeMap map(topology, extents_of(exchange.kind, exchange.row_bytes, exchange.rows));
    std::size_t longest = 0;
    for (int node = 0; node < topology.nodes(); ++node) {
      const auto& ranks = topology.ranks_of_node[static_cast<std::size_t>(node)];
      for (std::size_t local = 0; local < ranks.size(); ++local) {
        const int rank = ranks[local];
        std::vector<Source> result(map.result_bytes(rank));
        const auto rows = map.result_rows(rank);
        EXPECT_EQ(exchange.bytes(std::accumulate(rows.begin(), rows.end(), std::int64_t{0})),
                  result.size());
        std::vector<int> times(result.size(), 0);
        for (int from = 0; from < topology.nodes(); ++from) {
          const ByteLayout whole = map.layout(from, node);
          if (from != node) longest = std::max(longest, length_of(whole));
          const ByteLayout own = moved_by(static_cast<int>(local), {}, whole);
          std::size_t next = 0;
          while (next < length_of(own)) {
            const std::size_t length = 1 + random() % 40;
            std::size_t filled = 0;
            for (const Transfer& transfer : cut(own, {next, length})) {
              ASSERT_EQ(transfer.range.begin, filled);
              filled += transfer.range.bytes;
              for (std::size_t i = 0; i < transfer.range.bytes; ++i) {
                const std::size_t at = transfer.destination_offset + i;
                ASSERT_LT(at, result.size());
                const int source =
                    transfer.source == Transfer::kAll
                        ? Transfer::kAll
                        : topology.ranks_of_node[static_cast<std::size_t>(from)]
                                                [static_cast<std::size_t>(transfer.source)];
                result[at] = {source, transfer.source_offset + i};
                ++times[at];
              }
            }
            ASSERT_EQ(filled, std::min(length, length_of(own) - next));
            next += length;
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

INSTANTIATE_TEST_SUITE_P(Kinds, ExchangeOf,
                         testing::Values(OperationKind::allgather, OperationKind::alltoall,
                                         OperationKind::reduce_scatter),
                         [](const auto& parameters) {
                           return std::string(name_of(parameters.param));
                         });

}  // namespace
}  // namespace hora::internal
