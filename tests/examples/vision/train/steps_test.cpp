#include "examples/vision/train/steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <memory>
#include <stdexcept>
#include <string>

#include "tests/examples/vision/train/made_images.h"
#include "tests/frameworks/torch/network.h"
#include "tests/support/expect_error.h"

namespace vision {
namespace {

using hora::internal::test::copies_of;
using hora::internal::test::expect_equal;
using test::in_order;
using test::MadeImages;

TEST(Batches, HaveEachPixelWhereItsLayoutSays) {
  const MadeImages images(5);
  for (const Layout layout : {Layout::channels_first, Layout::channels_last}) {
    TransformOptions transform = MadeImages::transform();
    transform.layout = layout;
    Batches batches(images, transform, {.batch = 5, .workers = 0}, torch::kCPU);
    batches.start(0, in_order(5));
    const TensorBatch batch = batches.next().value();
    EXPECT_EQ(batch.images.sizes(), (torch::IntArrayRef{5, 3, 8, 8}));
    const bool last = layout == Layout::channels_last;
    EXPECT_EQ(batch.images.is_contiguous(torch::MemoryFormat::ChannelsLast), last);
    EXPECT_EQ(batch.images.is_contiguous(), !last);
    for (std::size_t sample = 0; sample < 5; ++sample) {
      std::vector<std::uint8_t> memory;
      const auto bytes = images.encoded(sample, memory).bytes;
      const auto expected =
          (torch::tensor(std::vector<int>(bytes.begin(), bytes.end())).view({3, 8, 8}) / 255.0 -
           0.5) /
          0.3;
      const auto index = static_cast<std::int64_t>(sample);
      EXPECT_TRUE(torch::allclose(batch.images[index], expected, 1e-5, 1e-5)) << sample;
      EXPECT_EQ(batch.labels[index].item<int>(), images.label(sample));
    }
    EXPECT_FALSE(batches.next().has_value());
  }
}

TEST(Batches, KeepTheirMemoryUntilTheLastTensorGoes) {
  const MadeImages images(2);
  std::weak_ptr<std::byte> memory;
  const auto allocate = [&](std::size_t bytes) {
    const auto given = allocate_pageable(bytes);
    memory = given;
    return given;
  };
  Batches batches(images, MadeImages::transform(),
                  {.batch = 2, .workers = 0, .allocator = allocate}, torch::kCPU);
  batches.start(0, in_order(2));
  TensorBatch batch = batches.next().value();
  torch::Tensor part = batch.images[1];
  batch = {};
  EXPECT_FALSE(memory.expired());
  part = torch::Tensor();
  EXPECT_TRUE(memory.expired());
}

struct MadeOptions {
  int accumulate = 1;
  RegularisationOptions regularisation = {};
  bool scaled = false;  ///< the loss is, so that a step which is not finite is left out
  hora::NonFinitePolicy policy = hora::NonFinitePolicy::ignore;
};

/// A network without BatchNorm, on images of which a step takes 8 on each rank.
class StepTraining {
 public:
  StepTraining(const hora::Context& world, const MadeOptions& made)
      : images_(static_cast<std::size_t>(64 * world.size())),
        sampler_(images_.size(), {.rank = world.rank(), .size = world.size(), .batch = 8}),
        batches_(images_, MadeImages::transform(),
                 {.batch = 8 / static_cast<std::size_t>(made.accumulate), .workers = 0},
                 torch::kCPU),
        network(make()),
        sgd(network->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)),
        optimizer(world, sgd, network->named_parameters(),
                  {.backward_passes_per_step = made.accumulate}),
        scaler(optimizer, {.enabled = made.scaled}),
        finite(world, network->named_parameters(),
               {.policy = made.policy, .gradients = !made.scaled}) {
    options_.distribution.accumulate = made.accumulate;
    options_.regularisation = made.regularisation;
    restart();
  }

  void restart() { batches_.start(0, sampler_.local_order()); }
  TensorBatch next_batch() { return batches_.next().value(); }
  StepResult run() {
    const auto forward = [this](const torch::Tensor& images) {
      return factor * network->forward(images);
    };
    return train_step(options_, forward, batches_, optimizer, scaler, finite);
  }
  std::size_t steps() const { return sampler_.steps(); }

