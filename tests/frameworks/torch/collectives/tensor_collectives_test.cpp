#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/frameworks/torch/averaging_model.h"
#include "tests/frameworks/torch/network.h"
#include "tests/frameworks/torch/process_sets.h"
#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

double sum_of_ranks(const Context& world) {
  return world.size() * (world.size() + 1) / 2.0;
}

TEST(TensorCollectives, StridesAndEmptinessAreNoObstacle) {
  const Context world = init();
  auto base = torch::zeros({4, 6});
  auto every_second = base.slice(1, 0, 6, 2);
  every_second.fill_(1 + world.rank());
  allreduce_(world, every_second, {.op = ReduceOp::sum});
  EXPECT_TRUE(torch::equal(every_second, torch::full({4, 3}, sum_of_ranks(world))));
  EXPECT_TRUE(torch::equal(base.slice(1, 1, 6, 2), torch::zeros({4, 3})));
  auto transposed = torch::full({2, 3}, 1.0 + world.rank()).t();
  broadcast_(world, transposed, {.root = world.size() - 1});
  EXPECT_TRUE(torch::equal(transposed, torch::full({3, 2}, 1.0 * world.size())));
  auto empty = torch::zeros({0, 3});
  allreduce_(world, empty);
  auto scalar = torch::tensor(1.0 + world.rank());
  EXPECT_DOUBLE_EQ(allreduce(world, scalar, {.op = ReduceOp::sum}).item<double>(),
                   sum_of_ranks(world));
}

TEST(TensorCollectives, ResultsOfAllreduceAndBroadcastHaveTheirMemoryFormat) {
  const Context world = init();
  const auto row_major = torch::arange(24, torch::kFloat).view({2, 3, 2, 2});
  const auto own = row_major.contiguous(torch::MemoryFormat::ChannelsLast);
  for (const auto& result :
       {allreduce(world, own), allreduce(world, own, {}, Compression::float16),
        grouped_allreduce(world, {own, own})[1], allreduce_async(world, own).wait(),
        broadcast(world, own), broadcast_async(world, own, {.root = world.size() - 1}).wait()}) {
    EXPECT_EQ(result.strides(), own.strides());
    EXPECT_TRUE(torch::equal(result, own));
  }
  // Values meet by their indices, in whatever order each rank has them in memory.
  const auto mixed = world.rank() % 2 == 0 ? own : row_major;
  const auto average = allreduce(world, mixed + world.rank());
  EXPECT_EQ(average.strides(), mixed.strides());
  EXPECT_TRUE(torch::allclose(average, own + (world.size() - 1) / 2.0));
}

