#include "examples/vision/train/validation.h"

#include <gtest/gtest.h>
#include <hora/torch.h>

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "tests/examples/vision/train/made_images.h"

namespace vision {
namespace {

using test::MadeImages;

LoaderOptions loader_options() {
  return {.batch = 8, .workers = 1, .bad_images = BadImages::skip};
}

/// A module without anything, for networks that are made of functions.
class Nothing : public torch::nn::Module {};

/// The class that is easiest to see: that of the brightest row.
torch::Tensor brightest_row(const torch::Tensor& images) {
  return images.sum({1, 3}).narrow(1, 0, MadeImages::class_count);
}

TEST(Validation, CountsEachImageOnce) {
  const hora::Context world = hora::init();
  Nothing model;
  // Numbers of images that ranks and batches divide, and others.
  for (const std::size_t size : {1, 2, 15, 32, 67}) {
    const MadeImages images(size);
    Validation validation(world, images, MadeImages::transform(), loader_options(), torch::kCPU,
                          model, brightest_row);
    for (int run = 0; run < 2; ++run) {
      const ValidationResult result = validation.run();
      EXPECT_EQ(result.images, static_cast<std::int64_t>(size));
      EXPECT_EQ(result.top1_correct, result.images) << "a network that is always right";
      EXPECT_EQ(result.top5_correct, result.images);
      EXPECT_DOUBLE_EQ(result.top1(), 100);
    }
  }
}

TEST(Validation, CountsWhatIsRight) {
  const hora::Context world = hora::init();
  Nothing model;
  const MadeImages images(60);
  // Says class 2 always, then 0, 1, 3, 4: class 5 is not among the first five.
  const auto constant = [](const torch::Tensor& batch) {
    return torch::tensor({4.F, 3.F, 5.F, 2.F, 1.F, 0.F}).expand({batch.size(0), 6});
  };
  Validation validation(world, images, MadeImages::transform(), loader_options(), torch::kCPU,
                        model, constant);
  const ValidationResult result = validation.run();
  EXPECT_EQ(result.images, 60);
  EXPECT_EQ(result.top1_correct, 10);
  EXPECT_EQ(result.top5_correct, 50);
  EXPECT_NEAR(result.top1(), 100.0 / 6, 1e-12);
  EXPECT_NEAR(result.top5(), 500.0 / 6, 1e-12);
}

TEST(Validation, AnImageThatTookTheBadOnesPlaceDoesNotCountTwice) {
  const hora::Context world = hora::init();
  Nothing model;
  const MadeImages images(33, /*bad=*/7);
  Validation validation(world, images, MadeImages::transform(), loader_options(), torch::kCPU,
                        model, brightest_row);
  const ValidationResult result = validation.run();
  EXPECT_EQ(result.images, 32);
  EXPECT_EQ(result.top1_correct, 32);
}

/// Its logits are its weight; its buffer must be rank 0's.
class Weighted : public torch::nn::Module {
 public:
  explicit Weighted(int rank) {
    weight = register_parameter("weight", torch::tensor({1.F, 0.F, 0.F, 0.F, 0.F, 0.F}));
    buffer = register_buffer("buffer", torch::full({1}, static_cast<float>(rank)));
  }
  torch::Tensor weight;
  torch::Tensor buffer;
};

TEST(Validation, TakesRankZerosBuffersInEvaluationMode) {
  const hora::Context world = hora::init();
  Weighted model(world.rank());
  const MadeImages images(60);
  bool seen = false;
  const auto forward = [&](const torch::Tensor& batch) {
    seen = true;
    EXPECT_EQ(model.buffer.item<float>(), 0) << "not rank 0's";
    EXPECT_FALSE(model.is_training());
    return model.weight.expand({batch.size(0), 6});
  };
  Validation validation(world, images, MadeImages::transform(), loader_options(), torch::kCPU,
                        model, forward);
  validation.run();
  EXPECT_TRUE(seen);
}

TEST(Validation, IsLeftByAllRanksWhereOneIsToldToStop) {
  const hora::Context world = hora::init();
  Nothing model;
  const MadeImages images(200);
  Validation validation(world, images, MadeImages::transform(), loader_options(), torch::kCPU,
                        model, brightest_row);
  StopRequest stop(world);
  EXPECT_FALSE(validation.run(&stop).stopped);
  if (world.rank() == world.size() - 1) std::raise(SIGUSR1);
  EXPECT_TRUE(validation.run(&stop).stopped);
}

}  // namespace
}  // namespace vision
