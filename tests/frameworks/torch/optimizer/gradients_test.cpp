// Gradients: absent, added up, compressed, clipped, averaged by a hook of the user's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch.h>
#include <hora/torch/gradient_hook.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "frameworks/torch/optimizer/optimizer.h"
#include "frameworks/torch/tensor_view.h"
#include "frameworks/torch/wire_type.h"
#include "tests/frameworks/torch/averaging_model.h"
#include "tests/frameworks/torch/host_reads.h"
#include "tests/frameworks/torch/network.h"
#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;

// Parameters that backward does not reach, reaches twice, or reaches at a bad moment.

// Everything must hold in every type that gradients travel in.
class AbsentGradients : public WorldTest, public testing::WithParamInterface<Compression> {
 protected:
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
    return testing::AssertionFailure() << "expected " << value << ", got " << tensor[0];
  }

  TwoWeights two_{world_, {.compression = GetParam()}, 20000};  // large enough to stay in place
  std::optional<DistributedOptimizer>& optimizer_ = two_.optimizer;
  const torch::Tensor a_ = two_.a, b_ = two_.b;
};

TEST_P(AbsentGradients, CountAsZeroAndStayUndefinedWhereNoRankHasOne) {
  a_.set_requires_grad(world_.rank() == 0);
  for (int step = 0; step < 2; ++step) {
    optimizer_->zero_grad();
    if (world_.rank() == 0) loss(a_, 1.0).backward();
    optimizer_->step();
    EXPECT_TRUE(all_are(a_.grad(), 1.0 / world_.size()));
    EXPECT_FALSE(b_.grad().defined());
  }
  const OptimizerStatistics statistics = optimizer_->statistics();
  EXPECT_EQ(statistics.steps, 2U);
  EXPECT_GT(statistics.waited.count(), 0);
  EXPECT_GT(statistics.in_flight.count(), 0);
  EXPECT_LE(statistics.hidden_share(), 1.0);
  optimizer_->reset_statistics();
  EXPECT_EQ(optimizer_->statistics().steps, 0U);
}

TEST_P(AbsentGradients, TwoParametersMayBeGivenTheSameMemory) {
  const auto gradient = torch::full({20000}, own_);
  for (const bool is_users : {true, false}) {
    optimizer_->zero_grad();
    const torch::Tensor both = a_.view(-1) + b_.view(-1);
    is_users ? both.backward(gradient) : (both * gradient).sum().backward();
    optimizer_->synchronize();
    EXPECT_TRUE(all_are(a_.grad(), mean_));
    EXPECT_TRUE(all_are(b_.grad(), mean_));
    EXPECT_TRUE(all_are(gradient, own_)) << "the user's own tensor was written";
  }
}

// A user's own hook goes on working, and leaves those of the optimizer.
TEST_P(AbsentGradients, SecondBackwardBeforeStepThrowsAndTheFirstOneStays) {
  a_.register_hook([](const torch::Tensor& gradient) { return gradient * 2; });
  loss(a_, own_).backward();
  const Error error =
      expect_error(ErrorCode::invalid_use, HasSubstr("'a'"), [&] { loss(a_, 100.0).backward(); });
  EXPECT_EQ(error.tensor(), "a");
  optimizer_->step();
  EXPECT_TRUE(all_are(a_, -2.0 * mean_));
}

TEST_P(AbsentGradients, GradientsAndParametersOutliveTheWrapper) {
  loss(a_, own_).backward();
  optimizer_->step();
  optimizer_.reset();
  EXPECT_TRUE(all_are(a_.grad(), mean_));
  // Its hooks are removed: nothing is averaged, and backward() may be called any number of times.
  a_.mutable_grad().reset();
  loss(a_, own_).backward();
  loss(a_, own_).backward();
  EXPECT_TRUE(all_are(a_.grad(), 2.0 * own_));
}

INSTANTIATE_TEST_SUITE_P(, AbsentGradients, kCompressions, compression_of);

// Gradients added up over several backward passes before they are averaged.

class Accumulation : public WorldTest {
 protected:
  void backward(double value) { (two_.a * value).sum().backward(); }
  double gradient() const { return two_.a.grad()[0].item<double>(); }
  void expect_misuse(const std::string& text, const std::function<void()>& misuse) {
    expect_error(ErrorCode::invalid_use, HasSubstr(text), misuse);
  }

  TwoWeights two_{world_, {.compare_ranks = false}};
  DistributedOptimizer& optimizer_ = *two_.optimizer;
};

