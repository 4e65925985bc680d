#include "core/plan/plan.h"

#include <gtest/gtest.h>

#include <random>

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
  return plan(pointers, limits);
}

TEST(Plan, FusesNeighboursOfOneKindUpToTheThreshold) {
  const auto units = plan_of({tensor(1), tensor(16), tensor(17), tensor(1)},
                             {.fusion_bytes = 256, .alone_bytes = 0, .chunk_bytes = 0});
  ASSERT_EQ(units.size(), 2u);
  EXPECT_EQ(units[0].tensors,
            (std::vector<UnitTensor>{{0, {0, 4}}, {1, {64, 64}}, {2, {128, 68}}}));
  EXPECT_EQ(units[0].bytes, 256u);
  EXPECT_EQ(units[1].tensors, (std::vector<UnitTensor>{{3, {0, 4}}}));
}

TEST(Plan, KeepsTypesOperationsAndRootsApart) {
  std::vector<Signature> signatures = {tensor(4), tensor(4, DataType::float64),
                                       tensor(4, DataType::float64, ReduceOp::average)};
  signatures.push_back({.kind = OperationKind::broadcast, .root = 0, .shape = {4}});
  signatures.push_back({.kind = OperationKind::broadcast, .root = 1, .shape = {4}});
  EXPECT_EQ(plan_of(signatures, {.fusion_bytes = 1 << 20, .chunk_bytes = 0}).size(), 5u);
}

TEST(Plan, TensorOverTheThresholdStandsAlone) {
  const auto units =
      plan_of({tensor(4), tensor(1000), tensor(4)}, {.fusion_bytes = 128, .chunk_bytes = 0});
  ASSERT_EQ(units.size(), 3u);
  EXPECT_EQ(units[1].bytes, align_up(4000));
}

TEST(Plan, TensorsOfThatSizeTravelAlone) {
  const auto units = plan_of({tensor(4), tensor(100), tensor(99), tensor(4)},
                             {.fusion_bytes = 1 << 20, .alone_bytes = 400, .chunk_bytes = 0});
  ASSERT_EQ(units.size(), 3u);
  EXPECT_EQ(units[1].tensors, (std::vector<UnitTensor>{{1, {0, 400}}}));
  EXPECT_EQ(units[2].tensors.size(), 2u) << "what follows may travel together again";
}

TEST(Plan, ChunksFitTheNumberOfNodes) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  for (const int nodes : {1, 2, 31, 32}) EXPECT_EQ(chunk_limit(0, nodes), kMiB) << nodes;
  EXPECT_EQ(chunk_limit(0, 33), 33 * kMiB / 32);
  EXPECT_EQ(chunk_limit(0, 256), 8 * kMiB);
  EXPECT_EQ(chunk_limit(0, 1024), 32 * kMiB);
  EXPECT_EQ(chunk_limit(0, 1025), 32 * kMiB) << "staging has its bounds";
  EXPECT_EQ(chunk_limit(0, 2147483647), 32 * kMiB);
  EXPECT_EQ(chunk_limit(4096, 2), 4096u) << "what is set holds";
  EXPECT_EQ(chunk_limit(std::size_t{1} << 30, 1024), std::size_t{1} << 30);
  for (int nodes = 33; nodes <= 1024; ++nodes) {
    const Range chunk{0, chunk_limit(0, nodes)};
    EXPECT_EQ(slice_range(chunk, nodes - 1, nodes).bytes, std::size_t{32} << 10) << nodes;
  }
}

TEST(Plan, ChunksOfBroadcastsAreThoseThatAreSetOrHalfAMebibyte) {
  EXPECT_EQ(broadcast_chunk_limit(0), std::size_t{1} << 19);
  EXPECT_EQ(broadcast_chunk_limit(4096), 4096u);
}

TEST(Plan, ChunksOnDevicesFitTheRanksOfANode) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  EXPECT_EQ(device_chunk_limit(0, 2, 1), 2 * kMiB);
  for (const int slices : {2, 8, 16}) {
    const Range chunk{0, device_chunk_limit(0, 2, slices)};
    EXPECT_EQ(slice_range(chunk, slices - 1, slices).bytes, 2 * kMiB) << slices;
  }
  EXPECT_EQ(device_chunk_limit(0, 2, 17), 32 * kMiB);
  EXPECT_EQ(device_chunk_limit(0, 256, 1), chunk_limit(0, 256)) << "of many nodes";
  EXPECT_EQ(device_chunk_limit(0, 5000, 64), 32 * kMiB);
  EXPECT_EQ(device_chunk_limit(4096, 2, 8), 4096u) << "what is set holds";
}

TEST(Plan, EmptyTensorsAndBarriersHaveNoChunk) {
  const auto units = plan_of({tensor(0)}, {.fusion_bytes = 128, .chunk_bytes = 64});
  ASSERT_EQ(units.size(), 1u);
  EXPECT_EQ(units[0].chunks(), 0u);
  EXPECT_TRUE(runs(units[0], {0, 0}).empty());
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

}  // namespace
}  // namespace hora::internal
