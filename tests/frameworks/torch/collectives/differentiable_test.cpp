// Gradients of collectives: what collectives.h says, on the world and in process sets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch/collectives.h>
#include <torch/autograd.h>

#include <vector>

#include "tests/frameworks/torch/process_sets.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;

torch::Tensor leaf(torch::IntArrayRef shape, double value = 1.0) {
  return torch::full(shape, value, torch::kDouble).requires_grad_();
}

/// `size` rows per rank of the set that hold the rank's place + 1.
torch::Tensor numbered(std::size_t ranks, std::int64_t size) {
  return torch::arange(1.0, 1.0 + static_cast<double>(ranks), torch::kDouble)
      .repeat_interleave(size);
}

double sum_to(double n) {
  return n * (n + 1) / 2;
}

void expect_gradient(const torch::Tensor& tensor, const torch::Tensor& expected) {
  ASSERT_TRUE(tensor.grad().defined());
  EXPECT_TRUE(torch::allclose(tensor.grad(), expected)) << tensor.grad() << expected;
}

// Every test runs on the world and on this rank's half of it.
class Differentiable : public testing::TestWithParam<bool> {
 protected:
  double size() const { return static_cast<double>(ranks()); }
  std::size_t ranks() const { return GetParam() ? set.members.size() : world_size(); }
  std::size_t world_size() const { return static_cast<std::size_t>(world.size()); }
  ProcessSet where() const { return GetParam() ? set.id : kWorld; }
  int own_rank() const { return GetParam() ? set.own_rank : world.rank(); }
  int root() const { return GetParam() ? set.members.back() : world.size() - 1; }

  void TearDown() override { barrier(world); }

  Context world = init();
  ParitySet set{world};
};
INSTANTIATE_TEST_SUITE_P(Where, Differentiable, testing::Bool(), [](const auto& where) {
  return std::string(where.param ? "Set" : "World");
});

TEST_P(Differentiable, AllreduceSumAndAverage) {
  for (const auto op : {ReduceOp::sum, ReduceOp::average}) {
    const auto x = leaf({3, 2});
    const auto y = allreduce(
        world, x, {.name = "x", .op = op, .process_set = where(), .prescale = 2.0, .postscale = 3});
    EXPECT_TRUE(y.requires_grad());
    (y * (1.0 + own_rank())).sum().backward();
    const double factor = 6.0 * sum_to(size()) / (op == ReduceOp::sum ? 1.0 : size());
    expect_gradient(x, torch::full({3, 2}, factor, torch::kDouble));
  }
}

TEST_P(Differentiable, AllgatherOfUnevenRowsAndOfScalars) {
  const auto x = leaf({own_rank() + 1, 2});
  const auto y = allgather(world, x, {.process_set = where()});
  // Row by row another weight; each rank's loss times its place + 1.
  const auto weights = torch::arange(y.size(0), torch::kDouble).unsqueeze(1);
  (y * weights * (1.0 + own_rank())).sum().backward();
  const auto first = static_cast<std::int64_t>(sum_to(own_rank()));
  const auto expected = weights.narrow(0, first, own_rank() + 1) * (sum_to(size()) / size());
  expect_gradient(x, expected.expand({own_rank() + 1, 2}));

  const auto scalar = leaf({});
  const auto mean = allgather(world, scalar, {.process_set = where()}).mean();
  mean.backward();
  expect_gradient(scalar, torch::tensor(1.0 / size(), torch::kDouble));
}

TEST_P(Differentiable, AlltoallSendsGradientsBack) {
  // i + 1 rows to place i; what place i gets counts i + 1 times.
  std::vector<std::int64_t> splits;
  for (std::size_t i = 0; i < ranks(); ++i) splits.push_back(static_cast<std::int64_t>(i) + 1);
  const auto rows = static_cast<std::int64_t>(sum_to(size()));
  const auto x = leaf({rows, 2});
  const AlltoallResult y =
      alltoall(world, x, {.name = "x", .splits = splits, .process_set = where()});
  (y.tensor * (1.0 + own_rank())).sum().backward();
  const auto to = torch::arange(1, 1 + static_cast<std::int64_t>(ranks()))
                      .repeat_interleave(torch::tensor(splits));
  expect_gradient(x, to.to(torch::kDouble).unsqueeze(1).expand({rows, 2}));
}

TEST_P(Differentiable, ReduceScatterGathers) {
  for (const auto op : {ReduceOp::sum, ReduceOp::average}) {
    const auto x = leaf({2 * static_cast<std::int64_t>(ranks())});
    const auto y = reduce_scatter(world, x, {.op = op, .process_set = where(), .prescale = 0.5});
    (y * (1.0 + own_rank())).sum().backward();
    const double factor = 0.5 * (op == ReduceOp::sum ? size() : 1.0);
    expect_gradient(x, numbered(ranks(), 2) * factor);
  }
}

