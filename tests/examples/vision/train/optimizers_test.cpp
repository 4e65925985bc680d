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

TEST(MakeOptimizer, NamesWhatThereIs) {
  EXPECT_THAT([] { make_optimizer({.name = "sdg"}, network()->named_parameters()); },
              testing::ThrowsMessage<std::invalid_argument>(
                  "there is no optimizer 'sdg'; expected sgd, adam or adamw"));
}

constexpr std::int64_t steps = 40;  // of an epoch

struct ScheduleRow {
  double rate;
  int epochs;
  ScheduleOptions schedule;
  std::int64_t images_a_step;
  std::vector<std::pair<std::int64_t, double>> rates;  ///< at steps
};

TrainingOptions options_of(double rate, int epochs, const ScheduleOptions& schedule) {
  return {.epochs = epochs,
          .data = {.batch = 32},
          .optimizer = {.learning_rate = rate},
          .schedule = schedule};
}

TEST(Schedule, HasTheRatesOfItsSteps) {
  const std::vector<ScheduleRow> rows{
      {0.1, 90, {}, 32, {{0, 0.1}, {1199, 0.1}, {1200, 0.01}, {2360, 0.01}, {2400, 0.001}}},
      {1, 10, {.step_epochs = 2.5, .factor = 0.5}, 32, {{99, 1}, {100, 0.5}, {200, 0.25}}},
      {0.1, 90, {.decay = Decay::constant}, 32, {{0, 0.1}, {3560, 0.1}}},
      {0.2, 10, {.decay = Decay::cosine}, 32, {{0, 0.2}, {200, 0.1}, {400, 0}}},
      // Linear scaling warms up from the unscaled rate: 4 ranks, 2 backward passes of one step.
      {0.1,
       90,
       {.warmup_epochs = 5, .scale = true},
       32 * 4 * 2,
       {{0, 0.1}, {100, 0.45}, {200, 0.8}, {1200, 0.08}}},
      // The rate is for steps of the base batch; a smaller one scales down from the begin.
      {0.1, 90, {.decay = Decay::constant, .scale = true, .base_batch = 256}, 1024, {{0, 0.4}}},
      {0.1,
       90,
       {.decay = Decay::constant, .warmup_epochs = 1, .scale = true, .base_batch = 256},
       64,
       {{0, 0.025}, {40, 0.025}}}};
  for (const ScheduleRow& row : rows) {
    const TrainingOptions options = options_of(row.rate, row.epochs, row.schedule);
    const hora::LearningRateSchedule schedule(
        learning_rate_options(options, row.images_a_step, steps), steps);
    for (const auto& [step, rate] : row.rates) {
      EXPECT_NEAR(schedule.rate(step), rate, 1e-12) << row.rate << " at " << step;
    }
  }
}

TEST(Schedule, AShareOfAllEpochsWarmsUpInWholeSteps) {
  for (const int epochs : {1, 2, 4, 6, 7, 13}) {
    for (const std::int64_t steps_per_epoch : {1, 4, 11, 24, 391}) {
      const TrainingOptions options =
          options_of(0.05, epochs, {.decay = Decay::cosine, .warmup_share = 1.0 / 6});
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
