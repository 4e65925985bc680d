// Ranks that step other parameters, or by other learning rates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class RanksDiffer : public testing::Test {
 protected:
  bool last() const { return world_.rank() + 1 == world_.size(); }
  std::string last_rank() const { return "rank " + std::to_string(world_.size() - 1); }

  const Context world_ = init();
};

TEST_F(RanksDiffer, InParametersInTheFirstStep) {
  for (const auto type : {torch::kHalf, torch::kFloat, torch::kDouble}) {
    Training training(world_, {}, make_sgd, type);
    const auto before = copies_of(training.network->parameters());
    {
      const torch::NoGradGuard no_grad;
      if (last()) {
        training.network->parameters()[1].add_(1.0);
        training.network->parameters()[3].add_(1.0);
      }
    }
    for (const auto& parameter : training.network->parameters()) parameter.sum().backward();
    expect_error(
        ErrorCode::mismatch,
        AllOf(HasSubstr("parameters differ between ranks in the first step: '0.bias' and 1 "
                        "more: " +
                        last_rank() + " from rank 0"),
              HasSubstr("broadcast_parameters(context, module)"), HasSubstr("compare_ranks")),
        [&] { training.optimizer.step(); });
    EXPECT_TRUE(torch::equal(training.network->parameters()[0], before[0])) << "it has stepped";
    // Mended, the same optimizer goes on.
    broadcast_parameters(world_, *training.network);
    training.optimizer.zero_grad();
    for (const auto& parameter : training.network->parameters()) parameter.sum().backward();
    training.optimizer.step();
    EXPECT_TRUE(equals_root(world_, training.network->parameters()[1]));
  }
}

TEST_F(RanksDiffer, InLearningRatesFromTheFirstStepOn) {
  torch::nn::Sequential network = small_network(seed());
  torch::optim::SGD sgd(network->parameters(), last() ? 0.25 : 0.5);
  DistributedOptimizer optimizer(world_, sgd, network->named_parameters());
  loss_of(network, my_batch(world_, 0)).backward();
  expect_error(ErrorCode::mismatch,
               AllOf(HasSubstr("learning rates of parameter group 0"), HasSubstr("in step 1"),
                     HasSubstr("0.5; " + last_rank() + " has 0.25")),
               [&] { optimizer.step(); });
}

TEST_F(RanksDiffer, InLearningRatesBySchedulersThatPart) {
  Training training(world_);
  const auto train = [&] {
    for (int step = 0; step < 40; ++step) {
      if (step == 5 && last()) training.wrapped->param_groups()[0].options().set_lr(0.125);
      training.step(my_batch(world_, step));
    }
  };
  expect_error(ErrorCode::mismatch, AllOf(HasSubstr("in step 17"), HasSubstr("0.125")), train);
}

TEST_F(RanksDiffer, InOtherOptions) {
  torch::nn::Sequential network = small_network(seed());
  torch::optim::SGD sgd(network->parameters(),
                        torch::optim::SGDOptions(0.5).momentum(last() ? 0.5 : 0.25));
  DistributedOptimizer optimizer(world_, sgd, network->named_parameters());
  loss_of(network, my_batch(world_, 0)).backward();
  expect_error(ErrorCode::mismatch,
               AllOf(HasSubstr("options (such as momentum) of parameter group 0"),
                     HasSubstr("from " + last_rank())),
               [&] { optimizer.step(); });
}

TEST_F(RanksDiffer, WhereTheyAreMeantTo) {
  const auto weight = torch::full({3}, 1.0 * world_.rank(), torch::requires_grad());
  torch::optim::SGD sgd({weight}, world_.rank() + 1.0);
  DistributedOptimizer optimizer(world_, sgd, {{"weight", weight}}, {.compare_ranks = false});
  weight.sum().backward();
  optimizer.step();
  EXPECT_TRUE(torch::equal(weight, torch::full({3}, -1.0)));
}

TEST_F(RanksDiffer, NotByThoseThatHaveJoined) {
  Training training(world_);
  if (!last()) training.optimizer.join();
  if (last()) {
    for (int step = 0; step < 20; ++step) training.step(my_batch(world_, step));
    training.optimizer.join();
  }
  for (const auto& parameter : training.network->parameters()) {
    EXPECT_TRUE(equals_root(world_, parameter));
  }
}

}  // namespace
}  // namespace hora::internal::test
