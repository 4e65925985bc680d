#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch/top_k.h>

#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;

class TopKTest : public testing::TestWithParam<Compression> {
 protected:
  void wrap(const TopKOptions& options) {
    optimizer_.emplace(world_, sgd_,
                       torch::OrderedDict<std::string, torch::Tensor>{{"weight", weight_}},
                       DistributedOptimizerOptions{.compression = GetParam(),
                                                   .hook = std::make_shared<TopK>(options)});
  }
  torch::Tensor average_of(const torch::Tensor& own) {
    optimizer_->zero_grad();
    (weight_ * own).sum().backward();
    optimizer_->synchronize();
    return weight_.grad().clone();
  }
  torch::Tensor random(int rank) {
    torch::manual_seed(seed() + static_cast<std::uint64_t>(rank));
    return torch::randn({128});
  }

  const Context world_ = init();
  // A multiple of 64 bytes in every type: the bucket has no padding.
  const torch::Tensor weight_ = torch::zeros({128}, torch::requires_grad());
  torch::optim::SGD sgd_{{weight_}, 1.0};
  std::optional<DistributedOptimizer> optimizer_;
  const double tolerance_ = GetParam() == Compression::none ? 1e-5 : 0x1p-6;
};

TEST_P(TopKTest, AShareOfOneIsTheAverage) {
  wrap({.share = 1.0});
  torch::Tensor expected = random(world_.rank());
  allreduce_(world_, expected);
  EXPECT_TRUE(torch::allclose(average_of(random(world_.rank())), expected, tolerance_, tolerance_));
}

TEST_P(TopKTest, OnlyTheLargestTravel) {
  wrap({.share = 0.015, .error_feedback = false});
  torch::Tensor own = torch::full({128}, 0.5);
  own[world_.rank()] = -8.0;
  own[50] = 4.0;
  torch::Tensor expected = torch::zeros({128});
  expected[50] = 4.0;
  for (int rank = 0; rank < world_.size(); ++rank) expected[rank] = -8.0 / world_.size();
  for (int step = 0; step < 2; ++step) {
    EXPECT_TRUE(torch::allclose(average_of(own), expected, tolerance_));
  }
  EXPECT_TRUE(equals_root(world_, weight_.grad()));
}

TEST_P(TopKTest, ErrorFeedbackBringsEverythingInTime) {
  wrap({.share = 0.05});
  const auto own = random(world_.rank());
  torch::Tensor expected = own.clone();
  allreduce_(world_, expected);
  torch::Tensor sum = torch::zeros({128});
  constexpr int kSteps = 400;
  for (int step = 0; step < kSteps; ++step) sum += average_of(own);
  EXPECT_LT((sum / kSteps - expected).norm().item<double>(), 0.25 * expected.norm().item<double>());
}

TEST_P(TopKTest, NetworksLearnAlikeEverywhere) {
  expect_to_learn_alike(world_, {.bucket_bytes = 1024,
                                 .compression = GetParam(),
                                 .hook = std::make_shared<TopK>(TopKOptions{.share = 0.1})});
}

INSTANTIATE_TEST_SUITE_P(Wire, TopKTest, testing::Values(Compression::none, Compression::bfloat16),
                         [](const auto& of) { return std::string(name_of(of.param)); });

TEST(TopKMisuse, SharesOutOfRangeAreRefused) {
  for (const double share : {0.0, -0.5, 1.5, std::numeric_limits<double>::quiet_NaN()}) {
    expect_error(ErrorCode::invalid_argument, HasSubstr("expected more than 0 and at most 1"),
                 [&] { TopK({.share = share}); });
  }
}

}  // namespace
}  // namespace hora::internal::test
