#include "core/plan/plan.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

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
  EXPECT_EQ(chunk_limit(0, 1024), 32 * kMiB);
  EXPECT_EQ(chunk_limit(0, 2147483647), 32 * kMiB) << "staging has its bounds";
  EXPECT_EQ(chunk_limit(std::size_t{1} << 30, 1024), std::size_t{1} << 30) << "what is set holds";
  for (int nodes = 33; nodes <= 1024; ++nodes) {
    const Range chunk{0, chunk_limit(0, nodes)};
    EXPECT_EQ(slice_range(chunk, nodes - 1, nodes).bytes, std::size_t{32} << 10) << nodes;
  }
  EXPECT_EQ(broadcast_chunk_limit(0), std::size_t{1} << 19);
  EXPECT_EQ(broadcast_chunk_limit(4096), 4096u);
  for (const int slices : {1, 2, 8, 16}) {
    const Range chunk{0, device_chunk_limit(0, 2, slices)};
    EXPECT_EQ(slice_range(chunk, slices - 1, slices).bytes, 2 * kMiB) << slices;
  }
  EXPECT_EQ(device_chunk_limit(0, 2, 17), 32 * kMiB);
  EXPECT_EQ(device_chunk_limit(0, 256, 1), chunk_limit(0, 256)) << "of many nodes";
  EXPECT_EQ(device_chunk_limit(4096, 2, 8), 4096u) << "what is set holds";
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

TEST(Plan, SlicesOfAFullChunkAreEqualAndAligned) {
  for (int slices = 1; slices <= 8; ++slices) {
    const Range chunk{128, 64u * 8 * 3 * 5 * 7};
    const Range first = slice_range(chunk, 0, slices);
    for (int s = 0; s < slices; ++s) {
      EXPECT_EQ(slice_range(chunk, s, slices).bytes, first.bytes);
      EXPECT_EQ(slice_range(chunk, s, slices).begin % kAlignment, 0u);
    }
  }
}

using Extents = std::vector<std::int64_t>;

TEST(LastExtents, AreThoseOfEachRankUnlessTheyAreTooMany) {
  LastExtents last;
  const auto all = last.renew(2, 3);
  std::iota(all.begin(), all.end(), 10);
  last.end_run();
  EXPECT_TRUE(last.known());
  EXPECT_TRUE(last.are(2, Extents{14, 15}));
  EXPECT_FALSE(last.are(1, Extents{10, 11}));
  EXPECT_FALSE(last.are(0, Extents{10}));
  last.renew(1, LastExtents::kMostKept);
  last.end_run();
  EXPECT_TRUE(last.known());
  last.renew(1, LastExtents::kMostKept + 1).back() = 7;
  EXPECT_EQ(last.of(static_cast<int>(LastExtents::kMostKept))[0], 7) << "until the run has ended";
  last.end_run();
  EXPECT_FALSE(last.known());
  EXPECT_FALSE(last.are(0, Extents{0}));
}

constexpr MemoryNodes kOne;

TEST(MemoryNodes, AreThoseThatRanksShareEvenlyElseOne) {
  const std::vector<std::pair<std::vector<int>, MemoryNodes>> cases = {
      {{0, 0, 1, 1}, {.count = 2, .ranks = 2}},
      {{3, 3, 3, 1, 1, 1}, {.count = 2, .ranks = 3}},
      {{0, 0, 1, 1, 2, 2, 3, 3}, {.count = 4, .ranks = 2}},
      {{}, kOne},
      {{0}, kOne},
      {{0, 0, 0, 0}, kOne},        // there is one
      {{0, 1}, kOne},              // no two ranks share one
      {{0, 0, 0, 1, 1}, kOne},     // uneven
      {{0, 0, 0, 1, 1, 2}, kOne},  // uneven
      {{0, 0, 1, 1, 1, 1}, kOne},  // uneven
      {{0, 1, 0, 1}, kOne},        // ranks are not next to each other
      {{0, 0, 1, 1, 0, 0}, kOne},  // one comes again
      {{-1, -1, 1, 1}, kOne},      // ranks that may use several
      {{0, 0, 1, -1}, kOne}};      // a rank that may use several
  for (const auto& [of_rank, nodes] : cases) {
    EXPECT_EQ(MemoryNodes::of(of_rank), nodes) << testing::PrintToString(of_rank);
  }
}

