// When ranks are asked for the place of a result. That the bytes arrive: exchange_run_test.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "ops/hierarchy/exchange_memory.h"
#include "tests/core/control_block/shared_control_block.h"
#include "tests/support/threads/heap_memory.h"

namespace hora::internal {
namespace {

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
