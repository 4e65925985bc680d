#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>
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

std::int64_t number_of_values(const Classifier& model) {
  std::int64_t values = 0;
  for (const auto& parameter : model.parameters()) {
    values += parameter.numel();
  }
  return values;
}

// He et al. 2015, table 6: 0.27, 0.46, 0.66, 0.85 and 1.7 million.
TEST(ResNet, ForCifarHasThePapersNumberOfValues) {
  const ModelOptions options{.classes = 10};
  EXPECT_EQ(number_of_values(*make_model("resnet20", options)), 269'722);
  EXPECT_EQ(number_of_values(*make_model("resnet32", options)), 464'154);
  EXPECT_EQ(number_of_values(*make_model("resnet44", options)), 658'586);
  EXPECT_EQ(number_of_values(*make_model("resnet56", options)), 853'018);
  EXPECT_EQ(number_of_values(*make_model("resnet110", options)), 1'727'962);
}

// The estimate of a deviation from n values has itself one of 1 / sqrt(2n).
TEST(ResNet, DrawsConvolutionsByTheirFanOut) {
  torch::manual_seed(hora::internal::test::generator()());
  for (const char* const name : {"resnet50", "resnet56"}) {
    const auto model = make_model(name, {});
    int convolutions = 0;
    for (const auto& item : model->named_modules()) {
      if (const auto* const convolution = item.value()->as<torch::nn::Conv2d>()) {
        const torch::Tensor& weight = convolution->weight;
        const auto n = static_cast<double>(weight.numel());
        const double fan_out = n / static_cast<double>(weight.size(1));
        const double expected = std::sqrt(2 / fan_out);
        EXPECT_NEAR(weight.std().item<double>(), expected, 6 * expected / std::sqrt(2 * n))
            << name << ", " << item.key();
        EXPECT_NEAR(weight.mean().item<double>(), 0, 6 * expected / std::sqrt(n))
            << name << ", " << item.key();
        ++convolutions;
      }
    }
    EXPECT_GT(convolutions, 50);
  }
}

TEST(ResNet, BatchNormBeginsAsNormalisation) {
  for (const auto& item : make_model("resnet18", {})->named_parameters()) {
    if (item.value().dim() == 1 && item.key() != "fc.bias") {
      const double expected = item.key().ends_with("weight") ? 1 : 0;
      EXPECT_TRUE(item.value().eq(expected).all().item<bool>()) << item.key();
    }
  }
}

TEST(ResNet, ZeroInitMakesEveryLastNormZeroAndNoOther) {
  struct Case {
    const char* name;
    const char* last;
    int blocks;
  };
  for (const Case& value : {Case{"resnet18", ".bn2.weight", 8}, Case{"resnet50", ".bn3.weight", 16},
                            Case{"resnet20", ".bn2.weight", 9}}) {
    const auto model = make_model(value.name, {.zero_init_residual = true});
    int zeros = 0;
    for (const auto& item : model->named_parameters()) {
      if (item.key().ends_with("weight")) {
        const bool last = item.key().ends_with(value.last);
        EXPECT_EQ(item.value().eq(0).all().item<bool>(), last) << value.name << ", " << item.key();
        zeros += last ? 1 : 0;
      }
    }
    EXPECT_EQ(zeros, value.blocks) << value.name;
  }
}

TEST(ResNet, WithZeroInitBlocksBeginAsTheIdentity) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(hora::internal::test::generator()());
  const torch::Tensor images = torch::randn({2, 3, 32, 32});
  for (const bool zero_init : {false, true}) {
    const auto model = make_model("resnet20", {.classes = 10, .zero_init_residual = zero_init});
    const torch::Tensor before = model->forward(images);
    for (auto& item : model->named_parameters()) {
      if (item.key().find("layer") != std::string::npos && item.value().dim() == 4) {
        item.value().normal_();
      }
    }
    EXPECT_EQ(torch::equal(model->forward(images), before), zero_init);
  }
}

TEST(ResNet, HasTheChosenStemAndWidth) {
  const auto sizes = [](const Classifier& model, const char* name) {
    return model.named_parameters()[name].sizes().vec();
  };
  const auto narrow = make_model("resnet50", {.classes = 7, .stem = Stem::cifar, .base_width = 8});
  EXPECT_EQ(sizes(*narrow, "conv1.weight"), (Sizes{8, 3, 3, 3}));
  EXPECT_EQ(sizes(*narrow, "layer1.0.conv3.weight"), (Sizes{32, 8, 1, 1}));
  EXPECT_EQ(sizes(*narrow, "layer4.2.conv2.weight"), (Sizes{64, 64, 3, 3}));
  EXPECT_EQ(sizes(*narrow, "fc.weight"), (Sizes{7, 256}));
  EXPECT_FALSE(narrow->named_modules().contains("maxpool"));

  const auto wide = make_model("resnet20", {.stem = Stem::imagenet, .base_width = 32});
  EXPECT_EQ(sizes(*wide, "conv1.weight"), (Sizes{32, 3, 7, 7}));
  EXPECT_EQ(sizes(*wide, "layer3.2.conv2.weight"), (Sizes{128, 128, 3, 3}));
  EXPECT_EQ(sizes(*wide, "fc.weight"), (Sizes{1000, 128}));
  EXPECT_TRUE(wide->named_modules().contains("maxpool"));
}

}  // namespace
}  // namespace vision