TEST(MemoryNodes, OfASetAreThoseOfItsMembers) {
  const Topology world{{{0, 2, 4, 6, 1, 3, 5, 7}}};
  const std::vector<int> of_rank = virtual_memory_nodes(world, 4);
  EXPECT_EQ(of_rank, (std::vector<int>{0, 1, 0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(MemoryNodes::of(world, of_rank), (MemoryNodes{.count = 2, .ranks = 4}));
  EXPECT_EQ(MemoryNodes::of(Topology{{{0, 2, 1, 3}}}, of_rank),
            (MemoryNodes{.count = 2, .ranks = 2}));
  EXPECT_EQ(MemoryNodes::of(Topology{{{0, 2, 1}}}, of_rank), kOne);
  EXPECT_EQ(MemoryNodes::of(Topology{{{0, 2, 4}}}, of_rank), kOne);
  EXPECT_EQ(MemoryNodes::of(Topology{{{0, 2}, {1, 3}}}, of_rank), kOne) << "several nodes";
  EXPECT_EQ(virtual_memory_nodes(Topology{{{0, 1, 2}, {3, 4, 5, 6}}}, 2),
            (std::vector<int>{0, 0, 1, 0, 0, 1, 1}));
}

/// One tensor on four ranks.
class SumOf : public testing::Test {
 protected:
  Signature signature(DataType type = DataType::float32) const {
    Signature signature;
    signature.type = type;
    signature.shape = {
        static_cast<std::int64_t>(MemoryNodes::kLeastBytes / size_of(signature.type))};
    return signature;
  }
  BoundUnit unit(const Signature& signature) {
    const std::array decided{&signature};
    BoundUnit unit;
    plan_unit(decided, 0, {}, unit.unit);
    unit.local_size = 4;
    unit.memory.assign(4, &byte_);
    return unit;
  }
  /// As a submission of it, and as a unit of it alone, which must agree.
  bool apart(const Signature& signature) {
    const bool before = kTwo.sum_apart(signature, signature.bytes());
    EXPECT_EQ(kTwo.sum_apart(unit(signature)), before);
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
  EXPECT_FALSE(kOne.sum_apart(unit(signature())));
  std::vector<Signature> others(3, signature());
  others[0].prescale = 0.5;
  others[1].kind = OperationKind::broadcast;
  others[2].shape[0] -= 16;
  others.push_back(signature(DataType::float16));
  others.push_back(signature(DataType::bfloat16));
  for (const Signature& other : others) EXPECT_FALSE(apart(other)) << to_string(other);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    BoundUnit lacks = unit(signature());  // a rank that has joined
    lacks.memory[rank] = nullptr;
    EXPECT_FALSE(kTwo.sum_apart(lacks)) << rank;
  }
}

TEST_F(SumOf, AnEmptyTensorIsLackedByNoRank) {
  const Signature whole = signature();
  Signature empty = whole;
  empty.shape = {0};
  const std::array<const Signature*, 2> decided{&empty, &whole};
  BoundUnit unit;
  plan_unit(decided, 0, {.fusion_bytes = std::size_t{1} << 30}, unit.unit);
  ASSERT_EQ(unit.unit.tensors.size(), 2U);
  unit.local_size = 4;
  unit.memory.assign(8, &byte_);
  unit.memory[0] = nullptr;
  EXPECT_TRUE(kTwo.sum_apart(unit));
}

}  // namespace

}  // namespace hora::internal
