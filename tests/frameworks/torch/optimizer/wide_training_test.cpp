// Large gradients: averaged in place, or updated in step() or while backward goes on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch.h>
#include <hora/torch/grad_scaler.h>
#include <hora/torch/optim.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
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
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

Settings with_arena(TensorArenaUse use, std::size_t limit = 0) {
  Settings settings;
  settings.tensor_arena = use;
  settings.tensor_arena_limit = limit;
  return settings;
}

/// Weights of 128 KiB, 64 KiB and less, biases far below.
torch::nn::Sequential wide_network() {
  torch::manual_seed(seed());
  return torch::nn::Sequential(torch::nn::Linear(256, 128), torch::nn::ReLU(),
                               torch::nn::Linear(128, 128), torch::nn::Tanh(),
                               torch::nn::Linear(128, 10));
}

/// LibTorch's, or hora's, with the same options.
template <class Sgd>
std::unique_ptr<torch::optim::Optimizer> make_momentum(std::vector<torch::Tensor> parameters) {
  return std::make_unique<Sgd>(std::move(parameters), torch::optim::SGDOptions(0.1).momentum(0.9));
}

struct WideTraining {
  explicit WideTraining(const Context& its_world, const DistributedOptimizerOptions& options = {},
                        const MakeOptimizer& make = make_momentum<torch::optim::SGD>,
                        const torch::nn::Sequential& its_network = wide_network())
      : world(its_world),
        network(its_network),
        wrapped(make(network->parameters())),
        optimizer(world, *wrapped, network->named_parameters(), options) {}

  torch::Tensor loss(int step) {
    torch::manual_seed(seed() + static_cast<std::uint64_t>(100 * step + world.rank()));
    const auto input = torch::randn({4, 256});
    return network->forward(input).pow(2).mean();
  }
  void step(int number) {
    optimizer.zero_grad();
    loss(number).backward();
    optimizer.step();
  }
  void scale_rates(double factor) {
    for (auto& group : wrapped->param_groups()) {
      group.options().set_lr(factor * group.options().get_lr());
    }
  }
  torch::Tensor weight(int layer) { return network->parameters()[2 * layer]; }
  std::vector<torch::Tensor> weights() { return copies_of(network->parameters()); }

  const Context& world;
  torch::nn::Sequential network;
  std::unique_ptr<torch::optim::Optimizer> wrapped;
  DistributedOptimizer optimizer;
};

using Steps = std::function<void(WideTraining&)>;

void plain_steps(WideTraining& training) {
  for (int step = 0; step < 5; ++step) training.step(step);
}