TEST_F(Accumulation, PassesAreCountedAndCanBeChangedBetweenSteps) {
  expect_error(ErrorCode::invalid_argument, HasSubstr("is 0; expected 1 or more"),
               [&] { optimizer_.set_backward_passes_per_step(0); });
  optimizer_.set_backward_passes_per_step(2);
  const auto before = operations();
  backward(own_);
  EXPECT_EQ(operations(), before) << "something travels before the last pass";
  expect_misuse("between backward() and step()",
                [&] { optimizer_.set_backward_passes_per_step(1); });
  backward(own_);
  expect_misuse("more than 2 times (backward_passes_per_step)", [&] { backward(1.0); });
  optimizer_.step();
  EXPECT_TRUE(operations() > before || world_.size() == 1);
  EXPECT_DOUBLE_EQ(gradient(), 2 * mean_);
}

TEST_F(Accumulation, GuardsNestMoveAndEndInAnyOrder) {
  const auto before = operations();
  {
    auto outer = std::make_unique<DistributedOptimizer::Guard>(optimizer_.no_sync());
    auto inner = std::make_unique<DistributedOptimizer::Guard>(optimizer_.no_sync());
    outer.reset();
    backward(own_);
    const DistributedOptimizer::Guard moved = std::move(*inner);
    inner.reset();
    backward(own_);
    { const auto innermost = optimizer_.no_sync(); }
    backward(own_);
  }
  EXPECT_EQ(operations(), before);
  backward(own_);
  optimizer_.step();
  EXPECT_DOUBLE_EQ(gradient(), 4 * mean_);
}

TEST_F(Accumulation, AGuardMayOutliveItsOptimizer) {
  std::vector<DistributedOptimizer::Guard> guards;
  guards.push_back(optimizer_.no_sync());
  guards.push_back(optimizer_.skip_synchronize());
  { const auto moved = std::move(optimizer_); }
  two_.optimizer.emplace(world_, two_.sgd,
                         Named{{"a", two_.a}, {"b", two_.b}});  // does not count them
  backward(own_);
  two_.optimizer->step();
  guards.clear();
  EXPECT_DOUBLE_EQ(gradient(), mean_);
}

TEST_F(Accumulation, StepUnderSkipSynchronizeWantsAverages) {
  backward(own_);
  {
    const auto outer = optimizer_.skip_synchronize();
    { const auto inner = optimizer_.skip_synchronize(); }
    expect_misuse("call synchronize() first", [&] { optimizer_.step(); });
  }
  optimizer_.synchronize();
  two_.a.mutable_grad().mul_(0.5);
  const auto before = operations();
  {
    const auto guard = optimizer_.skip_synchronize();
    optimizer_.step();
  }
  EXPECT_EQ(operations(), before);
  EXPECT_DOUBLE_EQ(two_.a[0].item<double>(), -0.5 * mean_);
}

// Gradients that travel in another type than their parameter's.

class CompressionTest : public WorldTest, public testing::WithParamInterface<Compression> {
 protected:
  torch::ScalarType wire(torch::ScalarType type) const {
    return to_scalar_type(wire_type(GetParam(), *to_data_type(type)));
  }

  // Any rank's, known to all. What a float32 holds: LibTorch rounds float64 by way of it.
  static torch::Tensor gradient_of(int rank, int step, const torch::Tensor& parameter) {
    torch::manual_seed(seed() + 1000 * static_cast<std::uint64_t>(step) +
                       static_cast<std::uint64_t>(rank));
    return torch::randn(parameter.sizes(), torch::kFloat).to(parameter.scalar_type());
  }
};

TEST_P(CompressionTest, AveragesAreThoseOfTheWireTypeToTheBit) {
  Named named;
  for (const auto type : {torch::kHalf, torch::kDouble, torch::kBFloat16, torch::kFloat}) {
    const std::string name = torch::toString(type);
    named.insert("rows " + name, torch::zeros({7, 5}, type));
    named.insert("columns " + name, torch::zeros({5, 7}, type).t());
  }
  // A bucket of one cache line, of a few, and of enough to be written past the caches.
  for (const std::int64_t elements : {3, 1000, 300001}) {
    named.insert(std::to_string(elements), torch::zeros({elements}));
  }
  for (auto& item : named) item.value().set_requires_grad(true);
  torch::optim::SGD sgd(named.values(), 1.0);
  DistributedOptimizer optimizer(world_, sgd, named, {.compression = GetParam()});
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    for (const torch::Tensor& parameter : named.values()) {
      parameter.backward(gradient_of(world_.rank(), step, parameter));
    }
    optimizer.synchronize();
    for (const auto& item : named) {
      const torch::Tensor& parameter = item.value();
      const auto expected = average_model(world_, [&](int rank) {
        return gradient_of(rank, step, parameter).to(wire(parameter.scalar_type()));
      });
      ASSERT_EQ(parameter.grad().scalar_type(), parameter.scalar_type()) << item.key();
      EXPECT_EQ(parameter.grad().strides(), parameter.strides()) << item.key();
      EXPECT_TRUE(torch::equal(parameter.grad(), expected.to(parameter.scalar_type())))
          << item.key() << ", step " << step;
    }
    optimizer.step();
  }
}

