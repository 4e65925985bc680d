#include "ops/hierarchy/memory_group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tests/ops/hierarchy/bound_tensors.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using test::BoundTensors;

constexpr PlanLimits kOneUnit{.fusion_bytes = 1 << 20, .chunk_bytes = 1 << 10};
const std::vector<std::int64_t> kElements = {1, 300, 0, 16, 17, 777};

class MemoryGroupOf : public testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }
  std::mt19937_64 random_ = test::generator();

  /// Every rank its slice of the whole unit, ranks in a random order.
  void run_all(const BoundUnit& unit) {
    for (const int rank : shuffled()) {
      MemoryGroup group(rank, ranks());
      EXPECT_TRUE(group.run(unit).poll());
    }
  }
  std::vector<int> shuffled() {
    std::vector<int> order(static_cast<std::size_t>(ranks()));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    return order;
  }
  /// On every rank each element of every tensor is `expected(tensor, at)`.
  template <class T, class F>
  void expect_everywhere(const BoundTensors<T>& tensors, F&& expected) {
    for (std::size_t t = 0; t < kElements.size(); ++t) {
      for (int r = 0; r < ranks(); ++r) {
        for (std::size_t i = 0; i < static_cast<std::size_t>(kElements[t]); ++i) {
          ASSERT_EQ(tensors.now(t, r, i), expected(t, i))
              << "tensor " << t << " rank " << r << " at " << i;
        }
      }
    }
    EXPECT_TRUE(tensors.guards_intact());
  }
};

TEST_P(MemoryGroupOf, SumsAndScalesOnAllRanks) {
  BoundTensors<float> tensors(kElements, ranks(), random_);
  run_all(tensors.unit(OperationKind::allreduce, kOneUnit, 0.25));
  expect_everywhere(tensors,
                    [&](std::size_t t, std::size_t i) { return tensors.sum(t, i) * 0.25F; });
}

TEST_P(MemoryGroupOf, SumsIntegersAndBytes) {
  BoundTensors<std::int64_t> wide(kElements, ranks(), random_);
  run_all(wide.unit(OperationKind::allreduce, kOneUnit));
  expect_everywhere(wide, [&](std::size_t t, std::size_t i) { return wide.sum(t, i); });
  BoundTensors<std::uint8_t> narrow(kElements, ranks(), random_);
  run_all(narrow.unit(OperationKind::allreduce, kOneUnit));
  expect_everywhere(narrow, [&](std::size_t t, std::size_t i) { return narrow.sum(t, i); });
}

TEST_P(MemoryGroupOf, BroadcastsFromEachRoot) {
  for (int root = 0; root < ranks(); ++root) {
    BoundTensors<double> tensors(kElements, ranks(), random_);
    BoundUnit unit = tensors.unit(OperationKind::broadcast, kOneUnit);
    unit.root_local = root;
    run_all(unit);
    expect_everywhere(tensors,
                      [&](std::size_t t, std::size_t i) { return tensors.before(t, root, i); });
  }
}

// As the pipeline calls it, with any number of slices up to the number of ranks.
TEST_P(MemoryGroupOf, ScatterIntoStagingAndGatherGiveTheSum) {
  for (int slices = 1; slices <= ranks(); ++slices) {
    BoundTensors<float> tensors(kElements, ranks(), random_);
    const BoundUnit unit = tensors.unit(OperationKind::allreduce, kOneUnit, 0.5);
    struct Part {
      int owner;
      MemoryGroup group;
      ChunkPart chunk;
      float* staging() { return reinterpret_cast<float*>(group.staging(chunk)); }
    };
    std::vector<Part> parts;
    for (std::size_t c = 0; c < unit.unit.chunks(); ++c) {
      for (int s = 0; s < slices; ++s) {
        const Range chunk = chunk_range(unit.unit, c);
        const Range slice = slice_range(chunk, s, slices);
        parts.push_back({s, MemoryGroup(s, ranks()), {unit, chunk, slices, slice, c % 3}});
        EXPECT_TRUE(parts.back().group.reduce_scatter(parts.back().chunk).poll());
      }
    }
    // Staging, which may be an owner's own slice, holds the sums, not scaled; all else is as
    // before.
    for (Part& part : parts) {
      for_each_run(unit.unit, part.chunk.slice, [&](const auto& run) {
        const std::size_t first = run.range.begin / sizeof(float);
        for (std::size_t i = 0; i < run.range.bytes / sizeof(float); ++i) {
          const float staged = part.staging()[run.offset / sizeof(float) + i];
          ASSERT_EQ(staged, tensors.sum(run.tensor, first + i));
          for (int r = 0; r < ranks(); ++r) {
            if (r == part.owner) continue;
            ASSERT_EQ(tensors.now(run.tensor, r, first + i),
                      tensors.before(run.tensor, r, first + i));
          }
        }
      });
    }
    for (Part& part : parts) {
      float* const staging = part.staging();
      for (std::size_t i = 0; i < part.chunk.slice.bytes / 4; ++i) {
        staging[i] *= 0.5F;  // what the cross group does
      }
    }
    std::vector<std::size_t> order(parts.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random_);
    for (const std::size_t i : order) {
      EXPECT_TRUE(parts[i].group.all_gather(parts[i].chunk).poll());
    }
    expect_everywhere(tensors,
                      [&](std::size_t t, std::size_t i) { return tensors.sum(t, i) * 0.5F; });
  }
}

