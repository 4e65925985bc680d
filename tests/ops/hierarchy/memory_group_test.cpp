#include "ops/hierarchy/memory_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/plan/plan.h"
#include "tests/support/reference/reference.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::uint64_t kSumNumber = 5;

/// One unit of tensors of so many elements.
Unit unit_of_tensors(OperationKind kind, DataType type, const std::vector<std::int64_t>& elements) {
  std::vector<Signature> signatures(elements.size());
  std::vector<const Signature*> pointers;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    signatures[i].kind = kind;
    signatures[i].type = type;
    signatures[i].shape = {elements[i]};
    pointers.push_back(&signatures[i]);
  }
  Unit unit;
  plan_unit(pointers, 0, {.fusion_bytes = std::size_t{1} << 30}, unit);
  if (unit.tensors.size() != elements.size()) throw std::logic_error("several units");
  return unit;
}

/// Tensors of one type on all ranks of a node.
class SummedTensors {
 public:
  SummedTensors(DataType type, const std::vector<std::int64_t>& elements, int ranks,
                std::mt19937_64& random)
      : ranks_(ranks), unit_(unit_of_tensors(OperationKind::allreduce, type, elements)) {
    for (const UnitTensor& tensor : unit_.tensors) {
      for (int r = 0; r < ranks; ++r) {
        memory_.push_back(test::random_values(type, tensor.range.bytes, random));
      }
    }
  }
  BoundUnit unit(ReduceOp op, double scale) {
    BoundUnit bound;
    bound.number = kSumNumber;
    bound.unit = unit_;
    bound.unit.op = op;
    bound.scale = scale;
    bound.local_size = ranks_;
    for (auto& bytes : memory_) bound.memory.push_back(bytes.data());
    return bound;
  }
  const std::vector<Bytes>& memory() const { return memory_; }

 private:
  int ranks_;
  Unit unit_;
  std::vector<Bytes> memory_;  ///< by tensor, then rank
};

/// One tensor without padding crosses without memory beside it. The slices of all ranks,
/// each of its own group, in and out again.
class MemoryGroupOf : public testing::TestWithParam<int> {
 protected:
  ChunkPart slice_of(const BoundUnit& unit, int rank, bool has_input = true) const {
    const Range whole{0, unit.unit.bytes};
    return {unit, whole, GetParam(), slice_range(whole, rank, GetParam()), 0, has_input};
  }

  std::mt19937_64 random_ = test::generator();
};

TEST_P(MemoryGroupOf, ASliceOfOneTensorIsSummedWhereItLies) {
  for (const double prescale : {1.0, 0.5}) {
    SummedTensors tensors(DataType::float32, {512}, GetParam(), random_);
    SummedTensors expected = tensors;
    BoundUnit unit = tensors.unit(ReduceOp::sum, 1.0);
    unit.unit.prescale = prescale;
    BoundUnit at_once = expected.unit(ReduceOp::sum, 1.0);
    at_once.unit.prescale = prescale;
    for (int rank = 0; rank < GetParam(); ++rank) {
      MemoryGroup group(rank, GetParam());
      const ChunkPart part = slice_of(unit, rank);
      EXPECT_TRUE(group.reduce_scatter(part).poll());
      EXPECT_EQ(group.staging(part), unit.tensor(0, rank) + part.slice.begin);
      EXPECT_TRUE(MemoryGroup(rank, GetParam()).run(at_once).poll());
    }
    for (int rank = GetParam() - 1; rank >= 0; --rank) {
      EXPECT_TRUE(MemoryGroup(rank, GetParam()).all_gather(slice_of(unit, rank)).poll());
    }
    EXPECT_EQ(tensors.memory(), expected.memory());
  }
}

TEST_P(MemoryGroupOf, ASliceWithPaddingOrOfATensorThatTheRankLacksIsStaged) {
  SummedTensors tensors(DataType::float32, {500}, GetParam(), random_);
  BoundUnit unit = tensors.unit(ReduceOp::sum, 1.0);
  MemoryGroup group(0, GetParam());
  const Range whole{0, unit.unit.bytes};
  ASSERT_GT(whole.bytes, 2000U);
  EXPECT_NE(group.staging({unit, whole, 1, whole, 0}), unit.tensor(0, 0));
  const Range first{0, 64};
  EXPECT_EQ(group.staging({unit, whole, 1, first, 0}), unit.tensor(0, 0));
  unit.memory[0] = nullptr;
  EXPECT_NE(group.staging({unit, whole, 1, first, 0}), nullptr);
}