TEST_P(CompressionTest, GradientsStayWhereTheyAreFromStepToStep) {
  Training training(world_, {.compression = GetParam()});
  Training expected(world_, {.compression = GetParam()});
  std::map<std::size_t, const void*> places;
  for (int step = 0; step < 4; ++step) {
    const auto parameters = training.network->parameters();
    if (step < 2) training.optimizer.zero_grad();
    for (auto parameter : parameters) {
      if (step >= 2) parameter.mutable_grad().zero_();
    }
    training.backward(my_batch(world_, step));
    training.optimizer.step();
    expected.step(my_batch(world_, step));
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const void* place = parameters[i].grad().data_ptr();
      EXPECT_EQ(places.emplace(i, place).first->second, place) << "parameter " << i;
    }
  }
  expect_same_bits(training.weights(), expected.weights());
}

INSTANTIATE_TEST_SUITE_P(, CompressionTest, kCompressions, compression_of);

// Clipping by the global norm, by the CPU's way and, on tensors of the CPU, by that of GPUs.

class Clip : public WorldTest {
 protected:
  using Way = std::optional<at::Device>;

  /// Gradients of several types, one with gaps; `like`: the same on ranks of one number.
  static std::vector<at::Tensor> gradients(int like) {
    torch::manual_seed(seed() + static_cast<std::uint64_t>(like));
    return {torch::randn({7, 5}),
            torch::randn({3}, torch::kDouble),
            torch::randn({40, 6}).to(torch::kHalf),
            torch::randn({9, 4}).slice(1, 0, 4, 2),
            torch::randn({33}).to(torch::kBFloat16),
            torch::randn({0})};
  }
  static double squares_of(const std::vector<at::Tensor>& tensors) {
    double squares = 0.0;
    for (const at::Tensor& each : tensors)
      squares += each.to(torch::kDouble).square().sum().item<double>();
    return squares;
  }
  double clip(const std::vector<at::Tensor>& tensors, bool shared, double max_norm,
              const Way& way = torch::kCPU) {
    return internal::clip(peers_, "clip", tensors, shared, max_norm, way);
  }

  const Peers peers_ = peers_of(world_, kWorld);
  const Way ways_[2] = {std::nullopt, torch::kCPU};
};

TEST_F(Clip, DividesByTheNormOnlyWhatIsAboveTheLimit) {
  for (const auto& way : ways_) {
    for (const bool shared : {true, false}) {
      double squares = 0.0;
      for (int rank = shared ? world_.size() - 1 : 0; rank < world_.size(); ++rank) {
        squares += squares_of(gradients(shared ? 0 : rank));
      }
      const double expected = std::sqrt(squares);
      for (const double max_norm : {0.25, 1e6}) {
        const auto tensors = gradients(shared ? 0 : world_.rank());
        const auto before = copies_of(tensors);
        const double norm = clip(tensors, shared, max_norm, way);
        EXPECT_NEAR(norm, expected, 1e-6 * expected);
        EXPECT_TRUE(equals_root(world_, torch::full({1}, norm, torch::kDouble)));
        const double factor = std::min(max_norm / (norm + 1e-6), 1.0);
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          const double unit = torch::elementSize(tensors[i].scalar_type()) == 2 ? 0x1p-7 : 1e-6;
          EXPECT_TRUE(
              torch::allclose(tensors[i], before[i] * factor, factor < 1 ? unit : 0.0, 0.0));
          if (shared) {
            EXPECT_TRUE(equals_root(world_, tensors[i]));
          }
        }
      }
    }
  }
  EXPECT_EQ(clip({}, true, 1.0), 0.0);
}

TEST_F(Clip, TheLimitIsPositive) {
  Training training(world_);
  for (const double limit : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    expect_error(ErrorCode::invalid_argument, HasSubstr("expected more than 0"),
                 [&] { training.optimizer.clip_grad_norm_(limit); });
  }
}

