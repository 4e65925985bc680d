// What replicas do for data_parallel; replicate_test.cpp has them within LibTorch's functions.
#include "examples/vision/train/data_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/torch.h>

#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/support/seed.h"

namespace vision {
namespace {

class DataParallelTest : public testing::TestWithParam<OptLevel> {
 protected:
  DataParallelTest() : precision_(torch::kCPU, {.opt_level = GetParam()}) {
    torch::manual_seed(hora::internal::test::seed());
    images_ = torch::randn({6, 3, 8, 8});
    model_ = make_model("resnet20", {.classes = 3, .base_width = 4});
    replicated_ = std::make_shared<ReplicatedModel>(model_, precision_);
  }

  /// Each replica's logits of its half of the images, on a thread of its own.
  std::vector<torch::Tensor> logits_of_replicas() {
    replicated_->begin_step();
    const auto halves = images_.chunk(2);
    std::vector<torch::Tensor> logits(2);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const auto replica = std::dynamic_pointer_cast<ReplicatedModel>(
          replicated_->clone(torch::Device(torch::kCPU)));
      threads.emplace_back(
          [&logits, &halves, replica, i] { logits[i] = replica->forward(halves[i]); });
    }
    for (std::thread& thread : threads) thread.join();
    replicated_->end_step();
    return logits;
  }

  const Precision precision_;
  torch::Tensor images_;
  std::shared_ptr<Classifier> model_;
  std::shared_ptr<ReplicatedModel> replicated_;
};

TEST_P(DataParallelTest, StatisticsAreTheFirstReplicasAndGoOn) {
  const auto expected = std::dynamic_pointer_cast<Classifier>(model_->clone());
  const auto halves = images_.chunk(2);
  for (int step = 0; step < 2; ++step) {
    const auto logits = logits_of_replicas();
    const auto other = std::dynamic_pointer_cast<Classifier>(expected->clone());
    EXPECT_TRUE(torch::equal(logits[0], precision_.logits(*expected, halves[0])));
    EXPECT_TRUE(torch::equal(logits[1], precision_.logits(*other, halves[1])));
    EXPECT_TRUE(logits[1].requires_grad());
    for (const auto& buffer : model_->named_buffers()) {
      EXPECT_TRUE(torch::equal(buffer.value(), expected->named_buffers()[buffer.key()]))
          << buffer.key() << " in step " << step;
    }
  }
}

TEST_P(DataParallelTest, EvaluationRecordsNothingAndKeepsStatistics) {
  model_->eval();
  const auto before = std::dynamic_pointer_cast<Classifier>(model_->clone());
  const torch::NoGradGuard no_grad;
  for (const torch::Tensor& logits : logits_of_replicas()) {
    EXPECT_FALSE(logits.requires_grad());
  }
  for (const auto& buffer : model_->named_buffers()) {
    EXPECT_TRUE(torch::equal(buffer.value(), before->named_buffers()[buffer.key()]));
  }
}

INSTANTIATE_TEST_SUITE_P(, DataParallelTest,
                         testing::Values(OptLevel::O0, OptLevel::O1, OptLevel::O2),
                         [](const testing::TestParamInfo<OptLevel>& test) {
                           return "O" + std::to_string(static_cast<int>(test.param));
                         });

TEST(AllGpus, WithoutOneSaysWhatToDo) {
  if (torch::cuda::device_count() > 0) GTEST_SKIP() << "there are GPUs";
  EXPECT_THAT([] { all_gpus(); },
              testing::ThrowsMessage<std::runtime_error>(testing::AllOf(
                  testing::HasSubstr("--mode data-parallel trains with all GPUs of one process, "
                                     "and this one sees none"),
                  testing::HasSubstr("--mode single"))));
}

}  // namespace
}  // namespace vision
