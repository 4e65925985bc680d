// A user's own way to average buckets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch/gradient_hook.h>

#include <map>
#include <optional>

#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;

// Averages as hora does without a hook, in two stages.
class PlainHook : public GradientHook {
 public:
  void begin(const GradientBucketView& bucket) override {
    handles_[bucket.name].emplace(allreduce_async_(
        bucket.context, bucket.values, {.name = bucket.name, .process_set = bucket.process_set}));
  }
  bool proceed(const GradientBucketView& bucket) override {
    stages_ += 1;
    auto& handle = handles_[bucket.name];
    if (!handle) return true;
    handle->wait();
    handle.reset();
    return false;
  }
  std::string describe() const override { return "plain"; }
  int stages() const { return stages_; }
  std::size_t buckets() const { return handles_.size(); }

 private:
  std::map<std::string, std::optional<TensorHandle>> handles_;
  int stages_ = 0;
};

class HookTest : public testing::TestWithParam<Compression> {
 protected:
  const Context world_ = init();
};

TEST_P(HookTest, AnAllreduceGivesTheBitsOfNone) {
  const auto hook = std::make_shared<PlainHook>();
  Training plain(world_, {.bucket_bytes = 1024, .compression = GetParam()});
  Training hooked(world_, {.bucket_bytes = 1024, .compression = GetParam(), .hook = hook});
  constexpr int kSteps = 3;
  for (int step = 0; step < kSteps; ++step) {
    plain.step(my_batch(world_, step));
    hooked.step(my_batch(world_, step));
  }
  expect_same_bits(hooked.network->parameters(), plain.network->parameters());
  EXPECT_GT(hook->buckets(), 1U);
  EXPECT_EQ(hook->stages(), 2 * kSteps * static_cast<int>(hook->buckets()));
}

TEST_P(HookTest, AbsentGradientsStayAbsentAndScalingWorks) {
  const auto a = torch::zeros({3}, torch::requires_grad());
  const auto b = torch::zeros({3}, torch::requires_grad());
  torch::optim::SGD sgd({a, b}, 1.0);
  DistributedOptimizer optimizer(
      world_, sgd, {{"a", a}, {"b", b}},
      {.compression = GetParam(), .hook = std::make_shared<PlainHook>()});
  GradScaler scaler(optimizer, {.initial_scale = 8.0});
  for (const bool finite : {true, false}) {
    optimizer.zero_grad();
    const float value =
        finite || world_.rank() != 0 ? 1.0F : std::numeric_limits<float>::infinity();
    scaler.scale((a * value).sum()).backward();
    EXPECT_EQ(scaler.step(), finite);
    scaler.update();
    EXPECT_FALSE(b.grad().defined());
  }
  EXPECT_EQ(a[0].item<float>(), -1.0F);
}

INSTANTIATE_TEST_SUITE_P(Wire, HookTest,
                         testing::Values(Compression::none, Compression::float16,
                                         Compression::bfloat16),
                         [](const auto& of) { return std::string(name_of(of.param)); });

class ThrowingHook : public PlainHook {
 public:
  explicit ThrowingHook(bool early) : early_(early) {}
  void begin(const GradientBucketView& bucket) override {
    if (early_ && armed) throw std::runtime_error("the hook's begin");
    PlainHook::begin(bucket);
  }
  bool proceed(const GradientBucketView& bucket) override {
    const bool done = PlainHook::proceed(bucket);
    if (!early_ && armed) throw std::runtime_error("the hook's proceed");
    return done;
  }
  bool armed = false;

 private:
  bool early_;
};

TEST(HookMisuse, WhatItThrowsComesOutAndTheNextStepIsRight) {
  const Context world = init();
  for (const bool early : {true, false}) {
    const auto hook = std::make_shared<ThrowingHook>(early);
    Training training(world, {.hook = hook});
    Training plain(world);
    hook->armed = true;
    training.optimizer.zero_grad();
    if (early) {
      EXPECT_THROW(training.backward(my_batch(world, 0)), std::runtime_error);
    } else {
      training.backward(my_batch(world, 0));
      EXPECT_THROW(training.optimizer.synchronize(), std::runtime_error);
    }
    hook->armed = false;
    training.optimizer.zero_grad();
    training.step(my_batch(world, 1));
    plain.step(my_batch(world, 1));
    expect_same_bits(training.network->parameters(), plain.network->parameters());
  }
}

TEST(HookMisuse, WhatItReplacesIsRefused) {
  const Context world = init();
  const auto refused = [&](DistributedOptimizerOptions options, const std::string& text) {
    options.hook = std::make_shared<PlainHook>();
    expect_error(ErrorCode::invalid_argument, HasSubstr(text), [&] { Training(world, options); });
  };
  refused({.op = ReduceOp::sum}, "hook and an op other than average");
  refused({.gradient_predivide_factor = 2.0}, "hook and gradient_predivide_factor");
  refused({.sharding = Sharding::state}, "hook and sharding");
}

TEST(HookMisuse, OneObjectServesOneOptimizerAtATime) {
  const Context world = init();
  const auto hook = std::make_shared<PlainHook>();
  for (int again = 0; again < 2; ++again) {
    Training training(world, {.hook = hook});
    expect_error(ErrorCode::invalid_argument, HasSubstr("hook serves another"),
                 [&] { Training(world, {.hook = hook}); });
    training.step(my_batch(world, 0));
  }
}

}  // namespace
}  // namespace hora::internal::test
