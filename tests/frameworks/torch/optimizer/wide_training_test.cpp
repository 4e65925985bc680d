// Large gradients: averaged in place, or updated in step() or while backward goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "frameworks/torch/tensor_view.h"
#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"
#include "tests/support/logged_lines.h"

namespace hora::internal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using torch::autograd::variable_list;

/// Weights of 128 KiB, 64 KiB and less, biases far below.
torch::nn::Sequential wide_network() {
  torch::manual_seed(seed());
  return torch::nn::Sequential(torch::nn::Linear(256, 128), torch::nn::ReLU(),
                               torch::nn::Linear(128, 128), torch::nn::Tanh(),
                               torch::nn::Linear(128, 10));
}

struct WideTraining : Training {
  WideTraining(const Context& its_world, const DistributedOptimizerOptions& options,
               const torch::nn::Sequential& its_network = wide_network())
      : Training(its_world, options, make_fused_sgd, its_network), world(its_world) {}

  torch::Tensor loss(int step) {
    torch::manual_seed(seed() + static_cast<std::uint64_t>(100 * step + world.rank()));
    return network->forward(torch::randn({4, 256})).pow(2).mean();
  }
  void step(int number) {
    optimizer.zero_grad();
    loss(number).backward();
    optimizer.step();
  }
  torch::Tensor weight(int layer) const { return network->parameters()[2 * layer]; }

  const Context& world;
};

using Steps = std::function<void(WideTraining&)>;

void plain_steps(WideTraining& training) {
  for (int step = 0; step < 5; ++step) training.step(step);
}

bool in_place(const torch::Tensor& parameter) {
  return parameter.grad().defined() && in_tensor_arena(parameter.grad().data_ptr());
}

/// As if without virtual nodes: between nodes gradients travel in buckets.
bool one_node(const Context& world) {
  return world.cross_size() == 1;
}

/// Buckets of about one weight each.
DistributedOptimizerOptions updates_in_backward(std::size_t bucket_bytes = 70000) {
  return {.bucket_bytes = bucket_bytes, .sharding = Sharding::in_backward};
}
DistributedOptimizerOptions updates_in_step() {
  return {.bucket_bytes = 70000, .sharding = Sharding::fused};
}

using InPlace = WorldTest;

TEST_F(InPlace, LargeGradientsStayWhereAutogradHasPutThem) {
  WideTraining training(world_, {});
  for (int step = 0; step < 3; ++step) {
    training.optimizer.zero_grad();
    training.loss(step).backward();
    const void* const first = training.weight(0).grad().data_ptr();
    EXPECT_EQ(in_place(training.weight(0)), one_node(world_));
    training.optimizer.step();
    EXPECT_EQ(training.weight(0).grad().data_ptr(), first);
    EXPECT_EQ(in_place(training.weight(1)), one_node(world_));
    EXPECT_FALSE(in_place(training.weight(2))) << "5 KiB";
  }
}

// Gradients that stay where autograd has put them, buckets that are updated by the pass that
// averages, in step() or while backward goes on: the same bits, and memory that is free again. The
// trainings (tests/frameworks/torch/trainings) have what options and ranks' graphs do to them.

/// Steps on `loss`.
Steps steps_on(const std::function<torch::Tensor(WideTraining&, int)>& loss) {
  return [loss](WideTraining& training) {
    for (int step = 0; step < 4; ++step) {
      training.optimizer.zero_grad();
      loss(training, step).backward();
      training.optimizer.step();
    }
  };
}

/// Every second rank's arena has no room for gradients.
void steps_where_some_ranks_have_no_arena_left(WideTraining& training) {
  std::vector<torch::Tensor> held;
  for (const std::int64_t bytes : {128 << 10, 64 << 10}) {
    while (training.world.rank() % 2 == 0 && held.size() < 100) {
      held.push_back(torch::empty({bytes}, torch::kByte));
      if (!in_tensor_arena(held.back().data_ptr())) break;
    }
  }
  plain_steps(training);
}

/// Arenas grow by turns, and gradients lie elsewhere then: more than a segment of 64 MiB, of which
/// no page is touched.
void steps_in_growing_arenas(WideTraining& training) {
  std::vector<torch::Tensor> held;
  for (int step = 0; step < 5; ++step) {
    training.step(step);
    for (int i = 0; i < 600 && step % 3 == training.world.rank() % 3; ++i) {
      held.push_back(torch::empty({128 << 10}, torch::kByte));
    }
  }
}