TEST_P(MemoryGroupOf, ABroadcastOfOneTensorCrossesFromAndToTheTensor) {
  const int root = GetParam() - 1;
  for (const bool has_input : {true, false}) {
    SummedTensors tensors(DataType::int32, {512}, GetParam(), random_);
    const Bytes of_root = has_input ? tensors.memory().back() : Bytes(512 * 4, std::byte{7});
    BoundUnit unit = tensors.unit(ReduceOp::sum, 1.0);
    unit.unit.kind = OperationKind::broadcast;
    unit.root_local = has_input ? root : -1;
    for (int rank = 0; rank < GetParam(); ++rank) {
      MemoryGroup group(rank, GetParam());
      const ChunkPart part = slice_of(unit, rank, has_input);
      EXPECT_TRUE(group.reduce_scatter(part).poll());
      std::byte* const staging = group.staging(part);
      EXPECT_EQ(staging, unit.tensor(0, has_input ? root : rank) + part.slice.begin);
      if (!has_input) std::memset(staging, 7, part.slice.bytes);  // what the cross group does
      EXPECT_TRUE(group.all_gather(part).poll());
    }
    EXPECT_THAT(tensors.memory(), testing::Each(of_root));
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, MemoryGroupOf, testing::Values(1, 2, 3, 5),
                         testing::PrintToStringParamName());

constexpr int kRoot = 1;
constexpr std::uint64_t kNumber = 3;

/// Three ranks: the root, one that fetches, and one whose memory others write.
class BroadcastInNodeOfThree : public testing::Test {
 protected:
  /// One unit of tensors of these lengths.
  void bring(const std::vector<std::int64_t>& lengths) {
    unit_ = unit_of_tensors(OperationKind::broadcast, DataType::uint8, lengths);
    for (const std::int64_t length : lengths) {
      const auto bytes = static_cast<std::size_t>(length);
      sent_.push_back(test::random_values(DataType::uint8, bytes, random_));
      for (auto* memory : {&block_, &fetched_, &window_}) memory->emplace_back(bytes);
    }
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

class MemoryNodeSumOf : public testing::TestWithParam<MemoryNodes> {
 protected:
  MemoryNodes nodes() const { return GetParam(); }
  int ranks() const { return nodes().count * nodes().ranks; }
  UnitProgress progress(int rank) { return {cells_.data(), rank}; }

  /// Tensors, and `sums`: what they become by one pass over all ranks.
  SummedTensors tensors_with_sums(DataType type, const std::vector<std::int64_t>& elements,
                                  ReduceOp op, double scale = 1.0) {
    SummedTensors tensors(type, elements, ranks(), random_);
    SummedTensors expected = tensors;
    const BoundUnit unit = expected.unit(op, scale);
    for (int rank = 0; rank < ranks(); ++rank) {
      EXPECT_TRUE(MemoryGroup(rank, ranks()).run(unit).poll());
    }
    sums_ = expected.memory();
    return tensors;
  }
  /// All ranks take turns, at random; `unit_of(rank)` is what a rank sees.
  template <class UnitOf>
  void sum_in_turns(UnitOf&& unit_of) {
    std::vector<std::unique_ptr<MemoryNodeSum>> running;
    for (int rank = 0; rank < ranks(); ++rank) {
      running.push_back(
          std::make_unique<MemoryNodeSum>(unit_of(rank), nodes(), rank, progress(rank)));
    }
    constexpr int kMostTurns = 100000;
    for (int turn = 0; turn < kMostTurns && !running.empty(); ++turn) {
      const auto next = running.begin() + static_cast<long>(random_() % running.size());
      if ((*next)->poll()) running.erase(next);
    }
    EXPECT_TRUE(running.empty()) << "ranks wait for one another";
  }

  std::mt19937_64 random_ = test::generator();
  std::vector<UnitProgressCell> cells_ = std::vector<UnitProgressCell>(64);
  std::vector<Bytes> sums_;
};

/// Whole tensors of a few elements, too: shorter than a rank's slice.
const std::vector<std::int64_t> kSumElements[] = {
    {1, 70000, 0, 16, 17, 131072, 100001}, {1}, {15}, {17}, {100}};

TEST_P(MemoryNodeSumOf, HasTheBitsOfOnePassOverAllRanks) {
  for (const DataType type : {DataType::float32, DataType::float64, DataType::int32,
                              DataType::uint8, DataType::boolean, DataType::int16}) {
    for (const ReduceOp op :
         {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
      // Only a part of the others than sums, drawn by the seed: under a sanitizer each takes long.
      if (type != DataType::float32 && op != ReduceOp::sum && random_() % 3 != 0) continue;
      const double scale = op == ReduceOp::average ? 1.0 / ranks() : 1.0;
      const auto& elements = kSumElements[op == ReduceOp::sum ? 0 : random_() % 5];
      SummedTensors tensors = tensors_with_sums(type, elements, op, scale);
      const BoundUnit unit = tensors.unit(op, scale);
      for (UnitProgressCell& cell : cells_) cell.position.store(0, std::memory_order_relaxed);
      sum_in_turns([&](int) -> const BoundUnit& { return unit; });
      ASSERT_EQ(tensors.memory(), sums_) << name_of(type) << " " << name_of(op);
    }
  }
}

TEST_P(MemoryNodeSumOf, ARankTouchesOfOtherMemoryNodesWhatItsLikeHasThere) {
  constexpr std::int64_t kCount = 400000;
  // Whoever touches it ends the process.
  auto* const beyond = reinterpret_cast<std::byte*>(4096);  // NOLINT(performance-no-int-to-ptr)
  SummedTensors tensors = tensors_with_sums(DataType::float32, {kCount}, ReduceOp::sum);
  std::vector<BoundUnit> seen;
  for (int rank = 0; rank < ranks(); ++rank) {
    BoundUnit& unit = seen.emplace_back(tensors.unit(ReduceOp::sum, 1.0));
    for (int other = 0; other < ranks(); ++other) {
      const bool is_near = other / nodes().ranks == rank / nodes().ranks;
      const bool is_like = other % nodes().ranks == rank % nodes().ranks;
      if (!is_near && !is_like) unit.memory[static_cast<std::size_t>(other)] = beyond;
    }
  }
  sum_in_turns([&](int rank) -> const BoundUnit& { return seen[static_cast<std::size_t>(rank)]; });
  EXPECT_EQ(tensors.memory(), sums_);
}

// A rank that is done may be in its next units before others have read what it has announced.
TEST_P(MemoryNodeSumOf, RanksOfLaterUnitsHaveAnnouncedAllOfThisOne) {
  SummedTensors tensors = tensors_with_sums(DataType::float32, {400000}, ReduceOp::sum);
  const BoundUnit unit = tensors.unit(ReduceOp::sum, 1.0);
  std::vector<std::unique_ptr<MemoryNodeSum>> sums;
  for (int rank = 0; rank < ranks(); ++rank) {
    sums.push_back(std::make_unique<MemoryNodeSum>(unit, nodes(), rank, progress(rank)));
    const bool is_last = rank / nodes().ranks == nodes().count - 1;
    EXPECT_EQ(sums.back()->poll(), is_last);
    if (is_last) progress(rank).leave(kSumNumber + 2, 0);
  }
  for (int rank = 0; rank < ranks() - nodes().ranks; ++rank) {
    EXPECT_TRUE(sums[static_cast<std::size_t>(rank)]->poll());
  }
  EXPECT_EQ(tensors.memory(), sums_);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, MemoryNodeSumOf,
    testing::Values(MemoryNodes{.count = 2, .ranks = 2}, MemoryNodes{.count = 2, .ranks = 3},
                    MemoryNodes{.count = 3, .ranks = 2}, MemoryNodes{.count = 4, .ranks = 4}),
    [](const auto& of) {
      return std::to_string(of.param.count) + "x" + std::to_string(of.param.ranks);
    });

}  // namespace
}  // namespace hora::internal