// On a GPU each read waits for it; the sums come in one copy.
TEST_F(Clip, TheHostReadsNoSingleValue) {
  for (const bool shared : {true, false}) {
    const auto tensors = gradients(0);
    const HostReads reads;
    clip(tensors, shared, 0.25);
    EXPECT_EQ(reads.count(), 0);
  }
}

TEST_F(Clip, WhatIsNotFiniteShowsEverywhere) {
  for (const auto& way : ways_) {
    auto tensors = gradients(world_.rank());
    if (last()) tensors[0][2][2] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(clip(tensors, false, 1.0, way)));
    for (const at::Tensor& tensor : tensors) EXPECT_TRUE(tensor.isnan().all().item<bool>());
  }
}

TEST_F(Clip, ReadsThePartsOfRanksThatHaveJoined) {
  if (world_.rank() == 0) {
    join(world_);
    return;
  }
  const auto tensors = gradients(0);
  const auto before = copies_of(tensors);
  const double norm = clip(tensors, true, 0.25);
  EXPECT_NEAR(norm, std::sqrt(squares_of(before)), 1e-6 * norm);
  EXPECT_TRUE(torch::allclose(tensors[0], before[0] * (0.25 / norm)));
  join(world_);
}

// A user's own way to average buckets.

// Averages as hora does without a hook, in two stages.
class PlainHook : public GradientHook {
 public:
  enum class Throws { never, at_the_begin, later };

  void begin(const GradientBucketView& bucket) override {
    if (throws == Throws::at_the_begin) throw std::runtime_error("the hook's begin");
    handles_[bucket.name].emplace(allreduce_async_(
        bucket.context, bucket.values, {.name = bucket.name, .process_set = bucket.process_set}));
  }
  bool proceed(const GradientBucketView& bucket) override {
    stages_ += 1;
    auto handle = std::exchange(handles_[bucket.name], std::nullopt);
    if (handle) handle->wait();
    if (throws == Throws::later) throw std::runtime_error("the hook's proceed");
    return !handle;
  }
  std::string describe() const override { return "plain"; }
  int stages() const { return stages_; }
  std::size_t buckets() const { return handles_.size(); }

  Throws throws = Throws::never;

 private:
  std::map<std::string, std::optional<TensorHandle>> handles_;
  int stages_ = 0;
};

class HookTest : public WorldTest, public testing::WithParamInterface<Compression> {};

TEST_P(HookTest, AnAllreduceGivesTheBitsOfNone) {
  const auto hook = std::make_shared<PlainHook>();
  Training plain(world_, {.bucket_bytes = 1024, .compression = GetParam()});
  Training hooked(world_, {.bucket_bytes = 1024, .compression = GetParam(), .hook = hook});
  constexpr int kSteps = 3;
  for (int step = 0; step < kSteps; ++step) {
    plain.step(my_batch(world_, step));
    hooked.step(my_batch(world_, step));
  }
  expect_same_bits(hooked.weights(), plain.weights());
  EXPECT_GT(hook->buckets(), 1U);
  EXPECT_EQ(hook->stages(), 2 * kSteps * static_cast<int>(hook->buckets()));
}

INSTANTIATE_TEST_SUITE_P(, HookTest, kCompressions, compression_of);

using HookMisuse = WorldTest;

TEST_F(HookMisuse, WhatItThrowsComesOutAndTheNextStepIsRight) {
  for (const auto throws : {PlainHook::Throws::at_the_begin, PlainHook::Throws::later}) {
    const auto hook = std::make_shared<PlainHook>();
    Training training(world_, {.hook = hook});
    Training plain(world_);
    hook->throws = throws;
    training.optimizer.zero_grad();
    if (throws == PlainHook::Throws::at_the_begin) {
      EXPECT_THROW(training.backward(my_batch(world_, 0)), std::runtime_error);
    } else {
      training.backward(my_batch(world_, 0));
      EXPECT_THROW(training.optimizer.synchronize(), std::runtime_error);
    }
    hook->throws = PlainHook::Throws::never;
    training.optimizer.zero_grad();
    training.step(my_batch(world_, 1));
    plain.step(my_batch(world_, 1));
    expect_same_bits(training.weights(), plain.weights());
  }
}

TEST_F(HookMisuse, OneObjectServesOneOptimizerAtATime) {
  const auto hook = std::make_shared<PlainHook>();
  for (int again = 0; again < 2; ++again) {
    Training training(world_, {.hook = hook});
    expect_error(ErrorCode::invalid_argument, HasSubstr("hook serves another"),
                 [&] { Training(world_, {.hook = hook}); });
    training.step(my_batch(world_, 0));
  }
}

}  // namespace
}  // namespace hora::internal::test
