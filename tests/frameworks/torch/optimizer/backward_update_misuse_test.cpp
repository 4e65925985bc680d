// Buckets that are updated while backward goes on: what does not go with it is refused, and what
// ends such a step early leaves the ranks alike.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "tests/frameworks/torch/optimizer/wide_training.h"
#include "tests/support/expect_error.h"
#include "tests/support/logged_lines.h"

namespace hora::internal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class BackwardUpdateMisuse : public testing::Test {
 protected:
  bool updates_early() const { return one_node(world_); }
  bool is_odd_one() const { return world_.size() > 1 && world_.rank() + 1 == world_.size(); }

  void expect_alike(torch::nn::Sequential network) {
    for (const auto& parameter : network->parameters()) EXPECT_TRUE(equals_root(world_, parameter));
  }
  // A new optimizer goes on with the network.
  void expect_to_go_on(torch::nn::Sequential network) {
    broadcast_parameters(world_, *network);
    const auto wrapped = make_momentum<optim::SGD>(network->parameters());
    DistributedOptimizer optimizer(world_, *wrapped, network->named_parameters(),
                                   updates_in_backward());
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      network->forward(torch::full({4, 256}, 0.1 * (world_.rank() + step)))
          .pow(2)
          .mean()
          .backward();
      optimizer.step();
    }
    expect_alike(network);
  }

  const Context world_ = init({.settings = with_arena(TensorArenaUse::on)});
};

void refused(const std::string& text, const std::function<void()>& call) {
  expect_error(ErrorCode::invalid_use, AllOf(HasSubstr(text), HasSubstr("sharding in_backward")),
               call);
}

TEST_F(BackwardUpdateMisuse, DecisionsAfterBackwardAreRefused) {
  WideTraining training = training_of(world_, updates_in_backward());
  WideTraining expected = training_of(world_, updates_in_step());
  DistributedOptimizer& optimizer = training.optimizer;
  for (int step = 0; step < 3; ++step) {
    for (WideTraining* each : {&training, &expected}) {
      each->optimizer.zero_grad();
      each->loss(step).backward();
    }
    refused("zero_grad() after backward()", [&] { optimizer.zero_grad(); });
    refused("synchronize()", [&] { optimizer.synchronize(); });
    refused("clip_grad_norm_()", [&] { optimizer.clip_grad_norm_(1.0); });
    refused("step(closure)", [&] { optimizer.step([&] { return training.loss(step); }); });
    for (WideTraining* each : {&training, &expected}) each->optimizer.step();
    expect_same_bits(training.weights(), expected.weights());
  }
  refused("GradScaler", [&] { GradScaler scaler(optimizer); });
  GradScaler off(optimizer, {.enabled = false});
  for (int step = 3; step < 5; ++step) {
    for (WideTraining* each : {&training, &expected}) {
      each->optimizer.zero_grad();
      each->loss(step).backward();
    }
    EXPECT_TRUE(off.step());
    off.update();
    expected.optimizer.step();
    expect_same_bits(training.weights(), expected.weights());
  }
}

TEST_F(BackwardUpdateMisuse, ABackwardThroughTheGraphAgainThrowsAndChangesNothing) {
  WideTraining training = training_of(world_, updates_in_backward());
  WideTraining expected = training_of(world_, updates_in_step());
  for (int step = 0; step < 2; ++step) {
    for (WideTraining* each : {&training, &expected}) each->optimizer.zero_grad();
    const torch::Tensor loss = training.loss(step);
    loss.backward({}, /*retain_graph=*/true);
    EXPECT_ANY_THROW(loss.backward());
    expected.loss(step).backward();
    for (WideTraining* each : {&training, &expected}) each->optimizer.step();
    expect_same_bits(training.weights(), expected.weights());
  }
}

// LibTorch has saved the detached weight for the factor's gradient, which comes after the weight's.
TEST_F(BackwardUpdateMisuse, AWeightThatIsReadAfterItsGradientIsNoticedByLibTorch) {
  const auto weight = torch::full({64}, 2.0, torch::requires_grad());
  const auto factor = torch::full({64}, 3.0, torch::requires_grad());
  const auto sgd = make_momentum<optim::SGD>({factor, weight});
  DistributedOptimizer optimizer(world_, *sgd, {{"factor", factor}, {"weight", weight}},
                                 updates_in_backward(64));
  const auto loss = ((factor * weight.detach()) * weight).sum();
  if (!updates_early()) {
    loss.backward();
    optimizer.step();
    return;
  }
  try {
    loss.backward();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const c10::Error& error) {
    EXPECT_THAT(std::string(error.what()), HasSubstr("modified by an inplace operation"));
  }
  optimizer.step();  // the factor has no gradient
  EXPECT_TRUE(torch::equal(factor, torch::full({64}, 3.0)));
  EXPECT_TRUE(torch::allclose(weight, torch::full({64}, 2.0 - 0.1 * 6.0)));
}