TEST(TensorCollectives, AutogradSeesThatAValueWasOverwritten) {
  const Context world = init();
  const auto leaf = torch::ones({3}, torch::requires_grad());
  auto used = leaf * 2;
  const auto loss = (used * used).sum();
  allreduce_(world, used, {.op = ReduceOp::sum});
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(TensorCollectives, WhatCannotTravelIsRefusedByName) {
  const Context world = init();
  const auto refused = [&](torch::Tensor tensor, const std::string& why) {
    expect_error(ErrorCode::invalid_argument, AllOf(HasSubstr("\"own\""), HasSubstr(why)),
                 [&] { allreduce_(world, tensor, {.name = "own"}); });
  };
  refused({}, "undefined");
  refused(torch::zeros({3}).to_sparse(), "sparse");
  refused(torch::zeros({3}, torch::kComplexFloat), "ComplexFloat");
  expect_error(ErrorCode::invalid_argument,
               AllOf(HasSubstr("\"own\""), HasSubstr("compression is 9; expected")), [&] {
                 allreduce(world, torch::zeros({3}), {.name = "own"}, static_cast<Compression>(9));
               });
}

// All that a module can hold: several types (complex numbers travel as bytes), a mask, a tied
// weight, odd strides.
struct OddModule : torch::nn::Module {
  explicit OddModule(double value) {
    const auto scalar = torch::tensor(value);
    tied = register_parameter("tied", torch::full({3}, value));
    register_parameter("tied_again", tied);
    strided = register_parameter("strided", torch::full({3, 2}, value).t());
    frozen = register_parameter("frozen", torch::full({2}, value, torch::kHalf), false);
    mask = register_buffer("mask", torch::full({3}, value).gt(1.5));
    count = register_buffer("count", scalar.to(torch::kLong));
    small = register_buffer("small", scalar.to(torch::kShort));
    register_buffer("phase", torch::full({2}, value, torch::kComplexFloat));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    norm->running_mean.fill_(value);
  }
  torch::Tensor tied, strided, frozen, mask, count, small;
  torch::nn::BatchNorm1d norm{nullptr};
};

TEST(BroadcastModule, GivesEveryRankTheRootsParametersAndBuffers) {
  const Context world = init();
  const int root = world.size() - 1;
  OddModule module(1.0 + world.rank());
  const OddModule expected(1.0 + root);
  broadcast_parameters(world, module, root);
  expect_equal(module.parameters(), expected.parameters());
  expect_equal(module.buffers(), expected.buffers());
  EXPECT_TRUE(module.strided.requires_grad());
  EXPECT_FALSE(module.frozen.requires_grad());
  EXPECT_FALSE(module.frozen.grad().defined());
  module.norm->running_mean.fill_(1.0 + world.rank());
  broadcast_buffers(world, module);
  EXPECT_EQ(module.norm->running_mean[0].item<double>(), 1.0);
}

class CompressedAllreduce : public testing::TestWithParam<Compression> {
 protected:
  torch::ScalarType wire() const {
    return GetParam() == Compression::float16 ? torch::kHalf : torch::kBFloat16;
  }
  /// Any rank's, known to all. What a float32 holds: LibTorch rounds float64 by way of it.
  static torch::Tensor values_of(int rank, torch::ScalarType type) {
    torch::manual_seed(seed() + static_cast<std::uint64_t>(rank));
    return torch::randn({17, 3}, torch::kFloat).to(type);
  }
  torch::Tensor expected(torch::ScalarType type) const {
    return average_model(world_, [&](int rank) { return values_of(rank, type).to(wire()); })
        .to(type);
  }

  const Context world_ = init();
};

TEST_P(CompressedAllreduce, AveragesAreThoseOfTheWireTypeToTheBit) {
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    const auto own = values_of(world_.rank(), type);
    const auto average = allreduce(world_, own, {.name = "one"}, GetParam());
    EXPECT_EQ(average.scalar_type(), type);
    EXPECT_TRUE(torch::equal(average, expected(type)));
    EXPECT_TRUE(torch::equal(own, values_of(world_.rank(), type)));
    // Transposed memory, too.
    EXPECT_TRUE(torch::equal(allreduce(world_, own.t(), {}, GetParam()), expected(type).t()));
  }
}

TEST_P(CompressedAllreduce, OfAGroupIsThatOfItsMembers) {
  const std::vector<torch::Tensor> own = {values_of(world_.rank(), torch::kFloat),
                                          torch::full({4}, world_.rank(), torch::kLong),
                                          values_of(world_.rank(), torch::kDouble)};
  const auto sums = grouped_allreduce(world_, own, {.op = ReduceOp::sum}, GetParam());
  ASSERT_EQ(sums.size(), own.size());
  for (std::size_t i = 0; i < own.size(); ++i) {
    EXPECT_TRUE(
        torch::equal(sums[i], allreduce(world_, own[i], {.op = ReduceOp::sum}, GetParam())));
  }
  EXPECT_TRUE(torch::equal(own[1], torch::full({4}, world_.rank(), torch::kLong)));
}

TEST_P(CompressedAllreduce, IntegersAndWhatIsAsNarrowTravelAsTheyAre) {
  // Too large for float16 and bfloat16 to tell from its neighbours.
  const auto integer = torch::full({3}, 123457, torch::kInt);
  EXPECT_TRUE(torch::equal(allreduce(world_, integer, {.op = ReduceOp::sum}, GetParam()),
                           integer * world_.size()));
  for (const auto narrow : {torch::kHalf, torch::kBFloat16}) {
    const auto own = values_of(world_.rank(), narrow);
    EXPECT_TRUE(torch::equal(allreduce(world_, own, {}, GetParam()), allreduce(world_, own)));
  }
}

