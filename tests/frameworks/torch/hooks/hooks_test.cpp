#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch/gradient_hook.h>

#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;

class PowerSgdTest : public testing::Test {
 protected:
  // A matrix and a vector, whose gradients the test gives.
  void wrap(const PowerSgdOptions& options) {
    optimizer_.emplace(world_, sgd_, Named{{"matrix", matrix_}, {"vector", vector_}},
                       DistributedOptimizerOptions{.hook = std::make_shared<PowerSgd>(options)});
  }
  void synchronize(const torch::Tensor& of_matrix, const torch::Tensor& of_vector) {
    optimizer_->zero_grad();
    ((matrix_ * of_matrix).sum() + (vector_ * of_vector).sum()).backward();
    optimizer_->synchronize();
  }
  /// Sum of the averages of `steps` steps with the same gradients.
  torch::Tensor sum_of(const torch::Tensor& of_matrix, int steps) {
    torch::Tensor sum = torch::zeros_like(of_matrix);
    for (int step = 0; step < steps; ++step) {
      synchronize(of_matrix, torch::zeros({7}));
      sum += matrix_.grad();
    }
    return sum;
  }
  torch::Tensor random(torch::IntArrayRef shape, int salt, int rank) {
    torch::manual_seed(seed() + static_cast<std::uint64_t>(100 * salt + rank));
    return torch::randn(shape);
  }
  torch::Tensor mean(torch::IntArrayRef shape, int salt) {
    torch::Tensor sum = torch::zeros(shape);
    for (int rank = 0; rank < world_.size(); ++rank) sum += random(shape, salt, rank);
    return sum / world_.size();
  }

  const Context world_ = init();
  const torch::Tensor matrix_ = torch::zeros({20, 6, 5}, torch::requires_grad());
  const torch::Tensor vector_ = torch::zeros({7}, torch::requires_grad());
  torch::optim::SGD sgd_{{matrix_, vector_}, 1.0};
  std::optional<DistributedOptimizer> optimizer_;
};

// With gradients of rank 2, in the same column space on all ranks.
TEST_F(PowerSgdTest, AGradientOfThatRankOrLessArrivesWhole) {
  for (const int rank : {2, 4}) {  // with 4, rows of P depend on others, and become zero
    wrap({.rank = rank, .error_feedback = false});
    const auto left = random({20, 2}, 1, 0);
    const auto own = torch::matmul(left, random({2, 30}, 2, world_.rank())).view({20, 6, 5});
    const auto expected = allreduce(world_, own);
    // One power iteration finds the space, for it is all there is. The first starts at random,
    // maybe almost orthogonal to it, which costs digits; the second starts in it.
    for (int step = 0; step < 2; ++step) synchronize(own, random({7}, 3, world_.rank()));
    EXPECT_TRUE(torch::allclose(matrix_.grad(), expected, 1e-4, 1e-4));
    EXPECT_TRUE(torch::allclose(vector_.grad(), mean({7}, 3), 1e-5, 1e-6));
    EXPECT_TRUE(equals_root(world_, matrix_.grad()));
  }
}

TEST_F(PowerSgdTest, ErrorFeedbackBringsEverythingInTime) {
  wrap({.rank = 1});
  const auto own = random({20, 6, 5}, 4, world_.rank());
  const auto expected = mean({20, 6, 5}, 4);
  torch::Tensor sum = sum_of(own, 1);
  const double one = (sum - expected).norm().item<double>();
  EXPECT_GT(one, 0.3 * expected.norm().item<double>()) << "rank 1 cannot hold it";
  sum += sum_of(own, 299);
  EXPECT_LT((sum / 300 - expected).norm().item<double>(), 0.2 * one);
}

TEST_F(PowerSgdTest, WithoutFeedbackTheRestIsLost) {
  wrap({.rank = 1, .error_feedback = false});
  const torch::Tensor sum = sum_of(random({20, 6, 5}, 4, world_.rank()), 50);
  // Once the power iteration has settled, each step gives the same best matrix of rank 1.
  const auto singular = std::get<1>(torch::svd(matrix_.grad().view({20, 30})));
  EXPECT_LT(singular[1].item<double>(), 1e-4 * singular[0].item<double>());
  const auto expected = mean({20, 6, 5}, 4);
  EXPECT_GT((sum / 50 - expected).norm().item<double>(), 0.3 * expected.norm().item<double>());
}

