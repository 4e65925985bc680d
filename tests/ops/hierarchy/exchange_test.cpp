// When ranks are asked for the place of a result. That the bytes arrive: exchange_run_test.
#include <gtest/gtest.h>
#include <hora/error.h>

#include <algorithm>
#include <memory>
#include <random>

#include "ops/hierarchy/exchange_run.h"
#include "tests/core/control_block/shared_control_block.h"
#include "tests/support/reference/reference.h"
#include "tests/support/seed.h"
#include "tests/support/threads/heap_memory.h"

namespace hora::internal {
namespace {

TEST(GrowingBlock, IsKeptWhileItIsLongEnough) {
  test::HeapNode node(1);
  test::HeapMemory memory(node, 0);
  {
    GrowingBlock block(memory);
    EXPECT_EQ(block.reserve(0), nullptr);
    EXPECT_EQ(node.blocks_in_use(), 0u);
    for (const std::size_t bytes : {1, 100, 5000, 3000000}) {
      std::byte* const data = block.reserve(bytes);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 64, 0u);
      EXPECT_EQ(block.reserve(bytes / 2), data);
      EXPECT_EQ(memory.address(0, block.location(), bytes), data);
      EXPECT_EQ(node.blocks_in_use(), 1u) << "the shorter one is released";
    }
  }
  EXPECT_EQ(node.blocks_in_use(), 0u);
}

TEST(ExchangeMemory, NeighbouringRoundsHaveMemoryOfTheirOwn) {
  test::HeapNode node(1);
  test::HeapMemory memory(node, 0);
  {
    ExchangeMemory exchange(memory);
    std::byte* const first = exchange.staging(6).reserve(64);
    EXPECT_NE(exchange.staging(7).reserve(64), first);
    EXPECT_NE(exchange.scratch(6).reserve(64), first);
    EXPECT_EQ(exchange.staging(8).reserve(64), first);
    EXPECT_EQ(exchange.at(0, exchange.staging(6).location(), 64), first);
    EXPECT_EQ(node.blocks_in_use(), 3u);
  }
  EXPECT_EQ(node.blocks_in_use(), 0u);
}

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

using test::Bytes;

struct ExchangeCopy : testing::Test {
  ExchangeCopy() {
    unit.local_size = 3;
    unit.unit.type = DataType::float16;
    unit.scale = 0.3;
    for (Bytes& input : inputs) {
      input = test::random_values(DataType::float16, 200, random);
      unit.memory.push_back(input.data());
    }
  }
  static Bytes part(const Bytes& bytes, std::size_t begin, std::size_t length) {
    const auto from = bytes.begin() + static_cast<std::ptrdiff_t>(begin);
    return {from, from + static_cast<std::ptrdiff_t>(length)};
  }

  std::mt19937_64 random = test::generator();
  Bytes inputs[3];
  BoundUnit unit;
  /// Two transfers from ranks to ranks, and one that is a sum.
  ByteLayout copies = {{2, 10, 0, 40, {0, 30}}, {1, 0, 1, 2, {30, 20}}};
  ByteLayout sum = {{Transfer::kAll, 50, 1, 8, {0, 66}}};
};

TEST_F(ExchangeCopy, GathersPiecesAndUnscaledSums) {
  Bytes out(50);
  gather(unit, copies, out.data());
  EXPECT_EQ(part(out, 0, 30), part(inputs[2], 10, 30));
  EXPECT_EQ(part(out, 30, 20), part(inputs[1], 0, 20));
  Bytes summed(66);
  gather(unit, sum, summed.data());
  const auto whole =
      test::reduced(DataType::float16, ReduceOp::sum, {inputs[0], inputs[1], inputs[2]});
  EXPECT_EQ(summed, part(whole, 50, 66));
}

TEST_F(ExchangeCopy, CopiesOwnRowsToTheResultAndScalesSums) {
  Bytes result(74, std::byte{1});
  copy_to_result(unit, copies, 0, {result.data(), result.size()});
  EXPECT_EQ(part(result, 40, 30), part(inputs[2], 10, 30));
  EXPECT_EQ(part(result, 0, 40), Bytes(40, std::byte{1}));
  copy_to_result(unit, copies, 1, {result.data(), result.size()});
  EXPECT_EQ(part(result, 2, 20), part(inputs[1], 0, 20));
  copy_to_result(unit, sum, 1, {result.data(), result.size()});
  const auto whole = test::reduced(DataType::float16, ReduceOp::sum,
                                   {inputs[0], inputs[1], inputs[2]}, {.post = 0.3});
  EXPECT_EQ(part(result, 8, 66), part(whole, 50, 66));
  EXPECT_EQ(part(result, 0, 2), Bytes(2, std::byte{1}));
}

TEST_F(ExchangeCopy, ScattersOwnRowsAndThoseForAll) {
  const Bytes in = test::random_values(DataType::uint8, 60, random);
  ByteLayout layout = copies;
  layout.push_back({0, 0, Transfer::kAll, 90, {50, 10}});
  Bytes result(100, std::byte{1});
  scatter(layout, 1, in.data(), {result.data(), result.size()});
  Bytes expected(100, std::byte{1});
  std::copy_n(in.begin() + 30, 20, expected.begin() + 2);
  std::copy_n(in.begin() + 50, 10, expected.begin() + 90);
  EXPECT_EQ(result, expected);
}

// Lengths on both sides of where copies begin to go past the caches, at odd offsets.
TEST_F(ExchangeCopy, CopiesIntoShortAndLongResultsAlike) {
  for (const std::size_t length : {std::size_t{1} << 20, std::size_t{5} << 20}) {
    const Bytes in = test::random_values(DataType::uint8, length - 12, random);
    Bytes result(length, std::byte{1});
    ExchangeTarget(result.data(), length).copy(5, in.data(), in.size());
    EXPECT_TRUE(part(result, 5, in.size()) == in);
    EXPECT_EQ(part(result, 0, 5), Bytes(5, std::byte{1}));
    EXPECT_EQ(part(result, length - 7, 7), Bytes(7, std::byte{1}));
  }
}

using Rows = std::vector<std::vector<std::int64_t>>;

/// Two ranks of one node, with results of 64 bytes.
class ExchangePushOfTwo : public testing::Test {
 protected:
  ExchangePushOfTwo() {
    for (int r = 0; r < 2; ++r) {
      memories_.push_back(std::make_unique<test::HeapMemory>(node_, r));
      blocks_.push_back(memories_.back()->allocate(64));
      sites_.emplace_back(new ExchangeContext{.topology = topology_,
                                              .local_rank = r,
                                              .rounds = control_block_[r].exchange_rounds(),
                                              .memory = ExchangeMemory(*memories_.back())});
    }
  }
  ~ExchangePushOfTwo() override {
    for (int r = 0; r < 2; ++r) memory(r).release(blocks_[static_cast<std::size_t>(r)].data);
  }

