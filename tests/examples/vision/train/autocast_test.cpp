#include "examples/vision/train/autocast.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace vision {
namespace {

// Of a matrix product here and now.
torch::ScalarType product_type() {
  return torch::mm(torch::ones({2, 2}), torch::ones({2, 2})).scalar_type();
}

TEST(Autocast, LastsAsLongAsItLives) {
  EXPECT_EQ(product_type(), torch::kFloat32);
  {
    const Autocast autocast(torch::kCPU, torch::kBFloat16);
    EXPECT_EQ(product_type(), torch::kBFloat16);
  }
  EXPECT_EQ(product_type(), torch::kFloat32);
}

TEST(Autocast, NestedLeavesTheOuterOneAsItWas) {
  const Autocast outer(torch::kCPU, torch::kBFloat16);
  { const Autocast inner(torch::kCPU, torch::kBFloat16); }
  EXPECT_EQ(product_type(), torch::kBFloat16);
  { const Autocast inner(torch::kCUDA, torch::kHalf); }
  EXPECT_EQ(product_type(), torch::kBFloat16);
}

TEST(Autocast, EndsWithAnException) {
  EXPECT_THROW(
      {
        const Autocast autocast(torch::kCPU, torch::kBFloat16);
        throw std::runtime_error("no more images");
      },
      std::runtime_error);
  EXPECT_EQ(product_type(), torch::kFloat32);
}

TEST(Autocast, ConvertsWeightsAnewInEachStep) {
  const torch::Tensor weight = torch::ones({2, 2}).requires_grad_();
  for (const float value : {1.0F, 3.0F}) {
    const Autocast autocast(torch::kCPU, torch::kBFloat16);
    EXPECT_EQ(torch::mm(torch::ones({2, 2}), weight)[0][0].item<float>(), 2 * value);
    const torch::NoGradGuard no_grad;
    weight.fill_(3);
  }
}

}  // namespace
}  // namespace vision
