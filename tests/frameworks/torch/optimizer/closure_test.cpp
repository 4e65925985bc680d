// step(closure): optimizers that compute the loss themselves, LBFGS again and again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;
using torch::optim::LBFGS;
using torch::optim::LBFGSOptions;

MakeOptimizer make_lbfgs(bool searches) {
  return [=](std::vector<torch::Tensor> parameters) {
    LBFGSOptions options(searches ? 1.0 : 0.05);
    options.max_iter(4).history_size(3);
    if (searches) options.line_search_fn("strong_wolfe");
    return std::make_unique<LBFGS>(std::move(parameters), options);
  };
}

torch::Tensor closure_step(Training& training, const Batch& batch, int passes = 1) {
  return training.optimizer.step([&] {
    training.optimizer.zero_grad();
    torch::Tensor sum = torch::zeros({}, torch::kDouble);
    for (int pass = 0; pass < passes; ++pass) {
      const auto loss =
          loss_of(training.network, part_of(batch, pass, batch.labels.size(0) / passes)) / passes;
      loss.backward();
      sum += loss.detach();
    }
    return sum;
  });
}

// One process and LibTorch alone, with all ranks' images.
torch::Tensor whole_step(const Context& world, torch::nn::Sequential& network,
                         torch::optim::Optimizer& optimizer) {
  std::vector<torch::Tensor> images;
  std::vector<torch::Tensor> labels;
  for (int rank = 0; rank < world.size(); ++rank) {
    const Batch batch = batch_of(world, rank, 0, 2, torch::kDouble);
    images.push_back(batch.images);
    labels.push_back(batch.labels);
  }
  const Batch all{torch::cat(images), torch::cat(labels)};
  return optimizer.step([&] {
    network->zero_grad();
    const auto loss = loss_of(network, all);
    loss.backward();
    return loss;
  });
}

class Lbfgs : public testing::TestWithParam<bool> {
 protected:
  void expect_plain(const DistributedOptimizerOptions& options, int passes = 1) {
    Training training(world_, options, make_lbfgs(GetParam()), torch::kDouble);
    auto network = small_network(seed(), torch::kDouble);
    const auto plain = make_lbfgs(GetParam())(network->parameters());
    // The same images in every step: on others, line searches overshoot, and a difference in the
    // last bit can then decide where one ends.
    const Batch batch = my_batch(world_, 0, 2, torch::kDouble);
    for (int step = 0; step < 3; ++step) {
      const auto loss = closure_step(training, batch, passes);
      const auto expected = whole_step(world_, network, *plain);
      EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-7);
      expect_close(training.network->parameters(), network->parameters(), 1e-6);
      for (const auto& parameter : training.network->parameters()) {
        EXPECT_TRUE(equals_root(world_, parameter));
      }
    }
    EXPECT_EQ(training.optimizer.statistics().steps, 3u);
  }

  const Context world_ = init();
};

TEST_P(Lbfgs, EqualsOneProcessWithAllImages) {
  expect_plain({});
}

TEST_P(Lbfgs, SeveralBackwardPassesInAClosure) {
  expect_plain({.bucket_bytes = 512, .backward_passes_per_step = 2}, 2);
}

// Each rank's own losses would end its line search at another place.
TEST_P(Lbfgs, RanksOfDifferentLossesStayAlike) {
  const auto weight = torch::full({3}, 2.0, torch::dtype(torch::kDouble).requires_grad(true));
  const auto of_rank_0 = torch::full({}, 2.0, torch::dtype(torch::kDouble).requires_grad(true));
  const auto wrapped = make_lbfgs(GetParam())({weight, of_rank_0});
  DistributedOptimizer optimizer(world_, *wrapped, {{"weight", weight}, {"of_rank_0", of_rank_0}});
  int evaluations = 0;
  for (int step = 0; step < 3; ++step) {
    optimizer.step([&] {
      evaluations += 1;
      wrapped->zero_grad();  // LibTorch's own
      auto loss = (weight - world_.rank()).pow(4).sum() * 100.0 * world_.rank();
      if (world_.rank() == 0) loss = loss + of_rank_0.pow(2);
      loss.backward();
      return loss;
    });
  }
  torch::Tensor calls = torch::tensor({evaluations});
  EXPECT_TRUE(equals_root(world_, calls));
  EXPECT_TRUE(equals_root(world_, weight));
  EXPECT_TRUE(equals_root(world_, of_rank_0));
  EXPECT_LT(std::abs(of_rank_0.item<double>()), 2.0);
}

INSTANTIATE_TEST_SUITE_P(LineSearch, Lbfgs, testing::Bool(),
                         [](const auto& of) { return of.param ? "strong_wolfe" : "none"; });