TEST_P(CompressedAllreduce, GradientsGoBack) {
  const auto one = torch::full({5}, 2.0, torch::requires_grad());
  const auto other = torch::full({5}, 3.0, torch::dtype(torch::kDouble).requires_grad(true));
  const AllreduceOptions sum{.name = "sum", .op = ReduceOp::sum};
  (allreduce(world_, one, sum, GetParam()) * 2).sum().backward();
  EXPECT_TRUE(torch::equal(one.grad(), torch::full({5}, 2.0 * world_.size())));
  one.mutable_grad() = torch::Tensor();
  const auto sums = grouped_allreduce(world_, {one, other}, sum, GetParam());
  (sums[0].sum() + (sums[1] * 4).sum()).backward();
  EXPECT_TRUE(torch::equal(one.grad(), torch::full({5}, 1.0 * world_.size())));
  EXPECT_TRUE(torch::equal(other.grad(), torch::full({5}, 4.0 * world_.size(), torch::kDouble)));
}

INSTANTIATE_TEST_SUITE_P(Types, CompressedAllreduce,
                         testing::Values(Compression::float16, Compression::bfloat16),
                         [](const auto& compression) {
                           return std::string(name_of(compression.param));
                         });

/// `count` elements of small whole numbers at random places, some more than once: [7, 5, 3], the
/// last dimension dense.
torch::Tensor sparse(const Context& world, std::int64_t count,
                     torch::ScalarType type = torch::kFloat) {
  torch::manual_seed(generator(static_cast<std::uint64_t>(world.rank()))());
  const auto indices = torch::stack(
      {torch::randint(7, {count}, torch::kLong), torch::randint(5, {count}, torch::kLong)});
  return torch::sparse_coo_tensor(indices, torch::randint(-9, 9, {count, 3}).to(type), {7, 5, 3});
}

TEST(SparseAllreduce, EqualsTheDenseOne) {
  const Context world = init();
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kLong}) {
    for (const int count : {4 * world.rank(), 0}) {  // rank 0 has none; no rank has one
      const auto own = sparse(world, count, type);
      const auto result = sparse_allreduce(world, own, {.op = ReduceOp::sum});
      EXPECT_TRUE(result.is_coalesced());
      EXPECT_TRUE(
          torch::equal(result.to_dense(), allreduce(world, own.to_dense(), {.op = ReduceOp::sum})));
    }
  }
}

TEST(SparseAllreduce, AveragesAndScalesInAProcessSet) {
  const Context world = init();
  const ParitySet set(world);
  const AllreduceOptions options{
      .name = "rows", .process_set = set.id, .prescale = 2.0, .postscale = 0.25};
  const auto own = sparse(world, 11);
  auto handle = sparse_allreduce_async(world, own, options);
  const auto dense = allreduce(world, own.to_dense(), options);
  EXPECT_TRUE(torch::allclose(handle.wait().to_dense(), dense));
  barrier(world);
}

TEST(SparseAllreduce, RefusesWhatItCannotAdd) {
  const Context world = init();
  const auto refused = [&](const torch::Tensor& tensor, ReduceOp op, const std::string& why) {
    expect_error(ErrorCode::invalid_argument, AllOf(HasSubstr("\"own\""), HasSubstr(why)),
                 [&] { sparse_allreduce(world, tensor, {.name = "own", .op = op}); });
  };
  refused(torch::zeros({3}), ReduceOp::sum, "not sparse");
  refused({}, ReduceOp::sum, "undefined");
  refused(sparse(world, 2), ReduceOp::max, "by max");
  refused(sparse(world, 2, torch::kLong), ReduceOp::average, "Long");
}

TEST(SparseAllreduce, TheSameErrorOnEveryRankWhereSizesDiffer) {
  const Context world = init();
  if (world.size() == 1) GTEST_SKIP() << "one rank cannot disagree with itself";
  const std::int64_t rows = world.rank() == 1 ? 8 : 7;
  const auto own =
      torch::sparse_coo_tensor(torch::zeros({1, 1}, torch::kLong), torch::ones({1}), {rows});
  expect_error(ErrorCode::mismatch, AllOf(HasSubstr("rank 0 has [7]"), HasSubstr("rank 1 has [8]")),
               [&] { sparse_allreduce(world, own, {.name = "own"}); });
}

}  // namespace
}  // namespace hora::internal::test