/// LibTorch 1.13's zero_grad() leaves `.grad` defined: autograd adds to what the last step has
/// left.
void steps_zeroed_in_place(WideTraining& training) {
  for (int step = 0; step < 4; ++step) {
    for (auto& parameter : training.network->parameters()) {
      if (step > 0) parameter.mutable_grad().zero_();
    }
    training.loss(step).backward();
    training.optimizer.step();
  }
}

/// The graph of the first pass is used again by the second, which completes the gradients.
void steps_of_two_passes_of_a_graph(WideTraining& training) {
  training.optimizer.set_backward_passes_per_step(2);
  for (int step = 0; step < 3; ++step) {
    training.optimizer.zero_grad();
    const torch::Tensor loss = training.loss(step);
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    training.optimizer.step();
  }
}

/// Gradients of gradients: all of a parameter's uses are done before its gradient is complete.
torch::Tensor loss_with_penalty(WideTraining& training, int step) {
  torch::manual_seed(seed() + static_cast<std::uint64_t>(step));
  const auto input = torch::randn({4, 256}, torch::requires_grad());
  const auto loss = training.network->forward(input).pow(2).mean();
  const auto slopes = torch::autograd::grad({loss}, {input}, {}, {}, /*create_graph=*/true);
  return loss + slopes[0].pow(2).mean();
}

/// Computed again in backward, with a backward of its own, as by checkpointing.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static inline torch::nn::LinearImpl* segment = nullptr;

  static torch::Tensor forward(torch::autograd::AutogradContext* context,
                               const torch::Tensor& input) {
    context->save_for_backward({input});
    return segment->forward(input);
  }
  static variable_list backward(torch::autograd::AutogradContext* context,
                                const variable_list& gradients) {
    const torch::AutoGradMode enabled(true);
    const auto input = context->get_saved_variables()[0].detach().requires_grad_(true);
    segment->forward(input).backward(gradients[0]);
    return {input.grad()};
  }
};

torch::Tensor loss_of_segment(WideTraining& training, int step) {
  const auto layer = [&](std::size_t i) { return training.network[i]->as<torch::nn::Linear>(); };
  Recomputed::segment = layer(2);
  const auto input = torch::full({4, 256}, 0.01 * (step + 1 + training.world.rank()));
  return layer(4)->forward(Recomputed::apply(layer(0)->forward(input))).pow(2).mean();
}

/// To other memory and back, in which ranks differ.
void steps_in_other_memory(WideTraining& training) {
  plain_steps(training);
  for (const int layer : {2, 1}) {
    auto weight = training.weight(layer);
    const torch::Tensor former = weight.detach();
    if (layer == 2 || training.world.rank() == 0) weight.set_data(weight.detach().clone());
    plain_steps(training);
    weight.set_data(former.copy_(weight.detach()));
    plain_steps(training);
  }
}

struct SameBits {
  std::string name;
  Steps steps;
  Sharding most = Sharding::in_backward;
  DistributedOptimizerOptions options = {};
};

const std::vector<SameBits> kSameBits{
    {"Plain", plain_steps},
    {"Sums", plain_steps, Sharding::in_backward, {.op = ReduceOp::sum}},
    {"Predivided", plain_steps, Sharding::in_backward, {.gradient_predivide_factor = 3.0}},
    {"SomeRanksHaveNoArenaLeft", steps_where_some_ranks_have_no_arena_left},
    {"GrowingArenas", steps_in_growing_arenas},
    {"ZeroedInPlace", steps_zeroed_in_place, Sharding::off},
    {"TwoPassesOfAGraph", steps_of_two_passes_of_a_graph},
    {"Penalty", steps_on(loss_with_penalty)},
    {"Recomputed", steps_on(loss_of_segment)},
    {"OtherMemory", steps_in_other_memory},
};

class BackwardUpdate : public testing::TestWithParam<SameBits> {};

