// Collectives take vectors, spans, scalars, constant inputs, and the bits of half types; and
// a context without an engine's thread.
#include <numeric>
#include <span>

#include "tests/conformance/conformance.h"

namespace hora::internal::test {
namespace {

using Views = Conformance;

TEST_F(Views, InputsMayBeConstant) {
  const std::int32_t one = rank();
  const std::vector<std::int32_t> own(static_cast<std::size_t>(size()), one);
  std::vector<std::int32_t> expected(own.size());
  std::iota(expected.begin(), expected.end(), 0);
  for (const Result& result : {allgather(world(), view(one), {.name = "one"}),
                               alltoall(world(), view(own), {.name = "all"})}) {
    EXPECT_EQ(elements_of<std::int32_t>(result), expected);
  }
}

TEST_F(Views, VectorsAndSpansAreAllTheirElements) {
  std::vector<double> values(17, 1.0);
  allreduce(world(), view(values), {.name = "vector", .op = ReduceOp::sum});
  EXPECT_EQ(values, std::vector<double>(17, size()));
  broadcast(world(), view(std::span(values).first(5)), {.name = "span"});
  values.assign(17, 1.0);
  allreduce(world(), view(std::span(values).subspan(16)), {.name = "last", .op = ReduceOp::sum});
  EXPECT_EQ(values.front(), 1.0);
  EXPECT_EQ(values.back(), size());
}

TEST_F(Views, BitsOfHalvesAreSummedAsHalves) {
  constexpr std::uint16_t kHalfOfOne = 0x3C00;        // sign 0, exponent 15, fraction 0
  constexpr std::uint16_t kBrainFloatOfOne = 0x3F80;  // upper half of 0x3F800000
  std::vector<hora::Float16> halves(17, hora::Float16{kHalfOfOne});
  std::vector<hora::BFloat16> brain(17, hora::BFloat16{kBrainFloatOfOne});
  allreduce(world(), view(halves), {.name = "half", .op = ReduceOp::average});
  allreduce(world(), view(brain), {.name = "brain", .op = ReduceOp::average});
  EXPECT_EQ(halves, std::vector<hora::Float16>(17, hora::Float16{kHalfOfOne}));
  EXPECT_EQ(brain, std::vector<hora::BFloat16>(17, hora::BFloat16{kBrainFloatOfOne}));
  const Result all = allgather(world(), view(halves), {.name = "all"});
  EXPECT_EQ(all.values<hora::Float16>().back(), hora::Float16{kHalfOfOne});
}

// Handles make progress.
TEST(HandlesWithoutAnEngineThread, WaitForMakesProgress) {
  using namespace std::chrono_literals;
  const Context world = init({.engine_thread = false});
  std::int32_t sum = 1;
  Handle handle = allreduce_async(world, view(sum), {.name = "x", .op = ReduceOp::sum});
  while (!handle.wait_for(0s)) {
  }
  handle.wait();
  EXPECT_EQ(sum, world.size());
  barrier(world);
}

}  // namespace
}  // namespace hora::internal::test
