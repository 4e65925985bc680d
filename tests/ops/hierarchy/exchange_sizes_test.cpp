#include "ops/hierarchy/exchange_sizes.h"

#include <gtest/gtest.h>
#include <hora/error.h>

#include <random>

#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using Rows = std::vector<std::vector<std::int64_t>>;

BoundUnit unit_of(OperationKind kind, const Rows& rows, const std::vector<int>& local_ranks) {
  BoundUnit unit;
  unit.exchange.last = std::make_shared<LastExtents>();
  unit.unit.kind = kind;
  unit.exchange.row_bytes = 12;
  for (const int rank : local_ranks) {
    unit.exchange.rows.push_back(rows[static_cast<std::size_t>(rank)]);
  }
  return unit;
}

void expect_extents(const ExchangeExtents& extents, OperationKind kind, const Rows& rows) {
  EXPECT_EQ(extents.kind, kind);
  EXPECT_EQ(extents.row_bytes, 12u);
  ASSERT_EQ(extents.rows.size(), rows.size());
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    EXPECT_EQ((std::vector<std::int64_t>(extents.rows[rank].begin(), extents.rows[rank].end())),
              rows[rank])
        << "rank " << rank;
  }
}

// What every node writes, read by every other one, gives all extents, beyond 32 bits, too.
TEST(ExchangeSizes, AreEverybodysOnceTold) {
  auto random = test::generator();
  const Topology topology{{{0, 3}, {1}, {2, 4, 5}}};
  for (const OperationKind kind : {OperationKind::allgather, OperationKind::alltoall}) {
    Rows rows(6);
    for (auto& own : rows) {
      own.resize(kind == OperationKind::alltoall ? 6 : 1);
      for (auto& extent : own) extent = static_cast<std::int64_t>(random() >> (random() % 64));
    }
    std::vector<BoundUnit> units;
    for (const auto& ranks : topology.ranks_of_node) units.push_back(unit_of(kind, rows, ranks));
    for (int node = 0; node < 3; ++node) {
      ExchangeSizes sizes(units[static_cast<std::size_t>(node)], topology, node);
      ASSERT_TRUE(sizes.must_be_exchanged());
      std::vector<std::byte> told(3 * sizes.stride(), std::byte{0x77});
      for (int other = 0; other < 3; ++other) {
        if (other == node) continue;
        const ExchangeSizes others(units[static_cast<std::size_t>(other)], topology, other);
        EXPECT_EQ(others.bytes_of(other), sizes.bytes_of(other));
        others.write(told.data() + static_cast<std::size_t>(other) * sizes.stride());
      }
      sizes.read(told.data());
      std::fill(told.begin(), told.end(), std::byte{0x77});
      expect_extents(sizes.extents(), kind, rows);
      units[static_cast<std::size_t>(node)].exchange.repeats = true;
      const ExchangeSizes again(units[static_cast<std::size_t>(node)], topology, node);
      EXPECT_FALSE(again.must_be_exchanged());
      expect_extents(again.extents(), kind, rows);
    }
  }
}

TEST(ExchangeSizes, NeedNotBeToldInOneNodeNorOfAReduceScatter) {
  const Rows rows = {{5}, {6}, {7}};
  const Topology one_node{{{0, 1, 2}}};
  const BoundUnit gather = unit_of(OperationKind::allgather, rows, {0, 1, 2});
  const ExchangeSizes in_node(gather, one_node, 0);
  EXPECT_FALSE(in_node.must_be_exchanged());
  expect_extents(in_node.extents(), OperationKind::allgather, rows);

  const Rows whole = {{5}, {5}, {5}};
  const Topology two_nodes{{{0, 2}, {1}}};
  const BoundUnit scatter = unit_of(OperationKind::reduce_scatter, whole, {1});
  const ExchangeSizes between(scatter, two_nodes, 1);
  EXPECT_FALSE(between.must_be_exchanged());
  expect_extents(between.extents(), OperationKind::reduce_scatter, whole);
}

TEST(ExchangeSizes, WhatRepeatsIsKnown) {
  const Rows rows = {{5}, {6}};
  const Topology topology{{{0}, {1}}};
  BoundUnit unit = unit_of(OperationKind::allgather, rows, {0});
  unit.exchange.repeats = true;
  EXPECT_THROW(ExchangeSizes(unit, topology, 0), Error);
}

}  // namespace
}  // namespace hora::internal