TEST_F(PowerSgdTest, ItBeginsAfterTheFirstSteps) {
  wrap({.rank = 1, .start_step = 2});
  for (int step = 0; step < 3; ++step) {
    synchronize(random({20, 6, 5}, 10 + step, world_.rank()), torch::ones({7}));
    const bool whole = torch::allclose(matrix_.grad(), mean({20, 6, 5}, 10 + step), 1e-5, 1e-6);
    EXPECT_EQ(whole, step < 2) << "step " << step;
  }
}

TEST_F(PowerSgdTest, NetworksLearnAlikeEverywhere) {
  for (const bool warm_start : {true, false}) {
    expect_to_learn_alike(
        world_,
        {.bucket_bytes = 1024,
         .hook = std::make_shared<PowerSgd>(PowerSgdOptions{.rank = 2, .warm_start = warm_start})});
  }
}

TEST_F(PowerSgdTest, OptionsOutOfRangeAreRefused) {
  expect_error(ErrorCode::invalid_argument, HasSubstr("rank is 0; expected 1 or more"),
               [] { PowerSgd({.rank = 0}); });
  expect_error(ErrorCode::invalid_argument, HasSubstr("start_step is -1; expected 0 or more"),
               [] { PowerSgd({.start_step = -1}); });
  for (const double share : {0.0, -0.5, 1.5, std::numeric_limits<double>::quiet_NaN()}) {
    expect_error(ErrorCode::invalid_argument, HasSubstr("expected more than 0 and at most 1"),
                 [&] { TopK({.share = share}); });
  }
}

class TopKTest : public testing::TestWithParam<Compression> {
 protected:
  // 128 elements: a multiple of 64 bytes in every type, so that the bucket has no padding.
  void wrap(const TopKOptions& options) {
    one_.emplace(world_,
                 DistributedOptimizerOptions{.compression = GetParam(),
                                             .hook = std::make_shared<TopK>(options)},
                 128);
  }
  torch::Tensor average_of(const torch::Tensor& own) {
    one_->optimizer.zero_grad();
    (one_->weight * own).sum().backward();
    one_->optimizer.synchronize();
    return one_->weight.grad().clone();
  }
  torch::Tensor own() const {
    torch::manual_seed(seed() + static_cast<std::uint64_t>(world_.rank()));
    return torch::randn({128});
  }

  const Context world_ = init();
  std::optional<OneWeight> one_;
  const double tolerance_ = GetParam() == Compression::none ? 1e-5 : 0x1p-6;
};

TEST_P(TopKTest, AShareOfOneIsTheAverage) {
  wrap({.share = 1.0});
  EXPECT_TRUE(torch::allclose(average_of(own()), allreduce(world_, own()), tolerance_, tolerance_));
}

TEST_P(TopKTest, OnlyTheLargestTravel) {
  wrap({.share = 0.015, .error_feedback = false});
  torch::Tensor gradient = torch::full({128}, 0.5);
  gradient[world_.rank()] = -8.0;
  gradient[50] = 4.0;
  torch::Tensor expected = torch::zeros({128});
  expected[50] = 4.0;
  for (int rank = 0; rank < world_.size(); ++rank) expected[rank] = -8.0 / world_.size();
  for (int step = 0; step < 2; ++step) {
    EXPECT_TRUE(torch::allclose(average_of(gradient), expected, tolerance_));
  }
  EXPECT_TRUE(equals_root(world_, one_->weight.grad()));
}

TEST_P(TopKTest, ErrorFeedbackBringsEverythingInTime) {
  wrap({.share = 0.05});
  const auto expected = allreduce(world_, own());
  torch::Tensor sum = torch::zeros({128});
  constexpr int kSteps = 400;
  for (int step = 0; step < kSteps; ++step) sum += average_of(own());
  EXPECT_LT((sum / kSteps - expected).norm().item<double>(), 0.25 * expected.norm().item<double>());
}

TEST_P(TopKTest, NetworksLearnAlikeEverywhere) {
  expect_to_learn_alike(world_, {.bucket_bytes = 1024,
                                 .compression = GetParam(),
                                 .hook = std::make_shared<TopK>(TopKOptions{.share = 0.1})});
}

INSTANTIATE_TEST_SUITE_P(Wire, TopKTest, testing::Values(Compression::none, Compression::bfloat16),
                         [](const auto& of) { return std::string(name_of(of.param)); });

}  // namespace
}  // namespace hora::internal::test
