#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "examples/vision/models/model.h"
#include "tests/support/seed.h"

namespace vision {
namespace {

using Sizes = std::vector<std::int64_t>;

// Of the narrowest there is; the deviations do not depend on it otherwise than by fan_out.
TEST(Vgg, DrawsAsTorchvisionDoes) {
  torch::manual_seed(hora::internal::test::generator()());
  const auto model = make_model("vgg16_bn", {.base_width = 16});
  for (const auto& item : model->named_parameters()) {
    const torch::Tensor& tensor = item.value();
    if (tensor.dim() == 1) {
      const bool norm = item.key().ends_with("weight");
      EXPECT_TRUE(tensor.eq(norm ? 1 : 0).all().item<bool>()) << item.key();
      continue;
    }
    const auto n = static_cast<double>(tensor.numel());
    const double expected =
        tensor.dim() == 2 ? 0.01 : std::sqrt(2 * static_cast<double>(tensor.size(1)) / n);
    EXPECT_NEAR(tensor.std().item<double>(), expected, 6 * expected / std::sqrt(2 * n))
        << item.key();
    EXPECT_NEAR(tensor.mean().item<double>(), 0, 6 * expected / std::sqrt(n)) << item.key();
  }
}

// Uniform to 1 / sqrt(fan_in), biases too.
TEST(AlexNet, DrawsAsItsLayersDoByThemselves) {
  torch::manual_seed(hora::internal::test::generator()());
  const auto model = make_model("alexnet", {.base_width = 16});
  const auto parameters = model->named_parameters();
  for (std::size_t i = 0; i < parameters.size(); i += 2) {
    const torch::Tensor& weight = parameters[i].value();
    const double bound = 1 / std::sqrt(static_cast<double>(weight[0].numel()));
    const auto n = static_cast<double>(weight.numel());
    // (Value / bound)^2 has the mean 1/3 and the deviation sqrt(4/45).
    EXPECT_NEAR((weight / bound).square().mean().item<double>(), 1.0 / 3,
                6 * std::sqrt(4.0 / 45 / n))
        << parameters[i].key();
    for (const torch::Tensor& tensor : {weight, parameters[i + 1].value()}) {
      EXPECT_LE(tensor.abs().max().item<double>(), bound * (1 + 1e-6)) << parameters[i].key();
      EXPECT_GT(tensor.abs().max().item<double>(), 0.5 * bound) << parameters[i].key();
    }
  }
}

TEST(PlainNetworks, HaveTheChosenWidthAndClasses) {
  const auto sizes = [](const Classifier& model, const char* name) {
    return model.named_parameters()[name].sizes().vec();
  };
  const auto vgg = make_model("vgg11", {.classes = 5, .base_width = 8});
  EXPECT_EQ(sizes(*vgg, "features.0.weight"), (Sizes{8, 3, 3, 3}));
  EXPECT_EQ(sizes(*vgg, "features.18.weight"), (Sizes{64, 64, 3, 3}));
  EXPECT_EQ(sizes(*vgg, "classifier.0.weight"), (Sizes{512, 64 * 49}));
  EXPECT_EQ(sizes(*vgg, "classifier.6.weight"), (Sizes{5, 512}));

  const auto alexnet = make_model("alexnet", {.classes = 5, .base_width = 8});
  EXPECT_EQ(sizes(*alexnet, "features.0.weight"), (Sizes{8, 3, 11, 11}));
  EXPECT_EQ(sizes(*alexnet, "features.3.weight"), (Sizes{24, 8, 5, 5}));
  EXPECT_EQ(sizes(*alexnet, "classifier.1.weight"), (Sizes{512, 32 * 36}));
  EXPECT_EQ(sizes(*alexnet, "classifier.6.weight"), (Sizes{5, 512}));
}

// By its expectation, half of what goes in is dropped where nothing else is said.
TEST(PlainNetworks, DropHalfInTrainingAloneUnlessToldOtherwise) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor images = torch::rand({2, 3, 64, 64});
  for (const char* const name : {"alexnet", "vgg11"}) {
    for (const bool dropout : {true, false}) {
      ModelOptions options{.classes = 10, .base_width = 16};
      if (!dropout) {
        options.dropout = 0;
      }
      const auto model = make_model(name, options);
      EXPECT_NE(torch::equal(model->forward(images), model->forward(images)), dropout) << name;
      model->eval();
      EXPECT_TRUE(torch::equal(model->forward(images), model->forward(images))) << name;
    }
  }
}

}  // namespace
}  // namespace vision