/// In each step every second rank has no gradient.
void steps_where_some_ranks_lack_gradients(WideTraining& training) {
  for (int step = 0; step < 4; ++step) {
    training.optimizer.zero_grad();
    if ((step + training.world.rank()) % 2 == 0) training.loss(step).backward();
    training.optimizer.step();
  }
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
DistributedOptimizerOptions updates_in_step(std::size_t bucket_bytes = 70000) {
  return {.bucket_bytes = bucket_bytes, .sharding = Sharding::fused};
}

WideTraining training_of(const Context& world, const DistributedOptimizerOptions& options) {
  return WideTraining(world, options, make_momentum<optim::SGD>);
}

using MakeNetwork = torch::nn::Sequential (*)();

std::vector<torch::Tensor> weights_after(const Steps& steps, const InitOptions& init_options,
                                         const DistributedOptimizerOptions& options,
                                         const MakeOptimizer& make = make_momentum<optim::SGD>,
                                         MakeNetwork network = wide_network) {
  const Context world = init(init_options);
  WideTraining training(world, options, make, network());
  steps(training);
  return training.weights();
}

// Gradients that stay where autograd has put them, beside those that are copied.

TEST(InPlace, LargeGradientsStayWhereAutogradHasPutThem) {
  const Context world = init({.settings = with_arena(TensorArenaUse::on)});
  WideTraining training(world);
  for (int step = 0; step < 3; ++step) {
    training.optimizer.zero_grad();
    training.loss(step).backward();
    const void* const first = training.weight(0).grad().data_ptr();
    EXPECT_EQ(in_place(training.weight(0)), one_node(world));
    training.optimizer.step();
    EXPECT_EQ(training.weight(0).grad().data_ptr(), first);
    EXPECT_EQ(in_place(training.weight(1)), one_node(world));
    EXPECT_FALSE(in_place(training.weight(2))) << "5 KiB";
  }
}

TEST(InPlace, AGradientThatTheProgramHoldsIsCopied) {
  const Context world = init({.settings = with_arena(TensorArenaUse::on)});
  WideTraining training(world);
  torch::Tensor seen;
  training.weight(0).register_hook([&](const torch::Tensor& gradient) { seen = gradient; });
  training.loss(0).backward();
  const auto own = seen.clone();
  training.optimizer.step();
  EXPECT_TRUE(torch::equal(seen, own)) << "not averaged";
  const auto mean = allreduce(world, own);
  EXPECT_TRUE(torch::equal(training.weight(0).grad(), mean));
}

// Autograd gives both parameters the same memory.
TEST(InPlace, TwoParametersWithOneGradient) {
  const Context world = init({.settings = with_arena(TensorArenaUse::on)});
  auto p = torch::ones({128, 256}, torch::requires_grad());
  auto q = torch::ones({256, 128}, torch::requires_grad());
  torch::optim::SGD sgd({p, q}, 1.0);
  DistributedOptimizer optimizer(world, sgd, {{"p", p}, {"q", q}});
  const auto factor = torch::full({128 * 256}, world.rank() + 1.0);
  ((p.view(-1) + q.view(-1)) * factor).sum().backward();
  optimizer.step();
  const auto mean = static_cast<float>((world.size() + 1) / 2.0);
  EXPECT_TRUE(p.grad().eq(mean).all().item<bool>());
  EXPECT_TRUE(q.grad().eq(mean).all().item<bool>());
}

TEST(InPlace, TheAverageOutlivesTheOptimizerAndTheContext) {
  torch::Tensor average;
  float expected = 0;
  {
    const Context world = init({.settings = with_arena(TensorArenaUse::on)});
    WideTraining training(world);
    training.loss(0).backward();
    training.optimizer.step();
    average = training.weight(0).grad();
    expected = average.sum().item<float>();
  }
  EXPECT_EQ(average.sum().item<float>(), expected);
}

std::vector<torch::Tensor> weights_of_copies(const Steps& steps,
                                             const DistributedOptimizerOptions& options = {},
                                             MakeNetwork network = wide_network) {
  return weights_after(steps, {.settings = with_arena(TensorArenaUse::off)}, options,
                       make_momentum<torch::optim::SGD>, network);
}

/// Tensors that leave the arena no room for gradients of the weights.
std::vector<torch::Tensor> fill_arena() {
  std::vector<torch::Tensor> held;
  for (const std::int64_t bytes : {128 << 10, 64 << 10}) {
    while (held.size() < 10000) {
      held.push_back(torch::empty({bytes}, torch::kByte));
      if (!in_tensor_arena(held.back().data_ptr())) break;
    }
  }
  return held;
}

TEST(FusedInPlace, GivesTheSameBitsWhereSomeRanksHaveNoArenaLeft) {
  const auto expected = weights_of_copies(plain_steps);
  const Context world = init({.settings = with_arena(TensorArenaUse::on, 4 << 20)});
  for (const bool even_ranks : {true, false}) {
    WideTraining training = training_of(world, updates_in_step(0));
    const bool filled = (world.rank() % 2 == 0) == even_ranks;
    const auto held = filled ? fill_arena() : std::vector<torch::Tensor>();
    training.loss(0).backward();
    EXPECT_EQ(in_place(training.weight(0)), one_node(world) && !filled);
    training.optimizer.zero_grad();
    plain_steps(training);
    expect_same_bits(training.weights(), expected);
  }
}

TEST(FusedInPlace, GivesTheSameBitsFromMemoryThatIsNewWhileTraining) {
  const auto expected = weights_of_copies(plain_steps);
  const Context world = init({.settings = with_arena(TensorArenaUse::on)});
  WideTraining training = training_of(world, updates_in_step(0));
  std::vector<torch::Tensor> held;
  std::set<const void*> before;
  for (int step = 0; step < 5; ++step) {
    training.optimizer.zero_grad();
    training.loss(step).backward();
    EXPECT_EQ(in_place(training.weight(0)), one_node(world));
    const void* const memory = training.weight(0).grad().data_ptr();
    EXPECT_FALSE(before.contains(memory));
    training.optimizer.step();
    before.clear();
    // More than a segment of the arena: 64 MiB, of which no page is touched.
    if (step % 3 != world.rank() % 3) continue;
    for (int i = 0; i < 600; ++i) {
      held.push_back(torch::empty({128 << 10}, torch::kByte));
      before.insert(held.back().data_ptr());
    }
    EXPECT_EQ(before.contains(memory), one_node(world)) << "the next gradient lies elsewhere";
  }
  expect_same_bits(training.weights(), expected);
}

// The first rank's own tensor becomes the gradient, and is written to before the pass reads it.
TEST(FusedInPlace, AGradientThatTheProgramHoldsIsCopied) {
  const Context world = init({.settings = with_arena(TensorArenaUse::on)});
  const auto weight = torch::zeros({128, 256}, torch::requires_grad());
  const auto sgd = make_momentum<optim::SGD>({weight});
  DistributedOptimizer optimizer(world, *sgd, {{"weight", weight}}, {.sharding = Sharding::fused});
  auto own = torch::full({128 * 256}, world.rank() + 1.0);
  if (world.rank() == 0) {
    weight.view(-1).backward(own);
    EXPECT_TRUE(in_tensor_arena(own.data_ptr()));
    own.fill_(1e9);
  } else {
    (weight.view(-1) * own).sum().backward();
  }
  EXPECT_EQ(in_place(weight), one_node(world) && world.rank() != 0);
  optimizer.step();
  // The mean of 1, 2, ... ranks.
  const double mean = (world.size() + 1) / 2.0;
  EXPECT_TRUE(torch::allclose(weight, torch::full_like(weight, -0.1 * mean)));
}

// Gradients that stay where autograd has put them, buckets that are updated by the pass that
// averages, in step() or while backward goes on: the same bits, and memory that is free again.

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

/// Weights in channels-last order, whose gradients in another order, in every second step, are
/// copied: the piece of a rank is a range of the memory order.
torch::nn::Sequential channels_last_network() {
  torch::manual_seed(seed());
  torch::nn::Conv2d convolution(32, 64, 3);
  convolution->weight.set_data(convolution->weight.contiguous(torch::MemoryFormat::ChannelsLast));
  return torch::nn::Sequential(convolution);
}
torch::Tensor loss_of_images(WideTraining& training, int step) {
  torch::manual_seed(seed() + static_cast<std::uint64_t>(100 * step + training.world.rank()));
  auto images = torch::randn({2, 32, 6, 6});
  if (step % 2 == 0) images = images.contiguous(torch::MemoryFormat::ChannelsLast);
  return training.network->forward(images).pow(2).mean();
}

void clipped_steps(WideTraining& training) {
  for (int step = 0; step < 4; ++step) {
    training.optimizer.zero_grad();
    training.loss(step).backward();
    training.optimizer.clip_grad_norm_(0.1);
    training.optimizer.step();
  }
}

/// LibTorch 1.13's zero_grad() leaves `.grad` defined: autograd adds to what the last step has
/// left.
void steps_zeroed_in_place(WideTraining& training) {
  for (int step = 0; step < 4; ++step) {
    if (step % 2 == 0) training.optimizer.zero_grad();
    for (auto& parameter : training.network->parameters()) {
      if (step % 2 == 1) parameter.mutable_grad().zero_();
    }
    training.loss(step).backward();
    training.optimizer.step();
  }
}

void scaled_steps(WideTraining& training) {
  GradScaler scaler(training.optimizer, {.initial_scale = 1024.0});
  for (int step = 0; step < 4; ++step) {
    training.optimizer.zero_grad();
    scaler.scale(training.loss(step)).backward();
    scaler.step();
    scaler.update();
  }
}

/// In every 16th round ranks compare learning rates.
void steps_of_falling_rates(WideTraining& training) {
  for (int step = 0; step < 18; ++step) {
    training.step(step);
    training.scale_rates(0.9);
  }
}

torch::Tensor loss_with_one_rank_freezing(WideTraining& training, int step) {
  for (const int layer : {0, 1, 2}) {
    training.weight(layer).set_requires_grad(training.world.rank() != 0 || step % 3 != layer);
  }
  return training.loss(step);
}

void steps_of_gradients_that_add_up(WideTraining& training) {
  training.optimizer.set_backward_passes_per_step(2);
  for (int step = 0; step < 3; ++step) {
    training.optimizer.zero_grad();
    {
      const auto guard = training.optimizer.no_sync();
      training.loss(10 * step).backward();
    }
    for (int pass = 1; pass < 3; ++pass) training.loss(10 * step + pass).backward();
    training.optimizer.step();
  }
}

/// The graph of the first pass is used again by the second, which completes the gradients.
void steps_of_two_passes_of_a_graph(WideTraining& training) {
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
  static inline std::function<torch::Tensor(const torch::Tensor&)> segment;

  static torch::Tensor forward(torch::autograd::AutogradContext* context,
                               const torch::Tensor& input) {
    context->save_for_backward({input});
    return segment(input);
  }
  static variable_list backward(torch::autograd::AutogradContext* context,
                                const variable_list& gradients) {
    const torch::AutoGradMode enabled(true);
    const auto input = context->get_saved_variables()[0].detach().requires_grad_(true);
    segment(input).backward(gradients[0]);
    return {input.grad()};
  }
};

torch::Tensor loss_of_recomputed(WideTraining& training, int step, bool twice) {
  auto* const middle = training.network[2]->as<torch::nn::Linear>();
  Recomputed::segment = [middle](const torch::Tensor& input) { return middle->forward(input); };
  auto hidden = training.network[0]->as<torch::nn::Linear>()->forward(
      torch::full({4, 256}, 0.01 * (step + 1 + training.world.rank())));
  hidden = Recomputed::apply(hidden);
  if (twice) hidden = middle->forward(hidden);
  return training.network[4]->as<torch::nn::Linear>()->forward(hidden).pow(2).mean();
}

torch::Tensor loss_of_segment(WideTraining& training, int step) {
  return loss_of_recomputed(training, step, /*twice=*/false);
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
  DistributedOptimizerOptions options = {};
  Sharding most = Sharding::in_backward;
  MakeNetwork network = wide_network;
};

const std::vector<SameBits> kSameBits{
    {"Plain", plain_steps},
    {"ClippedSums", clipped_steps, {.op = ReduceOp::sum}, Sharding::off},
    {"ZeroedInPlace", steps_zeroed_in_place, {}, Sharding::off},
    {"Scaled", scaled_steps, {}, Sharding::fused},
    {"FallingRates", steps_of_falling_rates},
    {"Sums", plain_steps, {.op = ReduceOp::sum}},
    {"Predivided", plain_steps, {.gradient_predivide_factor = 3.0}},
    {"SomeRanksLackGradients", steps_where_some_ranks_lack_gradients},
    {"OneRankFreezes", steps_on(loss_with_one_rank_freezing)},
    {"AddedUp", steps_of_gradients_that_add_up},
    {"TwoPassesOfAGraph", steps_of_two_passes_of_a_graph, {.backward_passes_per_step = 2}},
    {"Penalty", steps_on(loss_with_penalty)},
    {"Recomputed", steps_on(loss_of_segment)},
    {"OtherMemory", steps_in_other_memory},
    {"ChannelsLast", steps_on(loss_of_images), {}, Sharding::in_backward, channels_last_network},
};

class BackwardUpdate : public testing::TestWithParam<SameBits> {};

// Averages of copies and LibTorch's step give these weights; so must every other way.
TEST_P(BackwardUpdate, GivesTheBitsOfCopies) {
  const SameBits& row = GetParam();
  const auto expected = weights_of_copies(row.steps, row.options, row.network);
  const std::vector<std::pair<const char*, Settings>> arenas{
      {"none", with_arena(TensorArenaUse::off)},
      {"one for all gradients", with_arena(TensorArenaUse::on)},
      {"one for some of the gradients", with_arena(TensorArenaUse::on, 300 << 10)}};
  for (const auto& [arena, settings] : arenas) {
    for (const auto& way : {DistributedOptimizerOptions{.bucket_bytes = 70000}, updates_in_step(0),
                            updates_in_step(), updates_in_backward(), updates_in_backward(64)}) {
      if (way.sharding > row.most) continue;
      SCOPED_TRACE(arena + (", sharding " + std::to_string(static_cast<int>(way.sharding))));
      DistributedOptimizerOptions options = row.options;
      options.bucket_bytes = way.bucket_bytes;
      options.sharding = way.sharding;
      const auto actual = weights_after(row.steps, {.settings = settings}, options,
                                        make_momentum<optim::SGD>, row.network);
      expect_same_bits(actual, expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, BackwardUpdate, testing::ValuesIn(kSameBits),
                         [](const auto& tested) { return tested.param.name; });

// Without an engine thread the rest is left to step(), which makes progress itself.
TEST(BackwardUpdateAlone, GivesTheSameBitsWithoutAnEngineThread) {
  const auto settings = with_arena(TensorArenaUse::on);
  const InitOptions alone{.engine_thread = false, .settings = settings};
  expect_same_bits(weights_after(plain_steps, alone, updates_in_backward()),
                   weights_of_copies(plain_steps));
}

TEST(BackwardUpdateAlone, RefusesALayerThatIsUsedInASegmentAndElsewhere) {
  const Context world = init({.settings = with_arena(TensorArenaUse::on)});
  WideTraining training = training_of(world, updates_in_backward());
  EXPECT_ANY_THROW(loss_of_recomputed(training, 0, /*twice=*/true).backward());
}

TEST(BackwardUpdateAlone, GivesGradientsBackWhileBackwardGoesOn) {
  const Context world = init({.settings = with_arena(TensorArenaUse::on)});
  if (!one_node(world)) GTEST_SKIP() << "for ranks that share memory";
  WideTraining training = training_of(world, updates_in_backward(64));
  for (auto& parameter : training.network->parameters()) {
    parameter.register_hook(
        [](const torch::Tensor&) { std::this_thread::sleep_for(std::chrono::milliseconds(10)); });
  }
  std::size_t all = 0;
  for (const auto& parameter : training.network->parameters()) all += parameter.nbytes();
  bool given_back = false;
  std::size_t least = all;
  for (int step = 0; step < 20; ++step) {
    training.optimizer.reset_statistics();
    training.optimizer.zero_grad();
    const torch::Tensor loss = training.loss(step);
    // Each rank in turn is a little later than the others: in a hook it finds what they have given
    // and updated in theirs.
    if (step % world.size() == world.rank()) {
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

TEST(BackwardUpdateAlone, HoldsAllGradientsWhereStepUpdates) {
  const Context world = init({.settings = with_arena(TensorArenaUse::on)});
  WideTraining training = training_of(world, updates_in_step());
  plain_steps(training);
  std::size_t all = 0;
  for (const auto& parameter : training.network->parameters()) all += parameter.nbytes();
  EXPECT_EQ(training.optimizer.statistics().gradient_bytes, all);
}

// Buckets that are updated while backward goes on: what does not go with it is refused, and what
// ends such a step early leaves the ranks alike.

class BackwardUpdateMisuse : public testing::Test {
 protected:
  bool updates_early() const { return one_node(world_); }
  bool is_odd_one() const { return world_.size() > 1 && world_.rank() + 1 == world_.size(); }

  static void backward(const std::vector<WideTraining*>& trainings, int step) {
    for (WideTraining* each : trainings) {
      each->optimizer.zero_grad();
      each->loss(step).backward();
    }
  }
  // A new optimizer goes on with the network.
  void expect_to_go_on(torch::nn::Sequential network) {
    broadcast_parameters(world_, *network);
    const auto wrapped = make_momentum<optim::SGD>(network->parameters());
    DistributedOptimizer optimizer(world_, *wrapped, network->named_parameters(),
                                   updates_in_backward());
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      network->forward(torch::full({4, 256}, 0.1 * (world_.rank() + step)))
          .pow(2)
          .mean()
          .backward();
      optimizer.step();
    }
    expect_alike(world_, network);
  }

  const Context world_ = init({.settings = with_arena(TensorArenaUse::on)});
};

void refused(const std::string& text, const std::function<void()>& call) {
  expect_error(ErrorCode::invalid_use, AllOf(HasSubstr(text), HasSubstr("sharding in_backward")),
               call);
}

TEST_F(BackwardUpdateMisuse, DecisionsAfterBackwardAreRefused) {
  WideTraining training = training_of(world_, updates_in_backward());
  WideTraining expected = training_of(world_, updates_in_step());
  DistributedOptimizer& optimizer = training.optimizer;
  for (int step = 0; step < 3; ++step) {
    backward({&training, &expected}, step);
    refused("zero_grad() after backward()", [&] { optimizer.zero_grad(); });
    refused("synchronize()", [&] { optimizer.synchronize(); });
    refused("clip_grad_norm_()", [&] { optimizer.clip_grad_norm_(1.0); });
    refused("step(closure)", [&] { optimizer.step([&] { return training.loss(step); }); });
    for (WideTraining* each : {&training, &expected}) each->optimizer.step();
    expect_same_bits(training.weights(), expected.weights());
  }
  refused("GradScaler", [&] { GradScaler scaler(optimizer); });
  GradScaler off(optimizer, {.enabled = false});
  for (int step = 3; step < 5; ++step) {
    backward({&training, &expected}, step);
    EXPECT_TRUE(off.step());
    off.update();
    expected.optimizer.step();
    expect_same_bits(training.weights(), expected.weights());
  }
}

TEST_F(BackwardUpdateMisuse, ABackwardThroughTheGraphAgainThrowsAndChangesNothing) {
  WideTraining training = training_of(world_, updates_in_backward());
  WideTraining expected = training_of(world_, updates_in_step());
  for (int step = 0; step < 2; ++step) {
    for (WideTraining* each : {&training, &expected}) each->optimizer.zero_grad();
    const torch::Tensor loss = training.loss(step);
    loss.backward({}, /*retain_graph=*/true);
    EXPECT_ANY_THROW(loss.backward());
    expected.loss(step).backward();
    for (WideTraining* each : {&training, &expected}) each->optimizer.step();
    expect_same_bits(training.weights(), expected.weights());
  }
}

// LibTorch has saved the detached weight for the factor's gradient, which comes after the weight's.
TEST_F(BackwardUpdateMisuse, AWeightThatIsReadAfterItsGradientIsNoticedByLibTorch) {
  const auto weight = torch::full({64}, 2.0, torch::requires_grad());
  const auto factor = torch::full({64}, 3.0, torch::requires_grad());
  const auto sgd = make_momentum<optim::SGD>({factor, weight});
  DistributedOptimizer optimizer(world_, *sgd, {{"factor", factor}, {"weight", weight}},
                                 updates_in_backward(64));
  const auto loss = ((factor * weight.detach()) * weight).sum();
  if (!updates_early()) {
    loss.backward();
    optimizer.step();
    return;
  }
  try {
    loss.backward();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const c10::Error& error) {
    EXPECT_THAT(std::string(error.what()), HasSubstr("modified by an inplace operation"));
  }
  optimizer.step();  // the factor has no gradient
  EXPECT_TRUE(torch::equal(factor, torch::full({64}, 3.0)));
  EXPECT_TRUE(torch::allclose(weight, torch::full({64}, 2.0 - 0.1 * 6.0)));
}

TEST_F(BackwardUpdateMisuse, AParameterWithOtherMemoryBeforeStepIsAnError) {
  WideTraining training = training_of(world_, updates_in_backward());
  training.loss(0).backward();
  training.weight(1).set_data(training.weight(1).detach().clone());
  if (!updates_early()) return training.optimizer.step();
  refused("other memory", [&] { training.optimizer.step(); });
}

TEST_F(BackwardUpdateMisuse, ANewParameterIsAnErrorBeforeAnythingIsUpdated) {
  WideTraining training = training_of(world_, updates_in_backward());
  training.optimizer.zero_grad();
  training.wrapped->param_groups()[0].params().push_back(torch::zeros({3}, torch::requires_grad()));
  const auto before = training.weights();
  expect_error(ErrorCode::invalid_argument, HasSubstr("was added to the wrapped optimizer"), [&] {
    training.loss(0).backward();
    training.optimizer.step();
  });
  expect_same_bits(training.weights(), before);
}

TEST_F(BackwardUpdateMisuse, RanksWithOtherParametersAreToldBeforeAnythingIsUpdated) {
  WideTraining training = training_of(world_, updates_in_backward());
  if (is_odd_one()) {
    const torch::NoGradGuard no_grad;
    training.weight(0).add_(1.0);
  }
  const auto before = training.weights();
  training.loss(0).backward();
  if (world_.size() == 1) return training.optimizer.step();
  expect_error(ErrorCode::mismatch, HasSubstr("Call broadcast_parameters"),
               [&] { training.optimizer.step(); });
  expect_same_bits(training.weights(), before);
  training.optimizer.zero_grad();
  broadcast_parameters(world_, *training.network);
  plain_steps(training);
  expect_alike(world_, training.network);
}

TEST_F(BackwardUpdateMisuse, RanksInDifferentStepsAreToldBeforeAnythingIsUpdated) {
  WideTraining training = training_of(world_, updates_in_backward());
  plain_steps(training);
  const auto before = training.weights();
  training.optimizer.zero_grad();
  if (is_odd_one()) training.optimizer.zero_grad();
  training.loss(9).backward();
  if (world_.size() == 1) return training.optimizer.step();
  expect_error(ErrorCode::mismatch, HasSubstr("No rank has been updated"),
               [&] { training.optimizer.step(); });
  expect_same_bits(training.weights(), before);
}

TEST_F(BackwardUpdateMisuse, DestroyedBeforeStepOnAllRanksTheyAreAlike) {
  auto training = std::make_unique<WideTraining>(training_of(world_, updates_in_backward()));
  plain_steps(*training);
  auto network = training->network;
  training->optimizer.zero_grad();
  training->loss(9).backward();
  {
    const LoggedLines lines;
    training.reset();
    EXPECT_EQ(lines.have("some of the parameters"), updates_early());
  }
  expect_alike(world_, network);
  expect_to_go_on(network);
}

TEST_F(BackwardUpdateMisuse, DestroyedBeforeStepOnOneRankTheOthersAreTold) {
  std::optional<WideTraining> training(training_of(world_, updates_in_backward()));
  training->loss(0).backward();
  if (world_.size() == 1) return training->optimizer.step();
  if (is_odd_one()) {
    training.reset();
    return;
  }
  const std::string text = updates_early() ? "Some parameters have been" : "No rank has been";
  expect_error(ErrorCode::mismatch, HasSubstr(text), [&] { training->optimizer.step(); });
}

TEST_F(BackwardUpdateMisuse, AfterAnExceptionOnAllRanksStepEndsTheStep) {
  WideTraining training = training_of(world_, updates_in_backward());
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

// The pass that averages and updates, by each optimizer that it takes, with groups of different
// options, on gradients that lie in the tensor arena and on those that do not.

struct OptimizerKind {
  std::string name;
  MakeOptimizer make;
};

/// All parameters in one group.
template <class Optimizer, class Options>
MakeOptimizer in_one_group(const Options& options) {
  return [options](std::vector<torch::Tensor> parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

/// Weights in one group, biases in another, so that pieces of a bucket alternate between them.
template <class Optimizer, class Options>
MakeOptimizer in_two_groups(const Options& of_weights, const Options& of_biases) {
  return [of_weights, of_biases](const std::vector<torch::Tensor>& parameters) {
    std::vector<torch::Tensor> weights, biases;
    for (const auto& one : parameters) (one.dim() > 1 ? weights : biases).push_back(one);
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::move(weights), std::make_unique<Options>(of_weights));
    groups.emplace_back(std::move(biases), std::make_unique<Options>(of_biases));
    return std::make_unique<Optimizer>(std::move(groups), of_weights);
  };
}

const OptimizerKind kOptimizerKinds[] = {
    {"Sgd", in_one_group<optim::SGD>(SGDOptions(0.05))},
    {"SgdDampening",
     in_one_group<optim::SGD>(SGDOptions(0.05).momentum(0.9).dampening(0.3).weight_decay(1e-3))},
    {"SgdGroups",
     in_two_groups<optim::SGD>(SGDOptions(0.05).momentum(0.9).nesterov(true).weight_decay(1e-2),
                               SGDOptions(0.02))},
    {"Adam", in_one_group<optim::Adam>(AdamOptions(0.01))},
    {"AdamAmsgrad", in_one_group<optim::Adam>(AdamOptions(0.01).amsgrad(true).weight_decay(0.02))},
    {"AdamGroups",
     in_two_groups<optim::Adam>(AdamOptions(0.01).weight_decay(0.02).betas({0.87, 0.98}),
                                AdamOptions(0.003).eps(1e-5).amsgrad(true))},
    {"AdamW", in_one_group<optim::AdamW>(AdamWOptions(0.01))},
    {"AdamWGroups", in_two_groups<optim::AdamW>(AdamWOptions(0.01).weight_decay(0.3),
                                                AdamWOptions(0.004).weight_decay(0))},
};

using Case = std::tuple<OptimizerKind, TensorArenaUse>;
class FusedUpdateOptimizers : public testing::TestWithParam<Case> {};

// The same optimizer gives these without shards; optim_test says that they are LibTorch's.
TEST_P(FusedUpdateOptimizers, GiveTheBitsOfAveragesAndAStepApart) {
  const auto& [kind, arena] = GetParam();
  const Context world = init({.settings = with_arena(arena)});
  WideTraining apart(world, {}, kind.make);
  WideTraining fused(world, updates_in_step(), kind.make);
  WideTraining in_backward(world, updates_in_backward(), kind.make);
  const bool shares_memory = world.cross_size() == 1 && world.size() > 1;
  std::size_t all = 0;
  for (const auto& weight : fused.weights()) all += weight.nbytes();
  for (int step = 0; step < 6; ++step) {
    for (WideTraining* training : {&apart, &in_backward, &fused}) {
      if (step == 3) training->scale_rates(0.5);
      const auto before = world.statistics().bytes;
      training->step(step);
      if (training == &fused && shares_memory && step > 0) {
        EXPECT_LT(world.statistics().bytes - before, all / 2)
            << "the gradients went through collectives";
      }
    }
    expect_same_bits(fused.weights(), apart.weights());
    expect_same_bits(in_backward.weights(), apart.weights());
  }
}

INSTANTIATE_TEST_SUITE_P(Arena, FusedUpdateOptimizers,
                         testing::Combine(testing::ValuesIn(kOptimizerKinds),
                                          testing::Values(TensorArenaUse::off, TensorArenaUse::on)),
                         [](const auto& tested) {
                           const bool is_on = std::get<1>(tested.param) == TensorArenaUse::on;
                           return std::get<0>(tested.param).name + (is_on ? "On" : "Off");
                         });

}  // namespace
}  // namespace hora::internal::test
