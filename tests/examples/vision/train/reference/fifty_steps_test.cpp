// 50 steps of whole ResNets against Python's, by numbers that make_losses.py has made.
#include <gtest/gtest.h>
#include <hora/torch.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tests/examples/vision/train/reference/training.h"

namespace vision::test {
namespace {

class FiftySteps : public testing::TestWithParam<const char*> {};

// With one rank BatchNorm is LibTorch's, with more SyncBatchNorm.
TEST_P(FiftySteps, HaveTheLossesOfPython) {
  const hora::Context world = hora::init();
  const std::string name = GetParam();
  const nlohmann::json reference =
      nlohmann::json::parse(std::ifstream(LOSSES)).at("fifty_steps").at(name);
  const auto expected = reference.at("losses").get<std::vector<double>>();
  const int side = reference.at("side").get<int>();
  Training training{.architecture = name,
                    .optimizer = {.learning_rate = reference.at("rate").get<double>(),
                                  .momentum = 0.9,
                                  .weight_decay = 1e-4,
                                  .decay_all = reference.at("decay_all").get<bool>()},
                    .schedule = {.rate = reference.at("rate").get<double>(),
                                 .decay = hora::LearningRateDecay::cosine,
                                 .epochs = 1},
                    .transform = unchanged(side),
                    .batch = reference.at("batch").get<std::size_t>()};
  training.order.resize(training.batch * expected.size());
  std::iota(training.order.begin(), training.order.end(), 0);
  if (world.size() > 1) {
    training.model.batch_norm = [&world](std::int64_t channels) {
      return torch::nn::AnyModule(
          hora::SyncBatchNorm(world, torch::nn::BatchNormOptions(channels)));
    };
  }
  const std::vector<double> losses =
      losses_of_ranks(world, training, formula_data(training.order.size(), side));
  EXPECT_LE(largest_difference(world, name, losses, expected), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(All, FiftySteps, testing::Values("resnet18", "resnet50"),
                         [](const auto& name) { return std::string(name.param); });

}  // namespace
}  // namespace vision::test