  NodeMemory& memory(int rank) { return *memories_[static_cast<std::size_t>(rank)]; }
  const NodeMemory::MemoryBlock& block(int rank) const {
    return blocks_[static_cast<std::size_t>(rank)];
  }
  std::unique_ptr<ExchangePush> push_of(int rank, const BoundUnit& unit, const Rows& rows) {
    const ExchangeMap map(topology_, {OperationKind::alltoall, 1, {rows.begin(), rows.end()}});
    return std::make_unique<ExchangePush>(unit, *sites_[static_cast<std::size_t>(rank)], map,
                                          block(rank).data, 64);
  }

  const Topology topology_{{{0, 1}}};
  test::SharedControlBlock control_block_{{.local_size = 2, .id_capacity = 8, .single_node = true}};
  test::HeapNode node_{2};
  std::vector<std::unique_ptr<test::HeapMemory>> memories_;
  std::vector<NodeMemory::MemoryBlock> blocks_;
  std::vector<std::unique_ptr<ExchangeContext>> sites_;
};

BoundUnit unit_with(std::vector<bool> pushes, std::vector<Location> expected) {
  BoundUnit unit;
  unit.local_size = 2;
  unit.memory = {nullptr, nullptr};
  unit.exchange.pushes = std::move(pushes);
  unit.exchange.expected = std::move(expected);
  return unit;
}

TEST_F(ExchangePushOfTwo, IsNeededWhereSomebodyPushes) {
  EXPECT_FALSE(ExchangePush::is_needed(unit_with({}, {})));
  EXPECT_FALSE(ExchangePush::is_needed(unit_with({false, false}, {kNowhere, kNowhere})));
  EXPECT_TRUE(ExchangePush::is_needed(unit_with({false, true}, {kNowhere, kNowhere})));
}

TEST_F(ExchangePushOfTwo, AsksNoRankWhereResultsAreAsExpected) {
  const BoundUnit unit = unit_with({true, true}, {block(0).location, block(1).location});
  const auto push = push_of(0, unit, {{32, 32}, {32, 32}});
  EXPECT_EQ(push->rounds(), 0U);
  EXPECT_TRUE(push->poll());
}

// What rank 0 gives is even, what rank 1 gives is not: neither result is as expected.
TEST_F(ExchangePushOfTwo, WaitsUntilAllHaveToldWhereTheirResultsAre) {
  BoundUnit unit = unit_with({true, false}, {block(0).location, kNowhere});
  std::vector<std::byte> input(64);
  for (std::size_t i = 0; i < input.size(); ++i) input[i] = static_cast<std::byte>(i);
  unit.memory[0] = input.data();
  const Rows rows = {{32, 32}, {31, 32}};
  const auto pusher = push_of(0, unit, rows);
  const auto other = push_of(1, unit, rows);
  EXPECT_EQ(pusher->rounds(), 1U);
  EXPECT_FALSE(pusher->poll());
  EXPECT_FALSE(pusher->is_ready());
  EXPECT_TRUE(other->poll());
  EXPECT_TRUE(pusher->poll());
  pusher->push({{0, 0, 0, 0, {0, 32}}, {0, 32, 1, 7, {32, 32}}});
  EXPECT_EQ(std::vector<std::byte>(block(1).data + 7, block(1).data + 39),
            std::vector<std::byte>(input.begin() + 32, input.end()));
}

// A transfer for every rank goes into all results but its own rank's.
TEST_F(ExchangePushOfTwo, GivesEverybodyWhatIsForAll) {
  BoundUnit unit = unit_with({true, false}, {block(0).location, block(1).location});
  std::vector<std::byte> input(32, std::byte{7});
  unit.memory[0] = input.data();
  const auto push = push_of(0, unit, {{32, 32}, {32, 32}});
  std::fill_n(block(0).data, 64, std::byte{1});
  std::fill_n(block(1).data, 64, std::byte{1});
  push->push({{0, 0, Transfer::kAll, 8, {0, 32}}});
  EXPECT_EQ(std::vector<std::byte>(block(1).data + 8, block(1).data + 40), input);
  EXPECT_EQ(block(1).data[7], std::byte{1});
  EXPECT_EQ(block(1).data[40], std::byte{1});
  EXPECT_EQ(block(0).data[8], std::byte{1});
}

}  // namespace

}  // namespace hora::internal