class Closure : public testing::Test {
 protected:
  const Context world_ = init();
  const torch::Tensor weight_ = torch::ones({3}, torch::requires_grad());
  torch::optim::SGD sgd_{{weight_}, 0.5};

  // Its gradient is 1 / 3 for each element, and rank + 1 times that.
  torch::Tensor loss(DistributedOptimizer& optimizer) const {
    optimizer.zero_grad();
    auto mean = weight_.mean() * (world_.rank() + 1);
    mean.backward();
    return mean;
  }
};

TEST_F(Closure, GivesTheStepOfEveryOptimizer) {
  for (const Sharding sharding : {Sharding::off, Sharding::state}) {
    for (const auto& make : {make_sgd, make_adam}) {
      Training by_closure(world_, {.sharding = sharding}, make, torch::kDouble);
      Training plain(world_, {.sharding = sharding}, make, torch::kDouble);
      for (int step = 0; step < 3; ++step) {
        const Batch batch = my_batch(world_, step, 2, torch::kDouble);
        closure_step(by_closure, batch);
        plain.step(batch);
        expect_same_bits(by_closure.network->parameters(), plain.network->parameters());
      }
    }
  }
}

TEST_F(Closure, ReturnsTheAverageOrTheSumOfLosses) {
  const double average = mean_over_ranks(world_, [](int rank) { return rank + 1.0; });
  const auto first_step = [&](const DistributedOptimizerOptions& options) {
    weight_.detach().fill_(1.0);
    DistributedOptimizer optimizer(world_, sgd_, {{"weight", weight_}}, options);
    return optimizer.step([&] { return loss(optimizer); });
  };
  const auto mean = first_step({});
  EXPECT_EQ(mean.scalar_type(), torch::kFloat);
  EXPECT_EQ(mean.dim(), 0);
  EXPECT_FLOAT_EQ(mean.item<float>(), static_cast<float>(average));
  EXPECT_FLOAT_EQ(weight_[0].item<float>(), static_cast<float>(1.0 - 0.5 * average / 3));
  const auto sum = first_step({.op = ReduceOp::sum});
  EXPECT_FLOAT_EQ(sum.item<float>(), static_cast<float>(average * world_.size()));
}

TEST_F(Closure, AnEmptyOneIsNone) {
  DistributedOptimizer optimizer(world_, sgd_, {{"weight", weight_}});
  loss(optimizer);
  EXPECT_FALSE(optimizer.step(nullptr).defined());
  EXPECT_LT(weight_[0].item<double>(), 1.0);
}

TEST_F(Closure, MustReturnTheLoss) {
  DistributedOptimizer optimizer(world_, sgd_, {{"weight", weight_}});
  for (const torch::Tensor& wrong :
       {torch::Tensor(), torch::ones({2}), torch::ones({}, torch::kLong)}) {
    expect_error(ErrorCode::invalid_argument, HasSubstr("must return its loss"), [&] {
      optimizer.step([&] {
        loss(optimizer);
        return wrong;
      });
    });
    optimizer.zero_grad();
  }
  optimizer.step([&] { return loss(optimizer); });
}

TEST_F(Closure, WhatCannotBeRightIsRefused) {
  LBFGS lbfgs({weight_});
  const auto refused = [&](const DistributedOptimizerOptions& options, const std::string& text) {
    expect_error(ErrorCode::invalid_argument, HasSubstr("LBFGS and " + text), [&] {
      DistributedOptimizer(world_, lbfgs, {{"weight", weight_}}, options);
    });
  };
  refused({.sharding = Sharding::state}, "sharding");
  refused({.op = ReduceOp::adasum}, "adasum");
  refused({.hook = std::make_shared<TopK>()}, "hook");

  {
    DistributedOptimizer searching(world_, lbfgs, {{"weight", weight_}});
    expect_error(ErrorCode::invalid_argument, HasSubstr("GradScaler and LBFGS"),
                 [&] { GradScaler scaler(searching); });
    expect_error(ErrorCode::invalid_use, HasSubstr("step(closure)"), [&] { searching.step(); });
  }

  DistributedOptimizer plain(world_, sgd_, {{"weight", weight_}});
  const auto step = [&] { plain.step([&] { return loss(plain); }); };
  {
    const auto guard = plain.skip_synchronize();
    expect_error(ErrorCode::invalid_use, HasSubstr("skip_synchronize()"), step);
  }
  {
    GradScaler scaler(plain);
    expect_error(ErrorCode::invalid_use, HasSubstr("GradScaler"), step);
  }
  step();
}

}  // namespace
}  // namespace hora::internal::test
