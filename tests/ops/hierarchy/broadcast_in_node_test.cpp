#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "core/plan/plan.h"
#include "ops/hierarchy/memory_group.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int kRoot = 1;
constexpr std::uint64_t kNumber = 3;

/// Three ranks: the root, one that fetches, and one whose memory others write.
class BroadcastInNodeOfThree : public testing::Test {
 protected:
  /// One unit of tensors of these lengths.
  void bring(const std::vector<std::int64_t>& lengths) {
    std::vector<Signature> signatures;
    for (const std::int64_t length : lengths) {
      Signature signature;
      signature.kind = OperationKind::broadcast;
      signature.type = DataType::uint8;
      signature.shape = {length};
      signatures.push_back(signature);
      const auto bytes = static_cast<std::size_t>(length);
      auto& sent = sent_.emplace_back(bytes);
      for (std::byte& each : sent) each = static_cast<std::byte>(random_());
      for (auto* memory : {&block_, &fetched_, &window_}) memory->emplace_back(bytes);
    }
    std::vector<const Signature*> pointers;
    for (const Signature& signature : signatures) pointers.push_back(&signature);
    unit_ = plan(pointers, {.fusion_bytes = std::size_t{1} << 30}).at(0);
  }
  BoundUnit unit_of(int rank, bool publishes) {
    BoundUnit bound;
    bound.number = kNumber;
    bound.unit = unit_;
    bound.local_size = 3;
    bound.root_local = kRoot;
    for (std::size_t i = 0; i < sent_.size(); ++i) {
      if (!publishes) block_[i] = sent_[i];
      if (publishes && rank == kRoot) bound.publishes.push_back({i, sent_[i].data()});
      if (rank == 0) bound.fetches.push_back({i, fetched_[i].data()});
      bound.memory.insert(bound.memory.end(), {nullptr, block_[i].data(), window_[i].data()});
    }
    return bound;
  }
  BroadcastInNode run(const BoundUnit& unit, int rank) {
    return {unit, UnitProgress(cells_.data(), rank), groups_[static_cast<std::size_t>(rank)], rank};
  }

  std::mt19937_64 random_ = test::generator();
  Unit unit_;
  std::vector<Bytes> sent_, block_, fetched_, window_;
  std::array<UnitProgressCell, 3> cells_{};
  std::array<MemoryGroup, 3> groups_ = {MemoryGroup(0, 3), MemoryGroup(1, 3), MemoryGroup(2, 3)};
};

constexpr auto kFollowed = static_cast<std::int64_t>(kFollowedBytes);

TEST_F(BroadcastInNodeOfThree, OthersWaitForTheRootAndGetItsBytes) {
  bring({70, kFollowed + 12345, 3, kFollowed});
  const BoundUnit fetching = unit_of(0, true), root = unit_of(1, true), written = unit_of(2, true);
  auto fetcher = run(fetching, 0), sender = run(root, 1), receiver = run(written, 2);
  EXPECT_FALSE(fetcher.poll());
  EXPECT_FALSE(receiver.poll());
  EXPECT_TRUE(sender.poll());
  EXPECT_TRUE(fetcher.poll());
  EXPECT_TRUE(receiver.poll());
  EXPECT_EQ(fetched_, sent_);
  EXPECT_EQ(window_, sent_);
  EXPECT_EQ(block_, sent_);
}

TEST_F(BroadcastInNodeOfThree, WhoFetchesTakesWhatThereIs) {
  bring({100, 3 * kFollowed});
  const BoundUnit fetching = unit_of(0, true);
  auto fetcher = run(fetching, 0);
  block_ = sent_;
  // Half a step of the second tensor is in the first three steps of the unit.
  constexpr std::size_t kTold = 3 * UnitProgress::kStep;
  const std::size_t reached = kTold - unit_.tensors[1].range.begin;
  UnitProgress(cells_.data(), kRoot).leave(kNumber, kTold);
  EXPECT_FALSE(fetcher.poll());
  EXPECT_EQ(fetched_[0], sent_[0]);
  for (std::size_t i = 0; i < sent_[1].size(); ++i) {
    ASSERT_EQ(fetched_[1][i], i < reached ? sent_[1][i] : std::byte{0}) << i;
  }
  EXPECT_FALSE(fetcher.poll());
  UnitProgress(cells_.data(), kRoot).leave_all(kNumber);
  EXPECT_TRUE(fetcher.poll());
  EXPECT_EQ(fetched_, sent_);
}

// Small tensors are there when all have arrived; no rank writes its progress.
TEST_F(BroadcastInNodeOfThree, WhatIsNotFollowedIsThereAlready) {
  bring({70, 4096, kFollowed - 1});
  const BoundUnit fetching = unit_of(0, false), root = unit_of(1, false),
                  written = unit_of(2, false);
  auto receiver = run(written, 2), fetcher = run(fetching, 0), sender = run(root, 1);
  EXPECT_TRUE(receiver.poll());
  EXPECT_TRUE(fetcher.poll());
  EXPECT_TRUE(sender.poll());
  EXPECT_EQ(fetched_, sent_);
  EXPECT_EQ(window_, sent_);
  EXPECT_EQ(cells_[kRoot].position.load(), 0U);
}

}  // namespace
}  // namespace hora::internal
