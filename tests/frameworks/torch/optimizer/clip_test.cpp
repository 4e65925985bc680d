// Clipping by the global norm; and the way that clips on GPUs, on tensors of the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch.h>

#include <cmath>
#include <limits>

#include "frameworks/torch/optimizer/optimizer.h"
#include "tests/frameworks/torch/host_reads.h"
#include "tests/frameworks/torch/network.h"
#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;

class Clip : public testing::TestWithParam<torch::ScalarType> {
 protected:
  const Context world_ = init();
};

TEST_P(Clip, EqualsClippingOfTheAverages) {
  const bool narrow = torch::elementSize(GetParam()) == 2;
  Training ours(world_, {}, make_sgd, GetParam());
  Training theirs(world_, {}, make_sgd, GetParam());
  for (int step = 0; step < 3; ++step) {
    const Batch batch = my_batch(world_, step, 2, GetParam());
    for (Training* training : {&ours, &theirs}) {
      training->optimizer.zero_grad();
      training->backward(batch);
    }
    constexpr double kMaxNorm = 0.25;
    const double norm = ours.optimizer.clip_grad_norm_(kMaxNorm);
    theirs.optimizer.synchronize();
    const double expected =
        torch::nn::utils::clip_grad_norm_(theirs.network->parameters(), kMaxNorm);
    EXPECT_NEAR(norm, expected, expected * (narrow ? 0x1p-6 : 1e-5));
    EXPECT_GT(norm, kMaxNorm) << "else nothing is clipped";
    expect_close(gradients_of(ours.network), gradients_of(theirs.network), narrow ? 0x1p-6 : 1e-5);
    ours.optimizer.step();
    theirs.optimizer.step();
  }
  for (const auto& parameter : ours.network->parameters()) {
    EXPECT_TRUE(equals_root(world_, parameter));
  }
}

TEST_P(Clip, BelowTheLimitNoBitChanges) {
  Training training(world_, {}, make_sgd, GetParam());
  training.backward(my_batch(world_, 0, 2, GetParam()));
  training.optimizer.synchronize();
  const auto before = gradients_of(training.network);
  EXPECT_GT(training.optimizer.clip_grad_norm_(1e6), 0.0);
  expect_same_bits(gradients_of(training.network), before);
}

INSTANTIATE_TEST_SUITE_P(Types, Clip,
                         testing::Values(torch::kFloat, torch::kDouble, torch::kBFloat16),
                         [](const auto& of) { return torch::toString(of.param); });

TEST(ClipMisuse, TheLimitIsPositive) {
  const Context world = init();
  Training training(world);
  for (const double limit : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    expect_error(ErrorCode::invalid_argument, HasSubstr("expected more than 0"),
                 [&] { training.optimizer.clip_grad_norm_(limit); });
  }
}

TEST(ClipMisuse, WhatIsNotFiniteShowsInTheNormEverywhere) {
  const Context world = init();
  const auto weight = torch::zeros({100}, torch::requires_grad());
  torch::optim::SGD sgd({weight}, 1.0);
  DistributedOptimizer optimizer(world, sgd, {{"weight", weight}});
  const bool last = world.rank() + 1 == world.size();
  (weight * (last ? std::numeric_limits<float>::infinity() : 1.0F)).sum().backward();
  EXPECT_FALSE(std::isfinite(optimizer.clip_grad_norm_(1.0)));
}

class DeviceClip : public testing::Test {
 protected:
  /// Gradients of several types, one with gaps; `like`: the same on ranks of one number.
  static std::vector<at::Tensor> gradients(std::uint64_t like) {
    torch::manual_seed(seed() + like);
    return {torch::randn({7, 5}),
            torch::randn({3}, torch::kDouble),
            torch::randn({40, 6}).to(torch::kHalf),
            torch::randn({9, 4}).slice(1, 0, 4, 2),
            torch::randn({33}).to(torch::kBFloat16),
            torch::randn({0})};
  }
  double clip(const std::vector<at::Tensor>& tensors, bool shared, double max_norm) {
    return internal::clip(peers_, "clip", tensors, shared, max_norm, at::Device(torch::kCPU));
  }
  void expect_as_on_host(bool shared, std::uint64_t like, double max_norm) {
    const auto expected = gradients(like);
    const auto actual = gradients(like);
    const double norm = internal::clip(peers_, "norm", expected, shared, max_norm, std::nullopt);
    EXPECT_NEAR(clip(actual, shared, max_norm), norm, 1e-6 * norm);
    for (std::size_t i = 0; i < actual.size(); ++i) {
      const double unit = torch::elementSize(actual[i].scalar_type()) == 2 ? 0x1p-7 : 1e-6;
      EXPECT_TRUE(torch::allclose(actual[i], expected[i], unit, 0.0)) << i;
    }
  }

  const Context world_ = init();
  const Peers peers_ = peers_of(world_, kWorld);
};

TEST_F(DeviceClip, GivesWhatTheHostGives) {
  for (const double max_norm : {0.25, 1e6}) {
    expect_as_on_host(true, 0, max_norm);
    expect_as_on_host(false, static_cast<std::uint64_t>(world_.rank()), max_norm);
  }
  EXPECT_EQ(clip({}, true, 1.0), 0.0);
}

TEST_F(DeviceClip, BelowTheLimitNoBitChangesAndRanksAgreeToTheBit) {
  const auto tensors = gradients(0);
  const auto before = copies_of(tensors);
  const double norm = clip(tensors, true, 1e6);
  EXPECT_TRUE(equals_root(world_, torch::full({1}, norm, torch::kDouble)));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(torch::equal(tensors[i], before[i])) << i;
  }
  clip(tensors, true, 0.25);
  for (const at::Tensor& tensor : tensors) EXPECT_TRUE(equals_root(world_, tensor));
}

// On a GPU each read waits for it; the sums come in one copy.
TEST_F(DeviceClip, TheHostReadsNoSingleValue) {
  for (const bool shared : {true, false}) {
    const auto tensors = gradients(0);
    const HostReads reads;
    clip(tensors, shared, 0.25);
    EXPECT_EQ(reads.count(), 0);
  }
}

TEST_F(DeviceClip, WhatIsNotFiniteShowsEverywhere) {
  auto tensors = gradients(static_cast<std::uint64_t>(world_.rank()));
  if (world_.rank() + 1 == world_.size()) {
    tensors[0][2][2] = std::numeric_limits<float>::quiet_NaN();
  }
  EXPECT_TRUE(std::isnan(clip(tensors, false, 1.0)));
  for (const at::Tensor& tensor : tensors) EXPECT_TRUE(tensor.isnan().all().item<bool>());
}

TEST_F(DeviceClip, ReadsThePartsOfRanksThatHaveJoined) {
  if (world_.rank() == 0) {
    join(world_);
    return;
  }
  const auto tensors = gradients(0);
  double squares = 0.0;
  for (const at::Tensor& tensor : tensors) {
    squares += std::pow(tensor.to(torch::kDouble).norm().item<double>(), 2);
  }
  const auto before = copies_of(tensors);
  const double norm = clip(tensors, true, 0.25);
  EXPECT_NEAR(norm, std::sqrt(squares), 1e-6 * norm);
  EXPECT_TRUE(torch::allclose(tensors[0], before[0] * (0.25 / norm)));
  join(world_);
}

}  // namespace
}  // namespace hora::internal::test
