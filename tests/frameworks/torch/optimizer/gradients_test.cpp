// Gradients: absent, added up, compressed, clipped, averaged by a hook of the user's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch.h>
#include <hora/torch/gradient_hook.h>

#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>

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

using NamedParameters = torch::OrderedDict<std::string, torch::Tensor>;
using testing::HasSubstr;

// Parameters that backward does not reach, reaches twice, or reaches at a bad moment.

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

// Gradients added up over several backward passes before they are averaged.

class Accumulation : public testing::Test {
 protected:
  torch::Tensor loss(double value) { return (weight_ * value).sum(); }
  double gradient() const { return weight_.grad()[0].item<double>(); }
  double mean(const std::function<double(int)>& of_rank) const {
    return mean_over_ranks(world_, of_rank);
  }
  DistributedOptimizer wrap(const DistributedOptimizerOptions& options = {}) {
    return {world_, sgd_, {{"weight", weight_}, {"other", other_}}, options};
  }

  const Context world_ = init();
  const double own_ = world_.rank() + 1.0;
  const torch::Tensor weight_ = torch::zeros({3}, torch::requires_grad());
  const torch::Tensor other_ = torch::zeros({2}, torch::requires_grad());
  torch::optim::SGD sgd_{{weight_, other_}, 1.0};
};

TEST_F(Accumulation, NothingTravelsBeforeTheLastPass) {
  auto optimizer = wrap({.backward_passes_per_step = 2});
  const auto before = world_.statistics().operations;
  loss(1.0).backward();
  EXPECT_EQ(world_.statistics().operations, before);
  loss(1.0).backward();
  optimizer.step();
  if (world_.size() > 1) {
    EXPECT_GT(world_.statistics().operations, before);
  }
}

TEST_F(Accumulation, FewerPassesThanAnnouncedAreAveragedByStep) {
  auto optimizer = wrap({.backward_passes_per_step = 5});
  loss(own_).backward();
  optimizer.step();
  EXPECT_DOUBLE_EQ(gradient(), mean([](int rank) { return rank + 1.0; }));
  optimizer.zero_grad();  // and it counts from the start
  for (int pass = 0; pass < 5; ++pass) loss(own_).backward();
  optimizer.step();
  EXPECT_DOUBLE_EQ(gradient(), 5 * mean([](int rank) { return rank + 1.0; }));
}

TEST_F(Accumulation, OnePassTooManyThrows) {
  auto optimizer = wrap({.backward_passes_per_step = 2});
  loss(1.0).backward();
  loss(1.0).backward();
  expect_error(ErrorCode::invalid_use, HasSubstr("more than 2 times (backward_passes_per_step)"),
               [&] { loss(1.0).backward(); });
  optimizer.step();
}

TEST_F(Accumulation, ThePassesCanBeChangedBetweenSteps) {
  auto optimizer = wrap();
  expect_error(ErrorCode::invalid_argument, HasSubstr("is 0; expected 1 or more"),
               [&] { optimizer.set_backward_passes_per_step(0); });
  optimizer.set_backward_passes_per_step(2);
  loss(own_).backward();
  expect_error(ErrorCode::invalid_use, HasSubstr("between backward() and step()"),
               [&] { optimizer.set_backward_passes_per_step(1); });
  loss(own_).backward();
  optimizer.step();
  EXPECT_DOUBLE_EQ(gradient(), 2 * mean([](int rank) { return rank + 1.0; }));
}

TEST_F(Accumulation, GuardsNestMoveAndEndInAnyOrder) {
  auto optimizer = wrap();
  const auto before = world_.statistics().operations;
  {
    auto outer = std::make_unique<DistributedOptimizer::Guard>(optimizer.no_sync());
    auto inner = std::make_unique<DistributedOptimizer::Guard>(optimizer.no_sync());
    outer.reset();
    loss(own_).backward();
    const DistributedOptimizer::Guard moved = std::move(*inner);
    inner.reset();
    loss(own_).backward();
    { const auto innermost = optimizer.no_sync(); }
    loss(own_).backward();
  }
  EXPECT_EQ(world_.statistics().operations, before);
  loss(own_).backward();
  optimizer.step();
  EXPECT_DOUBLE_EQ(gradient(), 4 * mean([](int rank) { return rank + 1.0; }));
  loss(own_).backward();
  {
    const auto outer = optimizer.skip_synchronize();
    { const auto inner = optimizer.skip_synchronize(); }
    expect_error(ErrorCode::invalid_use, HasSubstr("call synchronize() first"),
                 [&] { optimizer.step(); });
  }
  optimizer.step();
}

TEST_F(Accumulation, AGuardMayOutliveItsOptimizer) {
  std::vector<DistributedOptimizer::Guard> guards;
  {
    auto first = wrap();
    guards.push_back(first.no_sync());
    guards.push_back(first.skip_synchronize());
    const auto moved = std::move(first);
  }
  auto optimizer = wrap();  // another one does not count them
  loss(own_).backward();
  optimizer.step();
  guards.clear();
  EXPECT_DOUBLE_EQ(gradient(), mean([](int rank) { return rank + 1.0; }));
}

TEST_F(Accumulation, ZeroGradForgetsWhatNoSyncHasAddedUp) {
  auto optimizer = wrap({.backward_passes_per_step = 2});
  loss(1000.0).backward();
  optimizer.zero_grad();
  EXPECT_FALSE(weight_.grad().defined());
  loss(own_).backward();
  loss(own_).backward();
  optimizer.step();
  EXPECT_DOUBLE_EQ(gradient(), 2 * mean([](int rank) { return rank + 1.0; }));
}