TEST_P(Differentiable, BroadcastSumsAtTheRootAndGroups) {
  const auto rows = static_cast<std::int64_t>(2 * ranks());
  const auto fresh = [&] { return std::vector<torch::Tensor>{leaf({rows}), leaf({rows})}; };
  const auto go_back = [&](const std::vector<torch::Tensor>& results) {
    ((results[0].sum() + 10 * results[1].sum()) * (1.0 + own_rank())).backward();
  };
  const auto expect_both = [&](const std::vector<torch::Tensor>& x, const torch::Tensor& expected) {
    expect_gradient(x[0], expected);
    expect_gradient(x[1], 10 * expected);
  };
  const auto all = [&](double value) { return torch::full({rows}, value, torch::kDouble); };

  auto x = fresh();
  go_back(grouped_allreduce(world, x, {.name = "x", .process_set = where()}));
  expect_both(x, all(sum_to(size()) / size()));

  const BroadcastOptions options{.root = root(), .process_set = where()};
  for (const bool grouped : {false, true}) {
    x = fresh();
    go_back(grouped ? grouped_broadcast(world, x, options)
                    : Tensors{broadcast(world, x[0], options), broadcast(world, x[1], options)});
    expect_both(x, all(world.rank() == root() ? sum_to(size()) : 0.0));
  }

  x = fresh();
  go_back(grouped_allgather(world, x, {.name = "x", .process_set = where()}));
  expect_both(x, all(sum_to(size()) / size()));

  // Each rank's two rows for a rank come back from it, multiplied by what it did with them.
  x = fresh();
  const auto exchanged = grouped_alltoall(world, x, {.name = "x", .process_set = where()});
  go_back({exchanged[0].tensor, exchanged[1].tensor});
  expect_both(x, numbered(ranks(), 2));

  x = fresh();
  go_back(grouped_reduce_scatter(world, x, {.op = ReduceOp::sum, .process_set = where()}));
  expect_both(x, numbered(ranks(), 2) * size());
}

TEST_P(Differentiable, ANameIsFreeAgainForEachUseInOneGraph) {
  const auto x = leaf({3});
  const AllreduceOptions options{.name = "layer", .op = ReduceOp::sum, .process_set = where()};
  allreduce(world, allreduce(world, x, options), options).sum().backward();
  expect_gradient(x, torch::full({3}, size() * size(), torch::kDouble));
}

TEST(DifferentiableRules, NothingIsRecordedWithoutNeed) {
  const Context world = init();
  EXPECT_FALSE(allreduce(world, torch::ones({2})).requires_grad());
  const auto x = leaf({2});
  {
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(allreduce(world, x).requires_grad());
    EXPECT_FALSE(grouped_allgather(world, {x, x})[1].requires_grad());
  }
  EXPECT_FALSE(allreduce_async(world, x).wait().requires_grad());
  EXPECT_TRUE(grouped_allgather(world, {torch::ones({2}, torch::kDouble), x})[1].requires_grad());
}

TEST(DifferentiableRules, AResultThatNoLossUsesCountsAsZeros) {
  const Context world = init();
  const std::vector<torch::Tensor> x{leaf({2}), leaf({2})};
  grouped_allreduce(world, x, {.op = ReduceOp::sum})[0].sum().backward();
  expect_gradient(x[0], torch::full({2}, 1.0 * world.size(), torch::kDouble));
  expect_gradient(x[1], torch::zeros({2}, torch::kDouble));
}

TEST(DifferentiableRules, BackwardCanBeDifferentiatedAgain) {
  const Context world = init();
  const auto x = leaf({1}, 3.0);
  // On each of n ranks y = (n x)^2 where all x are equal.
  const auto y = allreduce(world, x, {.op = ReduceOp::sum}).square().sum();
  const auto dx =
      torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
  EXPECT_TRUE(dx.requires_grad());
  const double n = world.size();
  EXPECT_DOUBLE_EQ(dx.item<double>(), 2 * n * 3.0 * n);
  dx.sum().backward();
  expect_gradient(x, torch::full({1}, 2 * n * n, torch::kDouble));
}

TEST(DifferentiableRules, OtherReductionsHaveNoGradient) {
  const Context world = init();
  const auto x = leaf({2});
  const auto y = allreduce(world, x, {.name = "x", .op = ReduceOp::max});
  expect_error(ErrorCode::invalid_argument, HasSubstr("max has no gradient"),
               [&] { y.sum().backward(); });
}

}  // namespace
}  // namespace hora::internal::test
