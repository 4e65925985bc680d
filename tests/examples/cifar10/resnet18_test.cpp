#include "examples/cifar10/resnet18.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace cifar10 {
namespace {

// The formula of examples/cifar10/reference/make_reference.py, which explains it.
std::vector<double> uniform(const std::string& name, std::int64_t count) {
  std::uint64_t state = 0xcbf29ce484222325U;
  for (const char character : name) {
    state = (state ^ static_cast<unsigned char>(character)) * 0x100000001b3U;
  }
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    value = std::ldexp(static_cast<double>(state >> 40U), -24);
  }
  return values;
}

void fill(const std::string& name, torch::Tensor tensor) {
  if (name.ends_with("num_batches_tracked")) {
    tensor.fill_(1);
    return;
  }
  double low = 0.5;
  double high = 1.5;
  if (name.ends_with("bias") || name.ends_with("running_mean")) {
    low = -0.25;
    high = 0.25;
  } else if (tensor.dim() > 1) {
    const auto fan_in = static_cast<double>(tensor[0].numel());
    high = std::pow(2.0, -std::round(0.5 * std::log2(fan_in / 6)));
    low = -high;
  }
  const std::vector<double> drawn = uniform(name, tensor.numel());
  auto* values = tensor.data_ptr<float>();
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    values[i] = static_cast<float>(low + (high - low) * drawn[i]);
  }
}

torch::Tensor formula_images(std::int64_t count) {
  const std::vector<double> drawn = uniform("images", count * 3 * 32 * 32);
  torch::Tensor images = torch::empty({count, 3, 32, 32});
  auto* values = images.data_ptr<float>();
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    values[i] = static_cast<float>(2 * drawn[i] - 1);
  }
  return images;
}

const nlohmann::json& reference() {
  static const nlohmann::json json =
      nlohmann::json::parse(std::ifstream(RESNET18_LOGITS));  // throws where the file is missing
  return json;
}

// LibTorch 1.13, which made the numbers, gives the same bits. Other versions and processors sum in
// another order: the rounding of float32, 6e-8, grows over 20 layers of sums of up to 4608
// products.
void expect_logits(const torch::Tensor& logits, const nlohmann::json& expected) {
  const auto rows = expected.get<std::vector<std::vector<double>>>();
  ASSERT_EQ(logits.sizes(),
            (std::vector<std::int64_t>{static_cast<std::int64_t>(rows.size()), 10}));
  double largest = 0;
  double largest_difference = 0;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    for (std::size_t column = 0; column < 10; ++column) {
      const auto found =
          logits[static_cast<std::int64_t>(row)][static_cast<std::int64_t>(column)].item<double>();
      largest = std::max(largest, std::abs(rows[row][column]));
      largest_difference = std::max(largest_difference, std::abs(found - rows[row][column]));
    }
  }
  std::cout << "largest difference: " << largest_difference / largest << " of the largest logit\n";
  EXPECT_LE(largest_difference, 1e-4 * largest);
}

class ResNet18Test : public testing::TestWithParam<std::pair<Stem, const char*>> {
 protected:
  ResNet18Test() {
    torch::set_num_threads(1);
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : model_->named_parameters()) {
      fill(parameter.key(), parameter.value());
    }
    for (const auto& buffer : model_->named_buffers()) {
      fill(buffer.key(), buffer.value());
    }
  }
  const nlohmann::json& expected() const { return reference().at(GetParam().second); }

  ResNet18 model_{10, GetParam().first};
};

template <class Dictionary>
std::vector<std::string> sorted_names(const Dictionary& tensors) {
  std::vector<std::string> names;
  for (const auto& item : tensors) {
    names.push_back(item.key());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> sorted(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  return names;
}

TEST_P(ResNet18Test, HasTorchvisionsNamesAndNumberOfValues) {
  const auto parameters = model_->named_parameters();
  EXPECT_EQ(parameters.size(), 62U);
  EXPECT_EQ(sorted_names(parameters),
            sorted(expected().at("parameters").get<std::vector<std::string>>()));
  EXPECT_EQ(sorted_names(model_->named_buffers()),
            sorted(expected().at("buffers").get<std::vector<std::string>>()));
  std::int64_t values = 0;
  for (const auto& parameter : model_->parameters()) {
    values += parameter.numel();
  }
  EXPECT_EQ(values, expected().at("values").get<std::int64_t>());
}

TEST_P(ResNet18Test, GivesTorchvisionsLogits) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor images = formula_images(4);
  model_->eval();
  expect_logits(model_(images), expected().at("evaluation"));
  model_->train();
  expect_logits(model_(images), expected().at("training"));
}

INSTANTIATE_TEST_SUITE_P(Stems, ResNet18Test,
                         testing::Values(std::pair(Stem::imagenet, "imagenet"),
                                         std::pair(Stem::cifar, "cifar")),
                         [](const auto& stem) { return std::string(stem.param.second); });

// torchvision draws convolutions with kaiming_normal_(fan_out, relu).
TEST(ResNet18, DrawsWeightsAsTorchvisionDoes) {
  torch::manual_seed(7);
  const ResNet18 model(10, Stem::cifar);
  const auto parameters = model->named_parameters();
  const torch::Tensor& weight = parameters["layer4.0.conv2.weight"];
  // 2.4 million values: the deviation of the estimate is 0.05 %.
  EXPECT_NEAR(weight.std().item<double>(), std::sqrt(2.0 / (512 * 9)), 1e-4);
  EXPECT_TRUE(parameters["layer4.0.bn2.weight"].eq(1).all().item<bool>());
  EXPECT_TRUE(parameters["layer4.0.bn2.bias"].eq(0).all().item<bool>());
  torch::manual_seed(7);
  EXPECT_TRUE(torch::equal(
      weight, ResNet18(10, Stem::cifar)->layer4->named_parameters()["0.conv2.weight"]));
}

}  // namespace
}  // namespace cifar10