TEST_F(Accumulation, StepUnderSkipSynchronizeWantsAverages) {
  auto optimizer = wrap({.compare_ranks = false});
  loss(own_).backward();
  {
    const auto guard = optimizer.skip_synchronize();
    expect_error(ErrorCode::invalid_use, HasSubstr("call synchronize() first"),
                 [&] { optimizer.step(); });
  }
  optimizer.synchronize();
  weight_.mutable_grad().mul_(0.5);
  const auto before = world_.statistics().operations;
  {
    const auto guard = optimizer.skip_synchronize();
    optimizer.step();
  }
  EXPECT_EQ(world_.statistics().operations, before);
  EXPECT_DOUBLE_EQ(weight_[0].item<double>(), -0.5 * mean([](int rank) { return rank + 1.0; }));
}

// Gradients that travel in another type than their parameter's.

class CompressionTest : public testing::TestWithParam<Compression> {
 protected:
  DistributedOptimizerOptions options() const { return {.compression = GetParam()}; }

  torch::ScalarType wire(torch::ScalarType type) const {
    return to_scalar_type(wire_type(GetParam(), *to_data_type(type)));
  }

  // Any rank's, known to all. What a float32 holds: LibTorch rounds float64 by way of it.
  static torch::Tensor gradient_of(int rank, int step, torch::IntArrayRef shape,
                                   torch::ScalarType type) {
    torch::manual_seed(seed() + 1000 * static_cast<std::uint64_t>(step) +
                       static_cast<std::uint64_t>(rank));
    return torch::randn(shape, torch::kFloat).to(type);
  }

  torch::Tensor expected(int step, torch::IntArrayRef shape, torch::ScalarType type) const {
    return average_model(
               world_,
               [&](int rank) { return gradient_of(rank, step, shape, type).to(wire(type)); })
        .to(type);
  }

  const Context world_ = init();
};

TEST_P(CompressionTest, AveragesAreThoseOfTheWireTypeToTheBit) {
  // A bucket of one cache line, of a few, and of enough to be written past the caches.
  for (const std::int64_t elements : {3, 1000, 300001}) {
    const auto weight = torch::zeros({elements}, torch::requires_grad());
    torch::optim::SGD sgd({weight}, 1.0);
    DistributedOptimizer optimizer(world_, sgd, {{"weight", weight}}, options());
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      weight.backward(gradient_of(world_.rank(), step, {elements}, torch::kFloat));
      optimizer.synchronize();
      EXPECT_EQ(weight.grad().scalar_type(), torch::kFloat);
      EXPECT_TRUE(torch::equal(weight.grad(), expected(step, {elements}, torch::kFloat)))
          << elements << " elements, step " << step;
      optimizer.step();
    }
  }
}

TEST_P(CompressionTest, EveryTypeTravelsAsItShould) {
  NamedParameters named;
  for (const auto type : {torch::kHalf, torch::kDouble, torch::kBFloat16, torch::kFloat}) {
    for (const char* which : {"first ", "second "}) {
      named.insert(which + std::string(torch::toString(type)),
                   torch::zeros({7, 5}, torch::dtype(type)).requires_grad_());
    }
  }
  torch::optim::SGD sgd(named.values(), 1.0);
  DistributedOptimizer optimizer(world_, sgd, named, options());
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    for (const auto& item : named) {
      const auto type = item.value().scalar_type();
      item.value().backward(gradient_of(world_.rank(), step, {7, 5}, type));
    }
    optimizer.synchronize();
    for (const auto& item : named) {
      const auto type = item.value().scalar_type();
      ASSERT_EQ(item.value().grad().scalar_type(), type) << item.key();
      EXPECT_TRUE(torch::equal(item.value().grad(), expected(step, {7, 5}, type))) << item.key();
    }
  }
}

TEST_P(CompressionTest, GradientsStayWhereTheyAreFromStepToStep) {
  auto network = small_network(seed());
  network->push_back(torch::nn::Linear(5, 5));
  torch::optim::SGD sgd(network->parameters(), 0.1);
  DistributedOptimizer optimizer(world_, sgd, network->named_parameters(), options());
  std::map<std::size_t, const void*> places;
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    loss_of(network, part_of(whole_batch(seed(), 2 * world_.size()), world_.rank(), 2)).backward();
    optimizer.step();
    const auto parameters = network->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const void* place = parameters[i].grad().data_ptr();
      EXPECT_EQ(places.emplace(i, place).first->second, place) << "parameter " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, CompressionTest,
                         testing::Values(Compression::none, Compression::float16,
                                         Compression::bfloat16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// Clipping by the global norm; and the way that clips on GPUs, on tensors of the CPU.

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
  for (const auto& device : {std::optional<at::Device>(), std::optional<at::Device>(torch::kCPU)}) {
    auto tensors = gradients(static_cast<std::uint64_t>(world_.rank()));
    if (world_.rank() + 1 == world_.size()) {
      tensors[0][2][2] = std::numeric_limits<float>::quiet_NaN();
    }
    EXPECT_TRUE(std::isnan(internal::clip(peers_, "clip", tensors, false, 1.0, device)));
    for (const at::Tensor& tensor : tensors) EXPECT_TRUE(tensor.isnan().all().item<bool>());
  }
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

// A user's own way to average buckets.

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