TEST_P(MemoryGroupOf, ABroadcastsStagingHoldsTheRootsBytes) {
  const int root = ranks() - 1;
  BoundTensors<std::int32_t> tensors(kElements, ranks(), random_);
  BoundUnit unit = tensors.unit(OperationKind::broadcast, kOneUnit);
  unit.root_local = root;
  const Range whole{0, unit.unit.bytes};
  MemoryGroup group(0, ranks());
  const ChunkPart part{unit, whole, 1, whole, 0};
  EXPECT_TRUE(group.reduce_scatter(part).poll());
  EXPECT_TRUE(tensors.unchanged());
  EXPECT_TRUE(group.all_gather(part).poll());
  expect_everywhere(tensors,
                    [&](std::size_t t, std::size_t i) { return tensors.before(t, root, i); });
}

// What crosses of one tensor without padding needs no memory beside it.
TEST_P(MemoryGroupOf, ASliceOfOneTensorIsSummedWhereItLies) {
  for (const double prescale : {1.0, 0.5}) {
    BoundTensors<float> tensors({512}, ranks(), random_);
    BoundUnit unit = tensors.unit(OperationKind::allreduce, kOneUnit);
    unit.unit.prescale = prescale;
    const Range whole{0, unit.unit.bytes};
    for (const int rank : shuffled()) {
      MemoryGroup group(rank, ranks());
      const Range slice = slice_range(whole, rank, ranks());
      const ChunkPart part{unit, whole, ranks(), slice, 0};
      EXPECT_TRUE(group.reduce_scatter(part).poll());
      EXPECT_EQ(group.staging(part), unit.tensor(0, rank) + slice.begin);
    }
    for (const int rank : shuffled()) {
      MemoryGroup group(rank, ranks());
      const ChunkPart part{unit, whole, ranks(), slice_range(whole, rank, ranks()), 0};
      EXPECT_TRUE(group.all_gather(part).poll());
    }
    for (int r = 0; r < ranks(); ++r) {
      for (std::size_t i = 0; i < 512; ++i) {
        ASSERT_EQ(tensors.now(0, r, i), tensors.sum(0, i) * static_cast<float>(prescale));
      }
    }
    EXPECT_TRUE(tensors.guards_intact());
  }
}

TEST_P(MemoryGroupOf, ASliceWithPaddingOrOfATensorThatTheRankLacksIsStaged) {
  BoundTensors<float> tensors({500}, ranks(), random_);
  BoundUnit unit = tensors.unit(OperationKind::allreduce, kOneUnit);
  MemoryGroup group(0, ranks());
  const Range whole{0, unit.unit.bytes};
  ASSERT_GT(whole.bytes, 2000U);
  EXPECT_NE(group.staging({unit, whole, 1, whole, 0}), unit.tensor(0, 0));
  const Range first{0, 64};
  EXPECT_EQ(group.staging({unit, whole, 1, first, 0}), unit.tensor(0, 0));
  unit.memory[0] = nullptr;
  EXPECT_NE(group.staging({unit, whole, 1, first, 0}), nullptr);
}

TEST_P(MemoryGroupOf, ABroadcastOfOneTensorCrossesFromAndToTheTensor) {
  const int root = ranks() - 1;
  const std::vector<std::int64_t> elements = {512};
  for (const bool has_input : {true, false}) {
    BoundTensors<std::int32_t> tensors(elements, ranks(), random_);
    BoundUnit unit = tensors.unit(OperationKind::broadcast, kOneUnit);
    unit.root_local = has_input ? root : -1;
    const Range whole{0, unit.unit.bytes};
    for (int rank = 0; rank < ranks(); ++rank) {
      MemoryGroup group(rank, ranks());
      const Range slice = slice_range(whole, rank, ranks());
      const ChunkPart part{unit, whole, ranks(), slice, 0, has_input};
      EXPECT_TRUE(group.reduce_scatter(part).poll());
      std::byte* const staging = group.staging(part);
      const int owner = has_input ? root : rank;
      EXPECT_EQ(staging, unit.tensor(0, owner) + slice.begin);
      if (!has_input) std::memset(staging, 7, slice.bytes);  // what the cross group does
      EXPECT_TRUE(group.all_gather(part).poll());
    }
    EXPECT_TRUE(tensors.guards_intact());
    for (int r = 0; r < ranks(); ++r) {
      for (std::size_t i = 0; i < 512; ++i) {
        ASSERT_EQ(tensors.now(0, r, i), has_input ? tensors.before(0, root, i) : 0x07070707);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, MemoryGroupOf, testing::Values(1, 2, 3, 5),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace hora::internal
