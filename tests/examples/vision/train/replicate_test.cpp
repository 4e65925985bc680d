// data_parallel between scatter and gather, which need GPUs: two replicas on the CPU,
// with LibTorch's CUDA build, as the others lack a header that data_parallel.h includes.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/parallel/data_parallel.h>
#include <torch/torch.h>

#include <memory>
#include <vector>

#include "examples/vision/train/precision.h"
#include "tests/support/seed.h"

namespace vision {
namespace {

class ReplicateTest : public testing::TestWithParam<OptLevel> {
 protected:
  ReplicateTest()
      : precision_(torch::kCPU, {.opt_level = GetParam()}), threads_(at::get_num_threads()) {
    at::set_num_threads(2);
    torch::manual_seed(hora::internal::test::seed());
    images_ = torch::randn({6, 3, 8, 8});
    model_ = make_model("resnet20", {.classes = 3, .base_width = 4});
  }
  ~ReplicateTest() override { at::set_num_threads(threads_); }

  torch::Tensor logits_of_replicas() const {
    const auto replicated = std::make_shared<ReplicatedModel>(model_, precision_);
    const std::vector<torch::Device> devices(2, torch::kCPU);
    auto replicas = torch::nn::parallel::replicate(replicated, devices);
    const auto outputs = torch::nn::parallel::parallel_apply(replicas, images_.chunk(2), devices);
    replicated->keep_statistics();
    return torch::cat(outputs);
  }

  const Precision precision_;
  const int threads_;
  torch::Tensor images_;
  std::shared_ptr<Classifier> model_;
};

TEST_P(ReplicateTest, GradientsAreTheSumOfTheReplicasAndStatisticsTheFirstOnes) {
  const auto expected = std::dynamic_pointer_cast<Classifier>(model_->clone());
  const auto chunks = images_.chunk(2);
  torch::Tensor logits = precision_.logits(*expected, chunks[0]);
  const auto only_first = std::dynamic_pointer_cast<Classifier>(expected->clone());
  logits = torch::cat({logits, precision_.logits(*expected, chunks[1])});
  logits.square().sum().backward();

  for (int step = 0; step < 2; ++step) {  // the second begins with the first one's statistics
    const torch::Tensor given = logits_of_replicas();
    EXPECT_EQ(given.scalar_type(), torch::kFloat32);
    EXPECT_TRUE(torch::equal(given, logits)) << "in step " << step;
    if (step > 0) break;
    given.square().sum().backward();
    for (const auto& parameter : model_->named_parameters()) {
      EXPECT_TRUE(torch::allclose(parameter.value().grad(),
                                  expected->named_parameters()[parameter.key()].grad(), 1e-3, 1e-4))
          << parameter.key();
    }
    for (const auto& buffer : model_->named_buffers()) {
      EXPECT_TRUE(torch::equal(buffer.value(), only_first->named_buffers()[buffer.key()]))
          << buffer.key();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, ReplicateTest, testing::Values(OptLevel::O0, OptLevel::O1, OptLevel::O2),
                         [](const testing::TestParamInfo<OptLevel>& test) {
                           return "O" + std::to_string(static_cast<int>(test.param));
                         });

}  // namespace
}  // namespace vision
