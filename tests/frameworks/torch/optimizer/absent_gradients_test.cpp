// Parameters that backward does not reach, reaches twice, or reaches at a bad moment.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/frameworks/torch/network.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;

// Two parameters of three elements and an optimizer with learning rate 1; everything must hold in
// every type that gradients travel in.
class AbsentGradients : public testing::TestWithParam<Compression> {
 protected:
  void SetUp() override { wrap(); }

  void wrap() {
    optimizer_.reset();
    optimizer_ = std::make_unique<DistributedOptimizer>(
        world_, sgd_, torch::OrderedDict<std::string, torch::Tensor>{{"a", a_}, {"b", b_}},
        DistributedOptimizerOptions{.compression = GetParam()});
  }

  // A loss whose gradient is `value` everywhere.
  static torch::Tensor loss(const torch::Tensor& parameter, double value) {
    return (parameter * value).sum();
  }
  static testing::AssertionResult all_are(const torch::Tensor& tensor, double value) {
    if (!tensor.defined()) return testing::AssertionFailure() << "undefined";
    // Values and averages are rounded once each, to 8 bits and more; parameters add up a few.
    const double tolerance = GetParam() == Compression::none ? 1e-5 : 0x1p-6;
    if (torch::allclose(tensor, torch::full_like(tensor, value), tolerance))
      return testing::AssertionSuccess();
    return testing::AssertionFailure() << "expected " << value << ", got " << tensor;
  }
  double mean_of_ranks() const {
    return mean_over_ranks(world_, [](int rank) { return rank; });
  }

  const Context world_ = init();
  const torch::Tensor a_ = torch::zeros({3}, torch::requires_grad());
  const torch::Tensor b_ = torch::zeros({3}, torch::requires_grad());
  torch::optim::SGD sgd_{{a_, b_}, 1.0};
  std::unique_ptr<DistributedOptimizer> optimizer_;
};

TEST_P(AbsentGradients, WhereNoRankHasOneItStaysUndefined) {
  for (int step = 0; step < 2; ++step) {
    optimizer_->zero_grad();
    loss(a_, 1.0).backward();
    optimizer_->step();
    EXPECT_TRUE(a_.grad().defined());
    EXPECT_FALSE(b_.grad().defined());
  }
  EXPECT_TRUE(all_are(b_, 0.0));
}

TEST_P(AbsentGradients, TwoParametersMayBeGivenTheSameMemory) {
  const auto gradient = torch::full({3}, 1.0 + world_.rank());
  (a_.view(-1) + b_.view(-1)).backward(gradient);
  optimizer_->synchronize();
  EXPECT_TRUE(all_are(a_.grad(), 1.0 + mean_of_ranks()));
  EXPECT_TRUE(all_are(b_.grad(), 1.0 + mean_of_ranks()));
  EXPECT_TRUE(all_are(gradient, 1.0 + world_.rank())) << "the user's own tensor was written";
}

TEST_P(AbsentGradients, SecondBackwardBeforeStepThrowsAndTheFirstOneStays) {
  loss(a_, 1.0 + world_.rank()).backward();
  try {
    loss(a_, 100.0).backward();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_use);
    EXPECT_EQ(error.tensor(), "a");
    EXPECT_THAT(error.what(), HasSubstr("'a'"));
  }
  optimizer_->step();
  EXPECT_TRUE(all_are(a_, -1.0 - mean_of_ranks()));
}

TEST_P(AbsentGradients, SynchronizedGradientsAreTheUsersUntilStep) {
  loss(a_, 3.0).backward();
  optimizer_->synchronize();
  a_.mutable_grad().mul_(0.5);  // as clipping does
  optimizer_->step();           // must not average again
  EXPECT_TRUE(all_are(a_, -1.5));
  // The next step must average again.
  optimizer_->zero_grad();
  loss(a_, world_.rank()).backward();
  optimizer_->step();
  EXPECT_TRUE(all_are(a_, -1.5 - mean_of_ranks()));
}

TEST_P(AbsentGradients, GivenUpGradientsDisturbNothing) {
  loss(a_, 100.0).backward();
  optimizer_->zero_grad();
  EXPECT_FALSE(a_.grad().defined());
  loss(a_, 2.0).backward();
  optimizer_->step();
  EXPECT_TRUE(all_are(a_, -2.0));
}

TEST_P(AbsentGradients, FrozenAtConstructionAndUnfrozenLater) {
  a_.set_requires_grad(false);
  wrap();
  loss(b_, 1.0).backward();
  optimizer_->step();
  // With and without a call between that could have hooked it.
  for (const bool zero_first : {false, true}) {
    a_.set_requires_grad(false);
    if (!zero_first) optimizer_->zero_grad();
    a_.set_requires_grad(true);
    if (zero_first) optimizer_->zero_grad();
    (loss(a_, world_.rank()) + loss(b_, 1.0)).backward();
    optimizer_->step();
    EXPECT_TRUE(all_are(a_.grad(), mean_of_ranks())) << zero_first;
  }
}

TEST_P(AbsentGradients, FrozenOnOneRankOnly) {
  a_.set_requires_grad(world_.rank() == 0);
  if (world_.rank() == 0) loss(a_, 1.0).backward();
  loss(b_, 1.0).backward();
  optimizer_->step();
  EXPECT_TRUE(all_are(a_, -1.0 / world_.size()));
  EXPECT_TRUE(all_are(b_, -1.0));
}

TEST_P(AbsentGradients, UsersOwnHooksGoOnWorking) {
  int calls = 0;
  const auto position = a_.register_hook([&](torch::Tensor gradient) {
    calls += 1;
    return gradient * 2;
  });
  loss(a_, 1.0 + world_.rank()).backward();
  optimizer_->step();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(all_are(a_, -2.0 * (1.0 + mean_of_ranks())));
  a_.remove_hook(position);
}

TEST_P(AbsentGradients, GradientsAndParametersOutliveTheWrapper) {
  loss(a_, 1.0 + world_.rank()).backward();
  optimizer_->step();
  optimizer_.reset();
  EXPECT_TRUE(all_are(a_.grad(), 1.0 + mean_of_ranks()));
  // Its hooks are removed: nothing is averaged, and backward() may be called any number of times.
  a_.mutable_grad().reset();
  loss(a_, world_.rank()).backward();
  loss(a_, world_.rank()).backward();
  EXPECT_TRUE(all_are(a_.grad(), 2.0 * world_.rank()));
}

TEST_P(AbsentGradients, StatisticsCountSteps) {
  for (int step = 0; step < 3; ++step) {
    optimizer_->zero_grad();
    loss(a_, 1.0).backward();
    optimizer_->step();
  }
  EXPECT_EQ(optimizer_->statistics().steps, 3U);
  EXPECT_GT(optimizer_->statistics().waited.count(), 0);
  EXPECT_GT(optimizer_->statistics().in_flight.count(), 0);
  EXPECT_LE(optimizer_->statistics().hidden_share(), 1.0);
  optimizer_->reset_statistics();
  EXPECT_EQ(optimizer_->statistics().steps, 0U);
  EXPECT_EQ(optimizer_->statistics().waited.count(), 0);
}

INSTANTIATE_TEST_SUITE_P(, AbsentGradients,
                         testing::Values(Compression::none, Compression::float16,
                                         Compression::bfloat16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace hora::internal::test