// Averages of copies give these weights; so must every other way. Without an engine thread the rest
// is left to step(), which makes progress itself.
TEST_P(BackwardUpdate, GivesTheBitsOfCopies) {
  const auto weights_of = [&](const DistributedOptimizerOptions& way, TensorArenaUse arena,
                              std::size_t limit = 0, bool engine_thread = true) {
    DistributedOptimizerOptions options = GetParam().options;
    options.bucket_bytes = way.bucket_bytes;
    options.sharding = way.sharding;
    Settings settings;
    settings.tensor_arena = arena;
    settings.tensor_arena_limit = limit;
    const Context world = init({.engine_thread = engine_thread, .settings = settings});
    WideTraining training(world, options);
    GetParam().steps(training);
    return training.weights();
  };
  const auto expected = weights_of({}, TensorArenaUse::off);
  for (const auto& way : {DistributedOptimizerOptions{.bucket_bytes = 70000},
                          DistributedOptimizerOptions{.sharding = Sharding::fused},
                          updates_in_step(), updates_in_backward(), updates_in_backward(64)}) {
    if (way.sharding > GetParam().most) continue;
    SCOPED_TRACE("sharding " + std::to_string(static_cast<int>(way.sharding)));
    expect_same_bits(weights_of(way, TensorArenaUse::off), expected);
    expect_same_bits(weights_of(way, TensorArenaUse::on), expected);
    expect_same_bits(weights_of(way, TensorArenaUse::on, 300 << 10), expected);
    expect_same_bits(weights_of(way, TensorArenaUse::on, 0, /*engine_thread=*/false), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(, BackwardUpdate, testing::ValuesIn(kSameBits),
                         [](const auto& tested) { return tested.param.name; });

using BackwardUpdateAlone = WorldTest;

TEST_F(BackwardUpdateAlone, RefusesALayerThatIsUsedInASegmentAndElsewhere) {
  WideTraining training(world_, updates_in_backward());
  const torch::Tensor loss = loss_of_segment(training, 0);
  EXPECT_ANY_THROW((loss + Recomputed::segment->forward(torch::ones({4, 128})).sum()).backward());
}

TEST_F(BackwardUpdateAlone, GivesGradientsBackWhileBackwardGoesOn) {
  WideTraining in_step(world_, updates_in_step());
  plain_steps(in_step);
  const std::size_t all = in_step.optimizer.statistics().gradient_bytes;
  EXPECT_EQ(all, 4U * (256 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10));
  if (!one_node(world_)) GTEST_SKIP() << "for ranks that share memory";
  WideTraining training(world_, updates_in_backward(64));
  for (auto& parameter : training.network->parameters()) {
    parameter.register_hook(
        [](const torch::Tensor&) { std::this_thread::sleep_for(std::chrono::milliseconds(10)); });
  }
  bool given_back = false;
  std::size_t least = all;
  for (int step = 0; step < 20; ++step) {
    training.optimizer.reset_statistics();
    training.optimizer.zero_grad();
    const torch::Tensor loss = training.loss(step);
    // Each rank in turn is a little later than the others: in a hook it finds what they have given
    // and updated in theirs.
    if (step % world_.size() == world_.rank()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(4));
    }
    loss.backward();
    given_back = given_back || training.weight(1).grad().is_meta();
    training.optimizer.step();
    least = std::min(least, training.optimizer.statistics().gradient_bytes);
  }
  EXPECT_TRUE(given_back) << "before backward() has returned";
  EXPECT_LT(least, all);
}

// Buckets that are updated while backward goes on: what does not go with it is refused, and what
// ends such a step early leaves the ranks alike.

using BackwardUpdateMisuse = WorldTest;

void refused(const std::string& text, const std::function<void()>& call) {
  expect_error(ErrorCode::invalid_use, AllOf(HasSubstr(text), HasSubstr("sharding in_backward")),
               call);
}

TEST_F(BackwardUpdateMisuse, DecisionsAfterBackwardAreRefusedAndASecondOneThrows) {
  WideTraining training(world_, updates_in_backward());
  WideTraining expected(world_, updates_in_step());
  DistributedOptimizer& optimizer = training.optimizer;
  refused("GradScaler", [&] { GradScaler scaler(optimizer); });
  GradScaler off(optimizer, {.enabled = false});
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    const torch::Tensor loss = training.loss(step);
    loss.backward({}, /*retain_graph=*/true);
    EXPECT_ANY_THROW(loss.backward());
    refused("zero_grad() after backward()", [&] { optimizer.zero_grad(); });
    refused("synchronize()", [&] { optimizer.synchronize(); });
    refused("clip_grad_norm_()", [&] { optimizer.clip_grad_norm_(1.0); });
    refused("step(closure)", [&] { optimizer.step([&] { return training.loss(step); }); });
    if (step % 2 == 0) {
      optimizer.step();
    } else {
      EXPECT_TRUE(off.step());
      off.update();
    }
    expected.step(step);
    expect_same_bits(training.weights(), expected.weights());
  }
}

// LibTorch has saved the detached weight for the factor's gradient, which comes after the weight's.
TEST_F(BackwardUpdateMisuse, AWeightThatIsReadAfterItsGradientIsNoticedByLibTorch) {
  const auto weight = torch::full({64}, 2.0, torch::requires_grad());
  const auto factor = torch::full({64}, 3.0, torch::requires_grad());
  const auto sgd = make_fused_sgd({factor, weight});
  DistributedOptimizer optimizer(world_, *sgd, {{"factor", factor}, {"weight", weight}},
                                 updates_in_backward(64));
  const auto loss = ((factor * weight.detach()) * weight).sum();
  if (!one_node(world_)) {
    loss.backward();
    return optimizer.step();
  }
  EXPECT_THAT([&] { loss.backward(); },
              testing::ThrowsMessage<c10::Error>(HasSubstr("modified by an inplace operation")));
  optimizer.step();  // the factor has no gradient
  EXPECT_TRUE(torch::equal(factor, torch::full({64}, 3.0)));
  EXPECT_TRUE(torch::allclose(weight, torch::full({64}, 2.0 - 0.05 * (6.0 + 2e-3))));
}

TEST_F(BackwardUpdateMisuse, AParameterWithOtherMemoryBeforeStepIsAnError) {
  WideTraining training(world_, updates_in_backward());
  training.loss(0).backward();
  training.weight(1).set_data(training.weight(1).detach().clone());
  if (!one_node(world_)) return training.optimizer.step();
  refused("other memory", [&] { training.optimizer.step(); });
}

TEST_F(BackwardUpdateMisuse, WhatDiffersIsToldBeforeAnythingIsUpdated) {
  std::optional<WideTraining> training;
  const auto expect_refused = [&](ErrorCode code, const std::string& text) {
    const auto before = training->weights();
    expect_error(code, HasSubstr(text), [&] {
      training->loss(9).backward();
      training->optimizer.step();
    });
    expect_same_bits(training->weights(), before);
  };
  training.emplace(world_, updates_in_backward());
  training->wrapped->param_groups()[0].params().push_back(torch::zeros({3}));
  expect_refused(ErrorCode::invalid_argument, "was added to the wrapped optimizer");

  training.emplace(world_, updates_in_backward());
  if (last()) training->weight(0).detach().add_(1.0);
  expect_refused(ErrorCode::mismatch, "Call broadcast_parameters");
  training->optimizer.zero_grad();
  broadcast_parameters(world_, *training->network);
  plain_steps(*training);
  expect_alike(world_, training->network);
  training->optimizer.zero_grad();
  if (last()) training->optimizer.zero_grad();
  expect_refused(ErrorCode::mismatch, "No rank has been updated");
}

TEST_F(BackwardUpdateMisuse, DestroyedBeforeStepOnAllRanksTheyAreAlike) {
  auto training = std::make_unique<WideTraining>(world_, updates_in_backward());
  plain_steps(*training);
  const auto network = training->network;
  training->optimizer.zero_grad();
  training->loss(9).backward();
  {
    const LoggedLines lines;
    training.reset();
    EXPECT_EQ(lines.have("some of the parameters"), one_node(world_));
  }
  expect_alike(world_, network);
  WideTraining next(world_, updates_in_backward(), network);
  plain_steps(next);
  expect_alike(world_, network);
}

TEST_F(BackwardUpdateMisuse, DestroyedBeforeStepOnOneRankTheOthersAreTold) {
  std::optional<WideTraining> training(std::in_place, world_, updates_in_backward());
  training->loss(0).backward();
  if (last()) return training.reset();
  const std::string text = one_node(world_) ? "Some parameters have been" : "No rank has been";
  expect_error(ErrorCode::mismatch, HasSubstr(text), [&] { training->optimizer.step(); });
}

TEST_F(BackwardUpdateMisuse, AfterAnExceptionOnAllRanksStepEndsTheStep) {
  WideTraining training(world_, updates_in_backward());
  bool armed = true;
  training.weight(0).register_hook([&](const torch::Tensor&) {
    if (std::exchange(armed, false)) throw std::runtime_error("thrown by a hook");
  });
  const auto before = training.weights();
  EXPECT_THROW(training.loss(0).backward(), std::runtime_error);
  training.optimizer.step();
  EXPECT_TRUE(torch::equal(training.weight(0), before[0]));
  EXPECT_FALSE(torch::equal(training.weight(2), before[4]));
  expect_alike(world_, training.network);
  plain_steps(training);
  expect_alike(world_, training.network);
}

}  // namespace
}  // namespace hora::internal::test
