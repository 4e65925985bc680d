// Exchanges in the pipeline over groups whose work completes after random numbers of polls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <deque>
#include <numeric>

#include "ops/hierarchy/pipeline.h"
#include "tests/ops/hierarchy/fake_groups.h"
#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using test::kMostAdvances;
using test::OneRank;
using test::unit_of;

TEST(Pipeline, RefusesAnExchangeOfTensorsOnADevice) {
  auto random = test::generator();
  OneRank rank({}, random, 0);
  BoundUnit unit = unit_of(0, 64, OperationKind::alltoall);
  unit.unit.device = DeviceKind::cuda;
  unit.work = {nullptr};
  test::expect_error(ErrorCode::invalid_argument,
                     testing::HasSubstr("alltoall of a tensor on cuda"),
                     [&] { rank.pipeline.start(std::move(unit)); });
  EXPECT_FALSE(rank.pipeline.polls());
}

struct HeapResult final : ExchangeResult {
  std::byte* allocate(std::span<const std::int64_t>, std::size_t bytes) override {
    memory.resize(bytes);
    return memory.data();
  }
  std::vector<std::byte> memory;
};

/// A rank among two nodes of one rank each, of whose exchanges every round comes to 64 bytes.
BoundUnit reduce_scatter_of(std::vector<double>& values, const std::vector<std::int64_t>& rows,
                            std::shared_ptr<HeapResult> result) {
  BoundUnit unit = unit_of(0, 64, OperationKind::reduce_scatter);
  unit.unit.tensors = {{0, {0, values.size() * sizeof(double)}}};
  unit.memory = {reinterpret_cast<std::byte*>(values.data())};
  unit.exchange = {sizeof(double), {rows}, std::move(result)};
  return unit;
}

// Its cross operations follow the earlier chunks', and later chunks' follow them, without a gap.
TEST(Pipeline, AnExchangeHasThePipelineToItself) {
  auto random = test::generator();
  for (int round = 0; round < 100; ++round) {
    PipelineOptions options{.node = 0, .nodes = 2, .local_rank = 0, .slices = 1};
    options.topology.ranks_of_node = {{0}, {1}};
    options.chunk_bytes = 64;
    OneRank rank(options, random, random() % 6);
    std::vector<double> values(64, 1.0);
    const std::vector<std::int64_t> rows = {64};
    std::deque<BoundUnit> units;
    units.push_back(unit_of(64 * 5, 64));
    units.push_back(reduce_scatter_of(values, rows, std::make_shared<HeapResult>()));
    units.push_back(reduce_scatter_of(values, rows, std::make_shared<HeapResult>()));
    units.push_back(unit_of(64 * 3, 64));
    std::size_t advances = 0;
    while (rank.pipeline.completed() < 4) {
      if (!units.empty() && random() % 3 == 0) {
        rank.pipeline.start(std::move(units.front()));
        units.pop_front();
      }
      rank.pipeline.advance();
      if (!rank.trace.exchanging.empty()) {
        EXPECT_TRUE(rank.trace.crossing.empty());
        EXPECT_EQ(rank.trace.scattered.size(), 5u) << "later chunks wait";
        EXPECT_EQ(rank.trace.gathers_complete, 5u) << "earlier chunks are complete";
      }
      ASSERT_LT(++advances, kMostAdvances) << "no end";
    }
    // 32 rows of 8 bytes to each node are four rounds.
    std::vector<std::uint64_t> expected(5 + 4 + 4 + 3);
    std::iota(expected.begin(), expected.end(), std::uint64_t{0});
    EXPECT_EQ(rank.trace.sequences, expected);
    EXPECT_FALSE(rank.pipeline.polls());
  }
}

}  // namespace
}  // namespace hora::internal
