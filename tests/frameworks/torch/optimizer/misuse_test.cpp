// Errors of DistributedOptimizer: each says what is wrong and where, and no rank hangs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "tests/frameworks/torch/network.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

torch::Tensor weight(std::int64_t size = 3) {
  return torch::zeros({size}, torch::requires_grad());
}

TEST(Misuse, ParameterWithoutName) {
  const Context world = init();
  const auto a = weight();
  const auto b = weight();
  torch::optim::SGD sgd({a, b}, 0.1);
  expect_error(ErrorCode::invalid_argument, AllOf(HasSubstr("parameter 1"), HasSubstr("group 0")),
               [&] {
                 DistributedOptimizer(world, sgd, {{"a", a}});
               });
}

TEST(Misuse, TypesThatHaveNoGradients) {
  const Context world = init();
  const auto counts = torch::zeros({3}, torch::kLong);
  torch::optim::SGD sgd({counts}, 0.1);
  expect_error(ErrorCode::invalid_argument, AllOf(HasSubstr("'counts'"), HasSubstr("Long")), [&] {
    DistributedOptimizer(world, sgd, {{"counts", counts}});
  });
}

TEST(Misuse, SparseGradient) {
  const Context world = init();
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(10, 3).sparse(true));
  torch::optim::SGD sgd(embedding->parameters(), 0.1);
  DistributedOptimizer optimizer(world, sgd, embedding->named_parameters());
  expect_error(ErrorCode::invalid_argument, AllOf(HasSubstr("'weight'"), HasSubstr("sparse")), [&] {
    embedding->forward(torch::tensor({1, 2})).sum().backward();
  });
  embedding->weight.mutable_grad().reset();
}

TEST(Misuse, ParameterGroupAddedAfterConstruction) {
  const Context world = init();
  const auto a = weight();
  torch::optim::SGD sgd({a}, 0.1);
  DistributedOptimizer optimizer(world, sgd, {{"a", a}});
  sgd.add_param_group(torch::optim::OptimizerParamGroup({weight()}));
  expect_error(ErrorCode::invalid_argument, HasSubstr("after construction"),
               [&] { optimizer.step(); });
}

TEST(Misuse, TwoWrappersOfOneOptimizer) {
  const Context world = init();
  const auto a = weight();
  torch::optim::SGD sgd({a}, 1.0);
  for (const Sharding sharding : {Sharding::off, Sharding::state}) {
    DistributedOptimizer optimizer(world, sgd, {{"a", a}}, {.sharding = sharding});
    const auto text = HasSubstr("another DistributedOptimizer");
    expect_error(sharding == Sharding::state ? ErrorCode::invalid_argument : ErrorCode::invalid_use,
                 text, [&] {
                   DistributedOptimizer(world, sgd, {{"a", a}});
                 });
    torch::optim::SGD other({a}, 1.0);
    expect_error(ErrorCode::invalid_use, AllOf(HasSubstr("'a'"), text), [&] {
      DistributedOptimizer(world, other, {{"a", a}});
    });
    (a * (world.rank() + 1)).sum().backward();
    optimizer.step();  // as always
    EXPECT_TRUE(equals_root(world, a));
  }
}

TEST(Misuse, TheWrappedOptimizerSteppedInPlaceOfThisOne) {
  const Context world = init();
  const auto a = weight();
  torch::optim::SGD sgd({a}, 1.0);
  DistributedOptimizer optimizer(world, sgd, {{"a", a}});
  a.sum().backward();
  optimizer.synchronize();
  sgd.step();  // with averages
  optimizer.zero_grad();
  a.sum().backward();
  optimizer.zero_grad();  // without a step
  (a * (world.rank() + 1)).sum().backward();
  sgd.step();
  expect_error(ErrorCode::invalid_use,
               AllOf(HasSubstr("wrapped optimizer's own step()"),
                     HasSubstr("Call DistributedOptimizer's in its place")),
               [&] { optimizer.zero_grad(); });
}

TEST(Misuse, TheWrappedOptimizerSteppedFromTheFirstStepOn) {
  const Context world = init();
  const auto a = weight();
  torch::optim::SGD sgd({a}, 1.0);
  DistributedOptimizer optimizer(world, sgd, {{"a", a}});
  const auto backward = [&] {
    optimizer.zero_grad();
    (a * (world.rank() + 1)).sum().backward();
  };
  backward();
  {
    const torch::NoGradGuard no_grad;
    a.sub_(world.rank() + 1);  // as sgd.step(), before the gradient is averaged
  }
  expect_error(ErrorCode::invalid_use, HasSubstr("Call DistributedOptimizer's in its place"),
               [&] { optimizer.zero_grad(); });
  {
    const torch::NoGradGuard no_grad;
    a.zero_();
  }
  backward();
  optimizer.step();
  EXPECT_TRUE(equals_root(world, a));
}

TEST(Misuse, OneThatWasMovedFrom) {
  const Context world = init();
  const auto a = weight();
  torch::optim::SGD sgd({a}, 1.0);
  DistributedOptimizer optimizer(world, sgd, {{"a", a}});
  DistributedOptimizer other = std::move(optimizer);
  for (const auto& use : std::vector<std::function<void(DistributedOptimizer&)>>{
           [](auto& of) { of.zero_grad(); }, [](auto& of) { of.synchronize(); },
           [](auto& of) { of.step(); }, [](auto& of) { of.step([] { return torch::Tensor(); }); },
           [](auto& of) { auto guard = of.no_sync(); },
           [](auto& of) { auto guard = of.skip_synchronize(); },
           [](auto& of) { of.set_backward_passes_per_step(1); },
           [](auto& of) { of.clip_grad_norm_(1.0); }, [](auto& of) { of.complete_parameters(); },
           [](auto& of) { of.join(); }, [](auto& of) { of.wrapped(); },
           [](auto& of) { of.statistics(); }, [](auto& of) { of.reset_statistics(); }}) {
    // NOLINTNEXTLINE(bugprone-use-after-move)
    expect_error(ErrorCode::invalid_use, HasSubstr("moved from"), [&] { use(optimizer); });
  }
  optimizer = std::move(other);
  (a * (world.rank() + 1)).sum().backward();
  optimizer.step();
  EXPECT_TRUE(equals_root(world, a));
}

TEST(Misuse, TheWrappedOptimizerStepsSharesAlone) {
  const Context world = init();
  const auto a = weight(1000);
  torch::optim::SGD sgd({a}, 1.0);
  DistributedOptimizer optimizer(world, sgd, {{"a", a}}, {.sharding = Sharding::state});
  a.sum().backward();
  optimizer.step();
  optimizer.zero_grad();
  a.sum().backward();
  optimizer.synchronize();
  sgd.step();
  expect_error(ErrorCode::invalid_use, HasSubstr("wrapped optimizer's own step()"),
               [&] { optimizer.zero_grad(); });
}

}  // namespace
}  // namespace hora::internal::test