TEST_F(BackwardUpdateMisuse, AParameterWithOtherMemoryBeforeStepIsAnError) {
  WideTraining training = training_of(world_, updates_in_backward());
  training.loss(0).backward();
  training.weight(1).set_data(training.weight(1).detach().clone());
  if (!updates_early()) return training.optimizer.step();
  refused("other memory", [&] { training.optimizer.step(); });
}

TEST_F(BackwardUpdateMisuse, ANewParameterIsAnErrorBeforeAnythingIsUpdated) {
  WideTraining training = training_of(world_, updates_in_backward());
  training.optimizer.zero_grad();
  training.wrapped->param_groups()[0].params().push_back(torch::zeros({3}, torch::requires_grad()));
  const auto before = training.weights();
  expect_error(ErrorCode::invalid_argument, HasSubstr("was added to the wrapped optimizer"), [&] {
    training.loss(0).backward();
    training.optimizer.step();
  });
  expect_same_bits(training.weights(), before);
}

TEST_F(BackwardUpdateMisuse, RanksWithOtherParametersAreToldBeforeAnythingIsUpdated) {
  WideTraining training = training_of(world_, updates_in_backward());
  if (is_odd_one()) {
    const torch::NoGradGuard no_grad;
    training.weight(0).add_(1.0);
  }
  const auto before = training.weights();
  training.loss(0).backward();
  if (world_.size() == 1) return training.optimizer.step();
  expect_error(ErrorCode::mismatch, HasSubstr("Call broadcast_parameters"),
               [&] { training.optimizer.step(); });
  expect_same_bits(training.weights(), before);
  training.optimizer.zero_grad();
  broadcast_parameters(world_, *training.network);
  plain_steps(training);
  expect_alike(training.network);
}

TEST_F(BackwardUpdateMisuse, RanksInDifferentStepsAreToldBeforeAnythingIsUpdated) {
  WideTraining training = training_of(world_, updates_in_backward());
  plain_steps(training);
  const auto before = training.weights();
  training.optimizer.zero_grad();
  if (is_odd_one()) training.optimizer.zero_grad();
  training.loss(9).backward();
  if (world_.size() == 1) return training.optimizer.step();
  expect_error(ErrorCode::mismatch, HasSubstr("No rank has been updated"),
               [&] { training.optimizer.step(); });
  expect_same_bits(training.weights(), before);
}

TEST_F(BackwardUpdateMisuse, DestroyedBeforeStepOnAllRanksTheyAreAlike) {
  auto training = std::make_unique<WideTraining>(training_of(world_, updates_in_backward()));
  plain_steps(*training);
  auto network = training->network;
  training->optimizer.zero_grad();
  training->loss(9).backward();
  {
    const LoggedLines lines;
    training.reset();
    EXPECT_EQ(lines.have("some of the parameters"), updates_early());
  }
  expect_alike(network);
  expect_to_go_on(network);
}

TEST_F(BackwardUpdateMisuse, DestroyedBeforeStepOnOneRankTheOthersAreTold) {
  std::optional<WideTraining> training(training_of(world_, updates_in_backward()));
  training->loss(0).backward();
  if (world_.size() == 1) return training->optimizer.step();
  if (is_odd_one()) {
    training.reset();
    return;
  }
  const std::string text = updates_early() ? "Some parameters have been" : "No rank has been";
  expect_error(ErrorCode::mismatch, HasSubstr(text), [&] { training->optimizer.step(); });
}

TEST_F(BackwardUpdateMisuse, AfterAnExceptionOnAllRanksStepEndsTheStep) {
  WideTraining training = training_of(world_, updates_in_backward());
  bool armed = true;
  training.weight(0).register_hook([&](const torch::Tensor&) {
    if (std::exchange(armed, false)) throw std::runtime_error("thrown by a hook");
  });
  const auto before = training.weights();
  EXPECT_THROW(training.loss(0).backward(), std::runtime_error);
  training.optimizer.step();
  EXPECT_TRUE(torch::equal(training.weight(0), before[0]));
  EXPECT_FALSE(torch::equal(training.weight(2), before[4]));
  expect_alike(training.network);
  plain_steps(training);
  expect_alike(training.network);
}

TEST_F(BackwardUpdateMisuse, AfterAnExceptionOnAllRanksANewOptimizerGoesOn) {
  torch::nn::Sequential network{nullptr};
  EXPECT_THROW(
      {
        WideTraining training = training_of(world_, updates_in_backward());
        network = training.network;
        training.weight(0).register_hook(
            [](const torch::Tensor&) { throw std::runtime_error("thrown by a hook"); });
        training.loss(0).backward();
      },
      std::runtime_error);
  barrier(world_);  // until then peers may still write to the parameters
  expect_alike(network);
  network->parameters()[0].set_requires_grad(false);  // its hook throws
  expect_to_go_on(network);
}

}  // namespace
}  // namespace hora::internal::test
