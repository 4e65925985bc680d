#include "examples/vision/train/half_weights.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/seed.h"

namespace vision {
namespace {

struct NetworkImpl : torch::nn::Module {
  NetworkImpl() {
    register_module("convolution", convolution);
    register_module("norm", norm);
    register_module("linear", linear);
    register_module("again", linear);
  }
  torch::Tensor forward(const torch::Tensor& images) {
    const torch::Tensor features = norm(convolution(images)).relu();
    EXPECT_EQ(features.scalar_type(), convolution->weight.scalar_type());
    return linear(features.mean({2, 3}));
  }
  torch::nn::Conv2d convolution{torch::nn::Conv2dOptions(3, 4, 3).bias(false)};
  torch::nn::BatchNorm2d norm{4};
  torch::nn::Linear linear{4, 2};
};
TORCH_MODULE(Network);

class HalfWeightsTest : public testing::Test {
 protected:
  HalfWeightsTest() { torch::manual_seed(hora::internal::test::seed()); }

  void expect_masters() {
    const auto parameters = network_->named_parameters();
    EXPECT_TRUE(network_->convolution->weight.is_same(parameters["convolution.weight"]));
    EXPECT_TRUE(network_->linear->weight.is_same(parameters["linear.weight"]));
    EXPECT_TRUE(network_->linear->bias.is_same(parameters["linear.bias"]));
    for (const auto& parameter : parameters) {
      EXPECT_EQ(parameter.value().scalar_type(), torch::kFloat32) << parameter.key();
    }
  }

  Network network_;
};

TEST_F(HalfWeightsTest, ConvolutionsAndLinearsAloneAreConverted) {
  {
    const HalfWeights half(*network_, torch::kBFloat16);
    EXPECT_EQ(network_->convolution->weight.scalar_type(), torch::kBFloat16);
    EXPECT_FALSE(network_->convolution->bias.defined());
    EXPECT_EQ(network_->linear->weight.scalar_type(), torch::kBFloat16);
    EXPECT_EQ(network_->linear->bias.scalar_type(), torch::kBFloat16);
    EXPECT_EQ(network_->norm->weight.scalar_type(), torch::kFloat32);
    EXPECT_EQ(network_->norm->running_mean.scalar_type(), torch::kFloat32);
    for (const torch::Tensor& parameter : network_->parameters()) {
      EXPECT_EQ(parameter.scalar_type(), torch::kFloat32);
    }
  }
  expect_masters();
}

TEST_F(HalfWeightsTest, NestedTheOutermostConverts) {
  {
    const HalfWeights outer(*network_, torch::kBFloat16);
    { const HalfWeights inner(*network_, torch::kBFloat16); }
    EXPECT_EQ(network_->linear->weight.scalar_type(), torch::kBFloat16);
  }
  expect_masters();
}

TEST_F(HalfWeightsTest, AnExceptionLeavesTheMasters) {
  EXPECT_ANY_THROW({
    const HalfWeights half(*network_, torch::kBFloat16);
    network_->forward(torch::zeros({1, 2, 8, 8}, torch::kBFloat16));
  });
  expect_masters();
}

TEST_F(HalfWeightsTest, GradientsAreThoseOfTheConvertedWeights) {
  const torch::Tensor inputs = torch::randn({5, 4});
  {
    const HalfWeights half(*network_, torch::kBFloat16);
    network_->linear(inputs.to(torch::kBFloat16)).to(torch::kFloat32).square().sum().backward();
  }
  const torch::Tensor weight = network_->linear->weight.detach().to(torch::kBFloat16);
  const torch::Tensor bias = network_->linear->bias.detach().to(torch::kBFloat16);
  weight.requires_grad_();
  bias.requires_grad_();
  torch::nn::functional::linear(inputs.to(torch::kBFloat16), weight, bias)
      .to(torch::kFloat32)
      .square()
      .sum()
      .backward();
  EXPECT_EQ(network_->linear->weight.grad().scalar_type(), torch::kFloat32);
  EXPECT_TRUE(torch::equal(network_->linear->weight.grad(), weight.grad().to(torch::kFloat32)));
  EXPECT_TRUE(torch::equal(network_->linear->bias.grad(), bias.grad().to(torch::kFloat32)));
}

// What hora's hooks need to average behind the rest of backward.
TEST_F(HalfWeightsTest, GradientsArriveOneByOneLastLayerFirst) {
  std::vector<std::string> arrived;
  for (auto& parameter : network_->named_parameters()) {
    if (parameter.value().dim() == 1 || parameter.key() == "again.weight") continue;
    parameter.value().register_hook([&arrived, name = parameter.key()](const torch::Tensor& g) {
      EXPECT_EQ(g.scalar_type(), torch::kFloat32);
      arrived.push_back(name);
    });
  }
  torch::Tensor logits;
  {
    const HalfWeights half(*network_, torch::kBFloat16);
    logits = network_->forward(torch::randn({2, 3, 8, 8}).to(torch::kBFloat16));
  }
  logits.to(torch::kFloat32).square().sum().backward();
  EXPECT_EQ(arrived, (std::vector<std::string>{"linear.weight", "convolution.weight"}));
}

TEST_F(HalfWeightsTest, CopiesGoWithTheGraph) {
  c10::weak_intrusive_ptr<c10::TensorImpl> copy(
      torch::zeros({}).getIntrusivePtr());  // of the convolution's weight
  torch::Tensor logits;
  {
    const HalfWeights half(*network_, torch::kBFloat16);
    copy = c10::weak_intrusive_ptr<c10::TensorImpl>(network_->linear->weight.getIntrusivePtr());
    logits = network_->forward(torch::randn({2, 3, 8, 8}).to(torch::kBFloat16));
  }
  logits.to(torch::kFloat32).sum().backward();
  EXPECT_TRUE(copy.expired());
}

}  // namespace
}  // namespace vision
