#include "examples/vision/optim/weight_average.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>

namespace vision {
namespace {

using testing::HasSubstr;

struct ModelImpl : torch::nn::Module {
  ModelImpl() {
    weight = register_parameter("weight", torch::zeros({3}, torch::kDouble));
    mean = register_buffer("mean", torch::zeros({2}, torch::kDouble));
    count = register_buffer("count", torch::zeros({}, torch::kLong));
  }
  void set(double value) {
    const torch::NoGradGuard no_grad;
    weight.fill_(value);
    mean.fill_(10 * value);
    count.fill_(static_cast<std::int64_t>(value));
  }
  torch::Tensor weight, mean, count;
};
TORCH_MODULE(Model);

TEST(WeightAverage, FollowsTheWeights) {
  Model model;
  model->set(8);
  WeightAverage average(*model, 0.5);
  double expected = 8;
  for (int step = 1; step <= 12; ++step) {
    const double decay = std::min(0.5, (1.0 + step) / (10.0 + step));
    model->set(step);
    average.update(*model);
    expected = decay * expected + (1 - decay) * step;
    EXPECT_NEAR(average.tensors()["weight"][1].item<double>(), expected, 1e-12) << step;
    EXPECT_NEAR(average.tensors()["mean"][1].item<double>(), 10 * expected, 1e-11) << step;
    EXPECT_EQ(average.tensors()["count"].item<std::int64_t>(), step);
  }
  EXPECT_EQ(average.steps(), 12);
}

TEST(WeightAverage, AppliedTheModelHasTheAveragesForAWhile) {
  Model model;
  model->set(8);
  WeightAverage average(*model, 0.5);
  model->set(2);
  average.update(*model);  // 2/11 * 8 + 9/11 * 2
  const void* memory = model->weight.data_ptr();
  {
    const auto applied = average.apply_to(*model);
    EXPECT_NEAR(model->weight[0].item<double>(), 34.0 / 11, 1e-12);
    EXPECT_NEAR(model->mean[0].item<double>(), 340.0 / 11, 1e-11);
    EXPECT_EQ(model->weight.data_ptr(), memory);
  }
  EXPECT_EQ(model->weight[0].item<double>(), 2);
  EXPECT_EQ(model->mean[0].item<double>(), 20);
  EXPECT_EQ(model->weight.data_ptr(), memory);
  EXPECT_NEAR(average.tensors()["weight"][0].item<double>(), 34.0 / 11, 1e-12);
}

TEST(WeightAverage, RefusesAnotherModuleAndDecaysOutOfRange) {
  Model model;
  WeightAverage average(*model, 0.9);
  EXPECT_THAT([&] { average.update(*torch::nn::Linear(2, 2)); },
              testing::ThrowsMessage<std::invalid_argument>(HasSubstr("make a new one")));
  for (const double decay : {-0.1, 1.0, std::nan("")}) {
    EXPECT_THAT([&] { WeightAverage(*model, decay); },
                testing::ThrowsMessage<std::invalid_argument>(HasSubstr("decay is")));
  }
}

}  // namespace
}  // namespace vision
