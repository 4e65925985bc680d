#include "examples/vision/train/train_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch.h>

#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "examples/vision/train/batches.h"
#include "tests/examples/vision/train/made_images.h"

namespace vision {
namespace {

using test::MadeImages;

struct MadeOptions {
  TrainStepOptions step = {};
  bool scaled = false;  ///< the loss is, so that a step which is not finite is left out
  hora::NonFinitePolicy policy = hora::NonFinitePolicy::ignore;
};

/// A network without BatchNorm, on images of which a step takes 8 on each rank.
class StepTraining {
 public:
  StepTraining(const hora::Context& world, const MadeOptions& options)
      : images_(static_cast<std::size_t>(64 * world.size())),
        sampler_(images_.size(), {.rank = world.rank(), .size = world.size(), .batch = 8}),
        batches_(images_, MadeImages::transform(),
                 {.batch = 8 / static_cast<std::size_t>(options.step.accumulate), .workers = 0},
                 torch::kCPU),
        network(make()),
        sgd(network->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)),
        optimizer(world, sgd, network->named_parameters(),
                  {.backward_passes_per_step = options.step.accumulate}),
        scaler(optimizer, {.enabled = options.scaled}),
        finite(world, network->named_parameters(),
               {.policy = options.policy, .gradients = !options.scaled}),
        step(
            options.step,
            [this](const torch::Tensor& images) { return factor * network->forward(images); },
            optimizer, scaler, finite) {
    restart();
  }

  void restart() { batches_.start(0, sampler_.local_order()); }
  DeviceBatch next_batch() { return batches_.next().value(); }
  StepResult run() { return step.run(batches_); }
  std::size_t steps() const { return sampler_.steps(); }

 private:
  static torch::nn::Sequential make() {
    torch::manual_seed(3);
    torch::nn::Sequential made(torch::nn::Flatten(),
                               torch::nn::Linear(3 * MadeImages::side * MadeImages::side, 16),
                               torch::nn::Tanh(), torch::nn::Linear(16, MadeImages::class_count));
    return made;
  }

  MadeImages images_;
  hora::DistributedSampler sampler_;
  Batches batches_;