 private:
  static torch::nn::Sequential make() {
    torch::manual_seed(3);
    return torch::nn::Sequential(torch::nn::Flatten(),
                                 torch::nn::Linear(3 * MadeImages::side * MadeImages::side, 16),
                                 torch::nn::Tanh(), torch::nn::Linear(16, MadeImages::class_count));
  }

  TrainingOptions options_;
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
};

class TrainStep : public testing::Test {
 protected:
  const hora::Context world_ = hora::init();
  const int last_ = world_.size() - 1;
};

TEST_F(TrainStep, AccumulatedBatchesAreOneLargeBatch) {
  const RegularisationOptions regularisation{.label_smoothing = 0.1, .clip_norm = 0.5};
  StepTraining whole(world_, {.regularisation = regularisation});
  StepTraining parts(world_, {.accumulate = 4, .regularisation = regularisation});
  for (std::size_t step = 0; step < whole.steps(); ++step) {
    const StepResult expected = whole.run();
    const StepResult actual = parts.run();
    EXPECT_NEAR(actual.loss, expected.loss, 1e-5) << step;
    EXPECT_DOUBLE_EQ(*actual.top1, *expected.top1) << step;
    EXPECT_DOUBLE_EQ(*actual.top5, *expected.top5) << step;
  }
  const auto parameters = parts.network->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(torch::allclose(parameters[i], whole.network->parameters()[i], 1e-4, 1e-6)) << i;
  }
}

TEST_F(TrainStep, LearnsAndCounts) {
  StepTraining training(world_, {});
  StepResult result;
  for (std::size_t step = 0; step < training.steps(); ++step) {
    result = training.run();
    EXPECT_TRUE(result.made);
    EXPECT_GE(*result.top5, *result.top1);
    EXPECT_GE(result.data_seconds, 0);
  }
  EXPECT_GE(*result.top1, 75);
  EXPECT_THROW(training.run(), std::logic_error);
}

// Equation 12 of the paper, by hand: with s smoothed, the loss of a label is (1 - s) times its own
// and s times the mean of all classes' ones.
TEST_F(TrainStep, SmoothsLabelsAndClipsTheGradientsOfAllRanks) {
  constexpr double smoothing = 0.25;
  constexpr double largest = 1e-3;
  StepTraining training(world_,
                        {.regularisation = {.label_smoothing = smoothing, .clip_norm = largest}});
  const TensorBatch batch = training.next_batch();
  const torch::Tensor losses =
      -torch::log_softmax(training.network->forward(batch.images).detach(), 1);
  const double of_labels = losses.gather(1, batch.labels.unsqueeze(1)).mean().item<double>();
  training.restart();
  EXPECT_NEAR(training.run().loss,
              (1 - smoothing) * of_labels + smoothing * losses.mean().item<double>(), 1e-5);
  double squares = 0;
  for (const auto& parameter : training.network->parameters()) {
    squares += parameter.grad().pow(2).sum().item<double>();
  }
  EXPECT_NEAR(std::sqrt(squares), largest, 1e-2 * largest);
}

TEST_F(TrainStep, AStepThatOverflowsOnOneRankChangesNoWeights) {
  StepTraining training(world_, {.scaled = true});
  const auto before = copies_of(training.network->parameters());
  if (world_.rank() == last_) training.factor = INFINITY;
  const StepResult result = training.run();
  EXPECT_FALSE(result.made);
  EXPECT_EQ(result.loss_scale, 32768);
  expect_equal(training.network->parameters(), before);
  training.factor = 1;
  EXPECT_TRUE(training.run().made);
  EXPECT_FALSE(torch::equal(training.network->parameters()[0], before[0]));
}

TEST_F(TrainStep, ANanOfOneRankIsLeftOutByAllAndNamed) {
  for (const bool scaled : {false, true}) {
    const MadeOptions options{.accumulate = 2,
                              .regularisation = {.clip_norm = 1},
                              .scaled = scaled,
                              .policy = hora::NonFinitePolicy::skip};
    StepTraining training(world_, options);
    StepTraining never(world_, options);
    if (world_.rank() == last_) training.factor = NAN;
    const StepResult result = training.run();
    EXPECT_FALSE(result.made);
    ASSERT_TRUE(result.non_finite.has_value());
    EXPECT_EQ(result.non_finite->text(), "NaN in the loss of rank " + std::to_string(last_));
    training.factor = 1;
    training.restart();
    for (int step = 0; step < 3; ++step) {
      EXPECT_FALSE(training.run().non_finite.has_value());
      never.run();
    }
    expect_equal(training.network->parameters(), never.network->parameters());
  }
}

