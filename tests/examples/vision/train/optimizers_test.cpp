#include "examples/vision/train/optimizers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace vision {
namespace {

torch::nn::Sequential network() {
  return torch::nn::Sequential(torch::nn::Conv2d(3, 4, 3), torch::nn::BatchNorm2d(4),
                               torch::nn::Flatten(), torch::nn::Linear(4, 2));
}

std::vector<std::string> names_of(const torch::nn::Sequential& model,
                                  const std::vector<torch::Tensor>& tensors) {
  std::vector<std::string> names;
  for (const auto& tensor : tensors) {
    for (const auto& parameter : model->named_parameters()) {
      if (parameter.value().is_same(tensor)) names.push_back(parameter.key());
    }
  }
  return names;
}

template <class Options>
const Options& options_of(const torch::optim::Optimizer& optimizer, std::size_t group) {
  return dynamic_cast<const Options&>(optimizer.param_groups().at(group).options());
}

TEST(MakeOptimizer, TakesTheSettings) {
  const auto model = network();
  const auto make = [&](const std::string& name, bool decay_all = false) {
    return make_optimizer({.name = name,
                           .learning_rate = 0.25,
                           .momentum = 0.5,
                           .weight_decay = 0.125,
                           .nesterov = true,
                           .decay_all = decay_all},
                          model->named_parameters());
  };
  const auto sgd = make("sgd");
  EXPECT_EQ(options_of<torch::optim::SGDOptions>(*sgd, 0).weight_decay(), 0.125);
  EXPECT_EQ(options_of<torch::optim::SGDOptions>(*sgd, 1).weight_decay(), 0);
  EXPECT_EQ(options_of<torch::optim::SGDOptions>(*sgd, 1).momentum(), 0.5);
  EXPECT_TRUE(options_of<torch::optim::SGDOptions>(*sgd, 1).nesterov());
  EXPECT_EQ(std::get<0>(options_of<torch::optim::AdamOptions>(*make("adam"), 1).betas()), 0.5);
  EXPECT_EQ(options_of<torch::optim::AdamWOptions>(*make("adamw"), 0).weight_decay(), 0.125);
  EXPECT_THAT(names_of(model, sgd->param_groups()[0].params()),
              testing::ElementsAre("0.weight", "3.weight"));
  EXPECT_THAT(names_of(model, sgd->param_groups()[1].params()),
              testing::ElementsAre("0.bias", "1.weight", "1.bias", "3.bias"));
  for (const std::string name : {"sgd", "adam", "adamw"}) {
    const auto all = make(name, /*decay_all=*/true);
    ASSERT_EQ(all->param_groups().size(), 1U) << name;
    EXPECT_EQ(all->param_groups()[0].params().size(), 6U);
    EXPECT_EQ(all->param_groups()[0].options().get_lr(), 0.25);
    EXPECT_EQ(make(name)->param_groups().size(), 2U);
  }
}

TEST(MakeOptimizer, EveryOptimizerLearns) {
  torch::manual_seed(1);
  const torch::Tensor inputs = torch::randn({16, 3, 3, 3});
  const torch::Tensor labels = torch::randint(2, {16}, torch::kLong);
  for (const std::string name : {"sgd", "adam", "adamw"}) {
    auto model = network();
    const auto optimizer =
        make_optimizer({.name = name, .learning_rate = 0.02}, model->named_parameters());
    const auto loss = [&] { return torch::cross_entropy_loss(model->forward(inputs), labels); };
    const double before = loss().item<double>();
    for (int step = 0; step < 30; ++step) {
      optimizer->zero_grad();
      loss().backward();
      optimizer->step();
    }
    EXPECT_LT(loss().item<double>(), 0.7 * before) << name;
  }
}

TEST(MakeOptimizer, NamesWhatThereIs) {
  EXPECT_THAT([] { make_optimizer({.name = "sdg"}, network()->named_parameters()); },
              testing::ThrowsMessage<std::invalid_argument>(
                  "there is no optimizer 'sdg'; expected sgd, adam or adamw"));
}

constexpr std::int64_t steps = 40;  // of an epoch

TrainingOptions options_of(double rate, int epochs, Decay decay) {
  TrainingOptions options;
  options.optimizer.learning_rate = rate;
  options.epochs = epochs;
  options.schedule.decay = decay;
  options.data.batch = 32;
  return options;
}

hora::LearningRateSchedule make_schedule(const TrainingOptions& options,
                                         std::int64_t images_a_step) {
  return {learning_rate_options(options, images_a_step, steps), steps};
}

TEST(Schedule, ARateOfATenthIsAHundredthFromEpoch30On) {
  const auto schedule = make_schedule(options_of(0.1, 90, Decay::step), 32);
  EXPECT_DOUBLE_EQ(schedule.rate(0), 0.1);
  EXPECT_DOUBLE_EQ(schedule.rate(30 * steps - 1), 0.1);
  EXPECT_DOUBLE_EQ(schedule.rate(30 * steps), 0.01);
  EXPECT_DOUBLE_EQ(schedule.rate(59 * steps), 0.01);
  EXPECT_DOUBLE_EQ(schedule.rate(60 * steps), 0.001);
}

TEST(Schedule, StepsAreOfTheGivenLengthAndFactor) {
  TrainingOptions options = options_of(1, 10, Decay::step);
  options.schedule.step_epochs = 2.5;
  options.schedule.factor = 0.5;
  const auto schedule = make_schedule(options, 32);
  EXPECT_DOUBLE_EQ(schedule.rate(99), 1);
  EXPECT_DOUBLE_EQ(schedule.rate(100), 0.5);
  EXPECT_DOUBLE_EQ(schedule.rate(200), 0.25);
}

TEST(Schedule, AConstantRateStays) {
  const auto schedule = make_schedule(options_of(0.1, 90, Decay::constant), 32);
  EXPECT_DOUBLE_EQ(schedule.rate(0), 0.1);
  EXPECT_DOUBLE_EQ(schedule.rate(89 * steps), 0.1);
}

TEST(Schedule, HalfACosineEndsAtZero) {
  const auto schedule = make_schedule(options_of(0.2, 10, Decay::cosine), 32);
  EXPECT_DOUBLE_EQ(schedule.rate(0), 0.2);
  EXPECT_NEAR(schedule.rate(5 * steps), 0.1, 1e-12);
  EXPECT_NEAR(schedule.rate(10 * steps), 0, 1e-12);
}

TEST(Schedule, LinearScalingWarmsUpFromTheUnscaledRate) {
  TrainingOptions options = options_of(0.1, 90, Decay::step);
  options.schedule.scale = true;
  options.schedule.warmup_epochs = 5;
  // 4 ranks, 2 backward passes of one step.
  const auto schedule = make_schedule(options, 32 * 4 * 2);
  EXPECT_DOUBLE_EQ(schedule.rate(0), 0.1);
  EXPECT_NEAR(schedule.rate(5 * steps / 2), 0.45, 1e-12);
  EXPECT_DOUBLE_EQ(schedule.rate(5 * steps), 0.8);
  EXPECT_DOUBLE_EQ(schedule.rate(30 * steps), 0.08);
}

TEST(Schedule, TheBaseBatchSaysForWhichStepTheRateIs) {
  TrainingOptions options = options_of(0.1, 90, Decay::constant);
  options.schedule.scale = true;
  options.schedule.base_batch = 256;
  EXPECT_DOUBLE_EQ(learning_rate_options(options, 1024, steps).rate, 0.4);
  options.schedule.warmup_epochs = 1;
  const auto smaller = learning_rate_options(options, 64, steps);
  EXPECT_DOUBLE_EQ(smaller.rate, 0.025);
  EXPECT_LE(smaller.warmup_start, smaller.rate);
  EXPECT_NO_THROW(make_schedule(options, 64));
}

TEST(Schedule, AShareOfAllEpochsWarmsUpInWholeSteps) {
  for (const int epochs : {1, 2, 4, 6, 7, 13}) {
    for (const std::int64_t steps_per_epoch : {1, 4, 11, 24, 391}) {
      TrainingOptions options = options_of(0.05, epochs, Decay::cosine);
      options.schedule.warmup_share = 1.0 / 6;
      const auto chosen = learning_rate_options(options, 32, steps_per_epoch);
      const std::int64_t growing = steps_per_epoch * epochs / 6;
      EXPECT_EQ(std::llround(chosen.warmup_epochs * static_cast<double>(steps_per_epoch)), growing)
          << epochs << " epochs of " << steps_per_epoch;
      EXPECT_DOUBLE_EQ(chosen.warmup_start, 0.05 / static_cast<double>(growing + 1));
    }
  }
}

}  // namespace
}  // namespace vision
