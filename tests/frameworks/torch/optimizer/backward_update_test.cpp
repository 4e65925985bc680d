// Gradients that stay where autograd has put them, buckets that are updated by the pass that
// averages, in step() or while backward goes on: the same bits, and memory that is free again.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "tests/frameworks/torch/optimizer/wide_training.h"

namespace hora::internal::test {
namespace {

using torch::autograd::variable_list;

/// Averages of copies and LibTorch's step give these weights; so must every other way.
void expect_bits_of_copies(const Steps& steps) {
  std::vector<torch::Tensor> expected;
  {
    const Context world = init({.settings = with_arena(TensorArenaUse::off)});
    WideTraining training(world);
    steps(training);
    expected = training.weights();
  }
  const std::vector<std::pair<const char*, Settings>> arenas{
      {"none", with_arena(TensorArenaUse::off)},
      {"one for all gradients", with_arena(TensorArenaUse::on)},
      {"one for some of the gradients", with_arena(TensorArenaUse::on, 300 << 10)}};
  for (const auto& [arena, settings] : arenas) {
    for (const auto& options :
         {DistributedOptimizerOptions{.bucket_bytes = 70000}, updates_in_step(0), updates_in_step(),
          updates_in_backward(), updates_in_backward(64)}) {
      SCOPED_TRACE(arena + (", sharding " + std::to_string(static_cast<int>(options.sharding))));
      expect_same_bits(weights_after(steps, settings, options), expected);
    }
  }
}

void expect_bits_with(const Steps& steps,
                      const std::function<void(DistributedOptimizerOptions&)>& with) {
  auto in_step = updates_in_step();
  auto in_backward = updates_in_backward();
  with(in_step);
  with(in_backward);
  const auto settings = with_arena(TensorArenaUse::on);
  expect_same_bits(weights_after(steps, settings, in_backward),
                   weights_after(steps, settings, in_step));
}

/// `count` steps on `loss`.
Steps steps_on(const std::function<torch::Tensor(WideTraining&, int)>& loss, int count = 4) {
  return [loss, count](WideTraining& training) {
    for (int step = 0; step < count; ++step) {
      training.optimizer.zero_grad();
      loss(training, step).backward();
      training.optimizer.step();
    }
  };
}

TEST(BackwardUpdate, GivesTheBitsOfUpdatesInStep) {
  expect_bits_of_copies(plain_steps);
}

// In every 16th round ranks compare learning rates.
TEST(BackwardUpdate, GivesTheSameBitsOverRatesThatChangeBetweenSteps) {
  expect_bits_of_copies([](WideTraining& training) {
    for (int step = 0; step < 18; ++step) {
      training.optimizer.zero_grad();
      training.loss(step).backward();
      training.optimizer.step();
      for (auto& group : training.wrapped->param_groups()) {
        group.options().set_lr(0.9 * group.options().get_lr());
      }
    }
  });
}

// Without an engine thread the rest is left to step(), which makes progress itself.
TEST(BackwardUpdate, GivesTheSameBitsWithoutAnEngineThread) {
  const auto settings = with_arena(TensorArenaUse::on);
  const auto expected = weights_after(plain_steps, settings, updates_in_step());
  const InitOptions alone{.engine_thread = false, .settings = settings};
  expect_same_bits(weights_after(plain_steps, alone, updates_in_backward()), expected);
}

TEST(BackwardUpdate, GivesTheSameBitsOfSumsAndPredividedAverages) {
  expect_bits_with(plain_steps, [](auto& options) { options.op = ReduceOp::sum; });
  expect_bits_with(plain_steps, [](auto& options) { options.gradient_predivide_factor = 3.0; });
}

TEST(BackwardUpdate, GivesTheSameBitsWhereSomeRanksLackGradients) {
  expect_bits_of_copies(steps_where_some_ranks_lack_gradients);
}

TEST(BackwardUpdate, GivesTheSameBitsWhereOneRankFreezesAParameter) {
  expect_bits_of_copies(steps_on([](WideTraining& training, int step) {
    for (const int layer : {0, 1, 2}) {
      training.weight(layer).set_requires_grad(training.world.rank() != 0 || step % 3 != layer);
    }
    return training.loss(step);
  }));
}

TEST(BackwardUpdate, GivesTheSameBitsOfGradientsThatAddUp) {
  expect_bits_of_copies([](WideTraining& training) {
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
  });
}

// The graph of the first pass is used again by the second, which completes the gradients.
TEST(BackwardUpdate, GivesTheSameBitsOfAGraphThatTwoPassesUse) {
  expect_bits_with(
      [](WideTraining& training) {
        for (int step = 0; step < 3; ++step) {
          training.optimizer.zero_grad();
          const torch::Tensor loss = training.loss(step);
          loss.backward({}, /*retain_graph=*/true);
          loss.backward();
          training.optimizer.step();
        }
      },
      [](auto& options) { options.backward_passes_per_step = 2; });
}

// Gradients of gradients: all of a parameter's uses are done before its gradient is complete.
TEST(BackwardUpdate, GivesTheSameBitsUnderAPenaltyOnGradients) {
  expect_bits_of_copies(steps_on([](WideTraining& training, int step) {
    torch::manual_seed(seed() + static_cast<std::uint64_t>(step));
    const auto input = torch::randn({4, 256}, torch::requires_grad());
    const auto loss = training.network->forward(input).pow(2).mean();
    const auto slopes = torch::autograd::grad({loss}, {input}, {}, {}, /*create_graph=*/true);
    return loss + slopes[0].pow(2).mean();
  }));
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

TEST(BackwardUpdate, GivesTheSameBitsOfASegmentThatIsComputedAgain) {
  expect_bits_of_copies(steps_on([](WideTraining& training, int step) {
    return loss_of_recomputed(training, step, /*twice=*/false);
  }));
}

TEST(BackwardUpdate, RefusesALayerThatIsUsedInASegmentAndElsewhere) {
  const Context world = init({.settings = with_arena(TensorArenaUse::on)});
  WideTraining training = training_of(world, updates_in_backward());
  EXPECT_ANY_THROW(loss_of_recomputed(training, 0, /*twice=*/true).backward());
}

TEST(BackwardUpdate, GivesTheSameBitsFromOtherMemoryOfParameters) {
  expect_bits_of_copies([](WideTraining& training) {
    plain_steps(training);
    for (const int layer : {2, 1}) {
      auto weight = training.weight(layer);
      // Ranks differ in which.
      if (layer == 2 || training.world.rank() == 0) weight.set_data(weight.detach().clone());
      plain_steps(training);
    }
  });
}

TEST(BackwardUpdate, GivesGradientsBackWhileBackwardGoesOn) {
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

TEST(BackwardUpdate, HoldsAllGradientsWhereStepUpdates) {
  const Context world = init({.settings = with_arena(TensorArenaUse::on)});
  WideTraining training = training_of(world, updates_in_step());
  plain_steps(training);
  std::size_t all = 0;
  for (const auto& parameter : training.network->parameters()) all += parameter.nbytes();
  EXPECT_EQ(training.optimizer.statistics().gradient_bytes, all);
}

}  // namespace
}  // namespace hora::internal::test