 public:
  torch::nn::Sequential network;
  torch::optim::SGD sgd;
  hora::DistributedOptimizer optimizer;
  hora::GradScaler scaler;
  hora::FiniteCheck finite;
  double factor = 1;  ///< of the logits
  TrainStep step;
};

void expect_close(const torch::nn::Sequential& actual, const torch::nn::Sequential& expected) {
  const auto expected_parameters = expected->parameters();
  const auto parameters = actual->parameters();
  ASSERT_EQ(parameters.size(), expected_parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(torch::allclose(parameters[i], expected_parameters[i], 1e-4, 1e-6)) << i;
  }
}

TEST(TrainStep, AccumulatedBatchesAreOneLargeBatch) {
  const hora::Context world = hora::init();
  StepTraining whole(world, {{.label_smoothing = 0.1, .clip_norm = 0.5}});
  StepTraining parts(world, {{.accumulate = 4, .label_smoothing = 0.1, .clip_norm = 0.5}});
  for (std::size_t step = 0; step < whole.steps(); ++step) {
    const StepResult expected = whole.run();
    const StepResult actual = parts.run();
    EXPECT_NEAR(actual.loss, expected.loss, 1e-5) << step;
    EXPECT_DOUBLE_EQ(actual.top1, expected.top1) << step;
    EXPECT_DOUBLE_EQ(actual.top5, expected.top5) << step;
  }
  expect_close(parts.network, whole.network);
}

TEST(TrainStep, LearnsAndCounts) {
  const hora::Context world = hora::init();
  StepTraining training(world, {});
  StepResult result;
  for (std::size_t step = 0; step < training.steps(); ++step) {
    result = training.run();
    EXPECT_TRUE(result.made);
    EXPECT_GE(result.top5, result.top1);
    EXPECT_GE(result.data_seconds, 0);
  }
  EXPECT_GE(result.top1, 75);
  EXPECT_THROW(training.run(), std::logic_error);
}

// Equation 12 of the paper, by hand: with s smoothed, the loss of a label is (1 - s) times its own
// and s times the mean of all classes' ones.
TEST(TrainStep, SmoothsLabels) {
  const hora::Context world = hora::init();
  constexpr double smoothing = 0.25;
  StepTraining training(world, {{.label_smoothing = smoothing}});
  const TensorBatch batch = training.next_batch().tensors;
  const torch::Tensor losses =
      -torch::log_softmax(training.network->forward(batch.images).detach(), 1);
  const double of_labels = losses.gather(1, batch.labels.unsqueeze(1)).mean().item<double>();
  const double of_all = losses.mean().item<double>();
  training.restart();
  EXPECT_NEAR(training.run().loss, (1 - smoothing) * of_labels + smoothing * of_all, 1e-5);
}

TEST(TrainStep, ClipsTheGradientsOfAllRanks) {
  const hora::Context world = hora::init();
  constexpr double largest = 1e-3;
  StepTraining training(world, {{.clip_norm = largest}});
  training.run();
  double squares = 0;
  for (const auto& parameter : training.network->parameters()) {
    squares += parameter.grad().pow(2).sum().item<double>();
  }
  EXPECT_NEAR(std::sqrt(squares), largest, 1e-2 * largest);
}

TEST(TrainStep, AStepThatIsLeftOutChangesNoWeights) {
  const hora::Context world = hora::init();
  StepTraining training(world, {.scaled = true});
  const torch::Tensor before = training.network->parameters().at(0).detach().clone();
  // On the last rank alone.
  if (world.rank() + 1 == world.size()) training.factor = INFINITY;
  EXPECT_FALSE(training.run().made);
  EXPECT_TRUE(torch::equal(training.network->parameters().at(0), before));
  training.factor = 1;
  EXPECT_TRUE(training.run().made);
  EXPECT_FALSE(torch::equal(training.network->parameters().at(0), before));
}

TEST(TrainStep, ANanOfOneRankIsLeftOutByAllAndNamed) {
  const hora::Context world = hora::init();
  const int last = world.size() - 1;
  for (const bool scaled : {false, true}) {
    const MadeOptions options{.step = {.accumulate = 2, .clip_norm = 1},
                              .scaled = scaled,
                              .policy = hora::NonFinitePolicy::skip};
    StepTraining training(world, options);
    StepTraining never(world, options);
    if (world.rank() == last) training.factor = NAN;
    const StepResult result = training.run();
    EXPECT_FALSE(result.made);
    ASSERT_TRUE(result.non_finite.has_value());
    EXPECT_EQ(result.non_finite->text(), "NaN in the loss of rank " + std::to_string(last));
    training.factor = 1;
    training.restart();
    for (int step = 0; step < 3; ++step) {
      EXPECT_FALSE(training.run().non_finite.has_value());
      never.run();
    }
    for (std::size_t i = 0; i < training.network->parameters().size(); ++i) {
      EXPECT_TRUE(torch::equal(training.network->parameters()[i], never.network->parameters()[i]));
    }
  }
}

TEST(TrainStep, AnInfiniteGradientOfOneRankEndsTheTrainingOfAll) {
  const hora::Context world = hora::init();
  const int last = world.size() - 1;
  StepTraining training(world, {});
  training.network->named_parameters()["3.bias"].register_hook([&](const torch::Tensor& gradient) {
    return world.rank() == last ? gradient * INFINITY : gradient;
  });
  training.finite = hora::FiniteCheck(world, training.network->named_parameters());
  try {
    training.run();
    ADD_FAILURE() << "the step was made";
  } catch (const hora::Error& error) {
    EXPECT_EQ(error.rank(), last);
    EXPECT_EQ(error.tensor(), "3.bias");
  }
}

}  // namespace
}  // namespace vision
