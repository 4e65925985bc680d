#include "ops/context/memory_node_trial.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <vector>

#include "tests/support/threads/heap_memory.h"
#include "tests/support/threads/thread_bootstrap.h"

namespace hora::internal {
namespace {

constexpr MemoryNodes kOne;
constexpr MemoryNodes kTwo{.count = 2, .ranks = 2};
constexpr int kRanks = 4;

/// What each rank's trial says; their memory is as before.
template <class Trial>
std::vector<MemoryNodes> on_all_ranks(Trial&& trial) {
  std::vector<MemoryNodes> answers(kRanks);
  test::HeapNode node(kRanks);
  test::run_ranks(std::vector<int>(kRanks, 0), [&](Bootstrap& ranks) {
    test::HeapMemory memory(node, ranks.rank());
    answers[static_cast<std::size_t>(ranks.rank())] = trial(ranks, memory);
  });
  EXPECT_EQ(node.blocks_in_use(), 0U);
  return answers;
}

TEST(MemoryNodeTrial, AllRanksGetTheSameAnswer) {
  const auto answers = on_all_ranks(
      [](Bootstrap& ranks, NodeMemory& memory) { return tried_memory_nodes(ranks, memory, kTwo); });
  EXPECT_TRUE(answers.front() == kOne || answers.front() == kTwo);
  EXPECT_EQ(answers, std::vector<MemoryNodes>(kRanks, answers.front()));
}

// What is allocated next, a control block above all, begins with zeros.
TEST(MemoryNodeTrial, MemoryIsZeroAfterwards) {
  on_all_ranks([](Bootstrap& ranks, NodeMemory& memory) {
    const MemoryNodes answer = tried_memory_nodes(ranks, memory, kTwo);
    constexpr std::size_t kBytes = std::size_t{1} << 20;
    std::byte* const next = memory.allocate(kBytes).data;
    EXPECT_EQ(std::ranges::count(next, next + kBytes, std::byte{0}), std::ptrdiff_t{kBytes});
    memory.release(next);
    return answer;
  });
}

TEST(MemoryNodeTrial, WithoutPatienceASumIsTooSlow) {
  const auto answers = on_all_ranks([](Bootstrap& ranks, NodeMemory& memory) {
    return tried_memory_nodes(ranks, memory, kTwo, std::chrono::milliseconds(0));
  });
  EXPECT_EQ(answers, std::vector<MemoryNodes>(kRanks, kOne));
}

/// Of a rank that has none left.
class NoMemory final : public NodeMemory {
 public:
  MemoryBlock allocate(std::size_t) override {
    throw Error(ErrorCode::out_of_memory, "there is none");
  }
  void release(std::byte*) noexcept override { ADD_FAILURE(); }
  std::optional<Location> find(const std::byte*, std::size_t) const override { return {}; }
  std::byte* address(int, Location, std::size_t) override { return nullptr; }
  void copy_past_caches(std::byte*, const std::byte*, std::size_t) override {}
};

TEST(MemoryNodeTrial, WhereARankLacksMemoryNothingIsTried) {
  test::HeapNode node(kRanks);
  std::vector<MemoryNodes> answers(kRanks, kTwo);
  test::run_ranks(std::vector<int>(kRanks, 0), [&](Bootstrap& ranks) {
    test::HeapMemory enough(node, ranks.rank());
    NoMemory none;
    NodeMemory& memory = ranks.rank() == 2 ? static_cast<NodeMemory&>(none) : enough;
    answers[static_cast<std::size_t>(ranks.rank())] = tried_memory_nodes(ranks, memory, kTwo);
  });
  EXPECT_EQ(answers, std::vector<MemoryNodes>(kRanks, kOne));
  EXPECT_EQ(node.blocks_in_use(), 0U);
}

TEST(MemoryNodeTrial, WhatSavesLittleIsNotWorthIt) {
  EXPECT_TRUE(is_worth_it(11, 6));
  EXPECT_FALSE(is_worth_it(11, 11));
  EXPECT_FALSE(is_worth_it(11, 10.9)) << "so little may be chance";
  EXPECT_FALSE(is_worth_it(6, 11));
}

TEST(MemoryNodesOfSums, AreThoseOfTheSettingWithoutATrial) {
  const Topology topology{{{0, 1, 2, 3}}};
  test::HeapNode node(1);
  test::HeapMemory memory(node, 0);
  test::ThreadBootstrap alone(std::make_shared<test::BootstrapRoom>(std::vector<int>{0}), 0);
  EXPECT_EQ(memory_nodes_of_sums(alone, topology, memory, {-1, -1, -1, -1}, 2),
            (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(memory_nodes_of_sums(alone, topology, memory, {0, 0, 1, 1}, 1),
            (std::vector<int>{0, 1, 2, 3}));
}

TEST(MemoryNodesOfSums, AreFoundOnesOrNone) {
  const Topology topology{{{0, 1, 2, 3}}};
  const std::vector<int> found{5, 5, 7, 7}, none(kRanks, -1);
  std::mutex mutex;
  std::vector<std::vector<int>> answers;
  on_all_ranks([&](Bootstrap& ranks, NodeMemory& memory) {
    auto answer = memory_nodes_of_sums(ranks, topology, memory, found, 0);
    const std::lock_guard lock(mutex);
    answers.push_back(std::move(answer));
    return kOne;
  });
  EXPECT_TRUE(answers.front() == found || answers.front() == none);
  EXPECT_EQ(answers, std::vector<std::vector<int>>(kRanks, answers.front()));
}

TEST(MemoryNodesOfSums, AreNoneWithoutATrialWhereThereAreNotSeveral) {
  test::HeapNode node(1);
  test::HeapMemory memory(node, 0);
  test::ThreadBootstrap alone(std::make_shared<test::BootstrapRoom>(std::vector<int>{0}), 0);
  EXPECT_EQ(memory_nodes_of_sums(alone, Topology{{{0, 1}}}, memory, {0, 1}, 0),
            (std::vector<int>{-1, -1}));
}

}  // namespace
}  // namespace hora::internal
