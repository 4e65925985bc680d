#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch/accuracy.h>
#include <torch/torch.h>

#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;

/// The target's class is among the k best where fewer than k classes have a larger output.
std::int64_t counted(const torch::Tensor& output, const torch::Tensor& target, std::int64_t k) {
  std::int64_t correct = 0;
  for (std::int64_t i = 0; i < output.size(0); ++i) {
    const auto own = output[i][target[i].item<std::int64_t>()];
    correct += output[i].gt(own).sum().item<std::int64_t>() < k ? 1 : 0;
  }
  return correct;
}

TEST(TopkCorrect, CountsWhatALoopCounts) {
  torch::manual_seed(seed());
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    const torch::Tensor output = torch::randn({53, 12}, type);
    const torch::Tensor target = torch::randint(12, {53}, torch::kLong);
    const torch::Tensor correct = topk_correct(output, target, {1, 5, 12, 3});
    ASSERT_EQ(correct.sizes(), torch::IntArrayRef({4}));
    ASSERT_EQ(correct.scalar_type(), torch::kLong);
    EXPECT_EQ(correct[0].item<std::int64_t>(), counted(output, target, 1));
    EXPECT_EQ(correct[1].item<std::int64_t>(), counted(output, target, 5));
    EXPECT_EQ(correct[2].item<std::int64_t>(), 53);
    EXPECT_EQ(correct[3].item<std::int64_t>(), counted(output, target, 3));
  }
}

TEST(TopkCorrect, TakesNarrowTypesFewClassesAndNoSamples) {
  const torch::Tensor output = torch::tensor({{0.0, 2.0, 1.0}, {3.0, 1.0, 2.0}});
  const torch::Tensor target = torch::tensor({2, 1}, torch::kLong);
  for (const auto type : {torch::kHalf, torch::kBFloat16, torch::kFloat}) {
    EXPECT_TRUE(topk_correct(output.to(type).requires_grad_(), target, {1, 2, 5})
                    .equal(torch::tensor({0, 1, 2}, torch::kLong)));
  }
  EXPECT_TRUE(topk_correct(output.slice(0, 0, 0), target.slice(0, 0, 0), {1, 5})
                  .equal(torch::zeros({2}, torch::kLong)));
  EXPECT_EQ(topk_correct(output, target, {}).numel(), 0);
}

TEST(TopkCorrect, RefusesOtherShapesAndTypes) {
  const torch::Tensor output = torch::zeros({4, 3});
  const torch::Tensor target = torch::zeros({4}, torch::kLong);
  const auto expect_refused = [](const std::string& text, const torch::Tensor& outputs,
                                 const torch::Tensor& targets,
                                 const std::vector<std::int64_t>& ks = {1}) {
    expect_error(ErrorCode::invalid_argument, HasSubstr(text),
                 [&] { topk_correct(outputs, targets, ks); });
  };
  expect_refused("target Long [3]", output, target.slice(0, 0, 3));
  expect_refused("target Float [4, 3]", output, output);
  expect_refused("output is Float [12]", output.flatten(), target);
  expect_refused("output is Long [4, 3]", output.to(torch::kLong), target);
  expect_refused("ks [1, 0]", output, target, {1, 0});
}

}  // namespace
}  // namespace hora::internal::test