TEST_F(TrainStep, AnInfiniteGradientOfOneRankEndsTheTrainingOfAll) {
  StepTraining training(world_, {});
  training.network->named_parameters()["3.bias"].register_hook([&](const torch::Tensor& gradient) {
    return world_.rank() == last_ ? gradient * INFINITY : gradient;
  });
  training.finite = hora::FiniteCheck(world_, training.network->named_parameters());
  const hora::Error error = hora::internal::test::expect_error(hora::ErrorCode::invalid_argument,
                                                               [&] { training.run(); });
  EXPECT_EQ(error.rank(), last_);
  EXPECT_EQ(error.tensor(), "3.bias");
}

/// A network without weights, and a buffer that must be rank 0's.
class Buffered : public torch::nn::Module {
 public:
  explicit Buffered(int rank)
      : buffer(register_buffer("buffer", torch::full({1}, static_cast<float>(rank)))) {}
  torch::Tensor buffer;
};

class ValidationTest : public testing::Test {
 protected:
  Validation make(const MadeImages& images, Forward forward) {
    return Validation(world_, images, MadeImages::transform(),
                      {.batch = 8, .workers = 1, .bad_images = BadImages::skip}, torch::kCPU,
                      model_, std::move(forward));
  }
  /// The class that is easiest to see: that of the brightest row.
  static torch::Tensor brightest_row(const torch::Tensor& images) {
    return images.sum({1, 3}).narrow(1, 0, MadeImages::class_count);
  }

  const hora::Context world_ = hora::init();
  StopRequest stop_{world_};
  Buffered model_{world_.rank()};
};

TEST_F(ValidationTest, CountsEachImageOnceAndNoneInABadOnesPlace) {
  // Numbers of images that ranks and batches divide, and others.
  for (const auto& [size, bad] :
       std::vector<std::pair<int, int>>{{1, 0}, {2, 0}, {15, 0}, {32, 0}, {67, 0}, {33, 1}}) {
    MadeImages images(static_cast<std::size_t>(size));
    if (bad > 0) images.bad = {7};
    Validation validation = make(images, brightest_row);
    for (int run = 0; run < 2; ++run) {
      const ValidationResult result = validation.run(stop_);
      EXPECT_EQ(result.images, size - bad);
      EXPECT_EQ(result.top1_correct, result.images) << "a network that is always right";
      EXPECT_EQ(result.top1, 100);
      EXPECT_EQ(result.top5, 100);
    }
  }
}

TEST_F(ValidationTest, CountsWhatIsRightWithRankZerosBuffers) {
  const MadeImages images(60);
  // Says class 2 always, then 0, 1, 3, 4: class 5 is not among the first five.
  const auto constant = [&](const torch::Tensor& batch) {
    EXPECT_EQ(model_.buffer.item<float>(), 0) << "not rank 0's";
    EXPECT_FALSE(model_.is_training());
    return torch::tensor({4.F, 3.F, 5.F, 2.F, 1.F, 0.F}).expand({batch.size(0), 6});
  };
  const ValidationResult result = make(images, constant).run(stop_);
  EXPECT_EQ(result.images, 60);
  EXPECT_EQ(result.top1_correct, 10);
  EXPECT_NEAR(result.top1, 100.0 / 6, 1e-12);
  EXPECT_NEAR(result.top5, 500.0 / 6, 1e-12);
}

TEST_F(ValidationTest, IsLeftByAllRanksWhereOneIsToldToStop) {
  const MadeImages images(200);
  Validation validation = make(images, brightest_row);
  EXPECT_FALSE(validation.run(stop_).stopped);
  if (world_.rank() == world_.size() - 1) std::raise(SIGUSR1);
  EXPECT_TRUE(validation.run(stop_).stopped);
}

}  // namespace
}  // namespace vision
