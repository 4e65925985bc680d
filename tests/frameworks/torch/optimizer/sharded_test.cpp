// Sharded state, and the pass that averages and updates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch/optim.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/frameworks/torch/process_sets.h"
#include "tests/support/expect_error.h"
#include "tests/support/logged_lines.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;

// ZeRO stage 1: the same bits as without, in a part of the memory.

// Two groups: weights, and biases with options of their own.
template <class Optimizer, class Options>
std::unique_ptr<torch::optim::Optimizer> make_in_groups(const std::vector<torch::Tensor>& all,
                                                        const Options& options) {
  std::vector<torch::Tensor> weights;
  std::vector<torch::Tensor> biases;
  for (const auto& tensor : all) (tensor.dim() > 1 ? weights : biases).push_back(tensor);
  auto of_biases = std::make_unique<Options>(options);
  of_biases->lr(options.lr() * 2);
  return std::make_unique<Optimizer>(
      std::vector<torch::optim::OptimizerParamGroup>{
          torch::optim::OptimizerParamGroup(weights),
          torch::optim::OptimizerParamGroup(biases, std::move(of_biases))},
      options);
}

struct Kind {
  std::string name;
  MakeOptimizer make;
};

const Kind kKinds[] = {
    {"sgd",
     [](auto all) {
       return make_in_groups<torch::optim::SGD>(
           all, torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-3).nesterov(true));
     }},
    {"adam",
     [](auto all) {
       return make_in_groups<torch::optim::Adam>(all,
                                                 torch::optim::AdamOptions(0.01).amsgrad(true));
     }},
    {"adamw",
     [](auto all) {
       return make_in_groups<torch::optim::AdamW>(all, torch::optim::AdamWOptions(0.01));
     }},
    {"rmsprop",
     [](auto all) {
       return make_in_groups<torch::optim::RMSprop>(
           all, torch::optim::RMSpropOptions(0.01).momentum(0.5));
     }},
    {"adagrad",
     [](auto all) {
       return make_in_groups<torch::optim::Adagrad>(all, torch::optim::AdagradOptions(0.05)
                                                             .lr_decay(0.1)
                                                             .weight_decay(1e-3)
                                                             .initial_accumulator_value(0.2));
     }},
};

class Sharded : public testing::TestWithParam<Kind> {
 protected:
  const Context world_ = init();
};

TEST_P(Sharded, GivesTheBitsOfTheWholeOptimizer) {
  Training whole(world_, {.bucket_bytes = 1024}, GetParam().make);
  Training sharded(world_, {.bucket_bytes = 1024, .sharding = Sharding::state}, GetParam().make);
  torch::optim::StepLR schedule(*whole.wrapped, 2, 0.5);
  torch::optim::StepLR schedule_of_shards(*sharded.wrapped, 2, 0.5);
  for (int step = 0; step < 6; ++step) {
    whole.step(my_batch(world_, step));
    sharded.step(my_batch(world_, step));
    schedule.step();
    schedule_of_shards.step();
    expect_same_bits(sharded.network->parameters(), whole.network->parameters());
  }
}

TEST_P(Sharded, GivesTheOptimizerItsParametersBack) {
  if (GetParam().name == "adagrad") GTEST_SKIP() << "its state is gone";
  torch::nn::Sequential network = small_network(seed());
  torch::nn::Sequential expected = small_network(seed());
  const auto wrapped = GetParam().make(network->parameters());
  const auto step = [&](torch::nn::Sequential& module, torch::optim::Optimizer& of, int number,
                        const DistributedOptimizerOptions& options) {
    DistributedOptimizer optimizer(world_, of, module->named_parameters(), options);
    optimizer.zero_grad();
    loss_of(module, my_batch(world_, number)).backward();
    optimizer.step();
  };
  for (const Sharding sharding : {Sharding::state, Sharding::off, Sharding::state}) {
    const int number = sharding == Sharding::off ? 2 : 1;
    step(network, *wrapped, number, {.sharding = sharding});
    step(expected, *GetParam().make(expected->parameters()), number, {});
    expect_same_bits(network->parameters(), expected->parameters());
    if (sharding != Sharding::off) {
      EXPECT_TRUE(wrapped->state().empty());
    }
    wrapped->state().clear();
  }
  loss_of(network, my_batch(world_, 3)).backward();
  wrapped->step();
  EXPECT_FALSE(torch::equal(network->parameters()[0], expected->parameters()[0]));
}

INSTANTIATE_TEST_SUITE_P(Optimizers, Sharded, testing::ValuesIn(kKinds),
                         [](const auto& of) { return of.param.name; });

// Bytes of Adam's two moments on this rank.
std::int64_t state_bytes(torch::optim::Optimizer& optimizer) {
  std::int64_t bytes = 0;
  for (const auto& entry : optimizer.state()) {
    const auto& state = static_cast<const torch::optim::AdamParamState&>(*entry.second);
    bytes += static_cast<std::int64_t>(state.exp_avg().nbytes() + state.exp_avg_sq().nbytes());
  }
  return bytes;
}

TEST(ShardedState, TakesItsPartOfTheMemory) {
  const Context world = init();
  Training whole(world, {}, make_adam);
  Training sharded(world, {.sharding = Sharding::state}, make_adam);
  whole.step(my_batch(world, 0));
  sharded.step(my_batch(world, 0));
  const std::int64_t all = state_bytes(*whole.wrapped);
  // Slices are equal up to padding: of each of 6 gradients to 64 bytes, and of the slice.
  const std::int64_t padding = 2 * (6 * 64 + 64 * world.size());
  EXPECT_LE(state_bytes(*sharded.wrapped), all / world.size() + padding);
  torch::Tensor sum = torch::tensor({state_bytes(*sharded.wrapped)});
  allreduce_(world, sum, {.op = ReduceOp::sum});
  EXPECT_EQ(sum.item<std::int64_t>(), all) << "each element on one rank";
}

TEST(ShardedState, GradientsAreTheSharesAndCanBeClipped) {
  const Context world = init();
  Training whole(world);
  Training sharded(world, {.sharding = Sharding::state});
  for (int step = 0; step < 3; ++step) {
    for (Training* training : {&whole, &sharded}) {
      training->optimizer.zero_grad();
      training->backward(my_batch(world, step));
    }
    const double expected = whole.optimizer.clip_grad_norm_(0.25);
    EXPECT_NEAR(sharded.optimizer.clip_grad_norm_(0.25), expected, 1e-6 * expected);
    for (const auto& parameter : sharded.network->parameters()) {
      EXPECT_TRUE(parameter.grad().is_meta()) << "nothing that could be read";
    }
    whole.optimizer.step();
    sharded.optimizer.step();
    expect_close(sharded.network->parameters(), whole.network->parameters(), 1e-6);
  }
  for (const auto& parameter : sharded.network->parameters()) {
    EXPECT_TRUE(equals_root(world, parameter));
  }
}

TEST(ShardedState, LibTorchsClippingThrows) {
  const Context world = init();
  Training training(world, {.sharding = Sharding::state});
  Training plain(world, {.sharding = Sharding::state});
  for (int step = 0; step < 2; ++step) {
    training.backward(my_batch(world, step));
    training.optimizer.synchronize();
    EXPECT_THROW(torch::nn::utils::clip_grad_norm_(training.network->parameters(), 0.1),
                 c10::Error);
    EXPECT_THROW(torch::nn::utils::clip_grad_norm_(training.network->parameters()[0], 0.1),
                 c10::Error);
    training.optimizer.step();  // the next backward() finds no gradient to add to
    plain.step(my_batch(world, step));
  }
  expect_same_bits(training.network->parameters(), plain.network->parameters());
}

TEST(ShardedState, LateParametersAreCompleteAfterZeroGrad) {
  const Context world = init();
  Training whole(world);
  Training late(world, {.sharding = Sharding::state, .overlap_parameter_gather = true});
  for (int step = 0; step < 4; ++step) {
    whole.step(my_batch(world, step));
    late.step(my_batch(world, step));
  }
  late.optimizer.complete_parameters();
  late.optimizer.complete_parameters();  // nothing is left to wait for
  expect_same_bits(late.network->parameters(), whole.network->parameters());
  late.step(my_batch(world, 4));  // and dropped while under way
}

TEST(ShardedState, AnOptimizerThatHasSteppedIsRefused) {
  const Context world = init();
  torch::nn::Sequential network = small_network(seed());
  const auto sgd = make_sgd(network->parameters());
  loss_of(network, my_batch(world, 0)).backward();
  sgd->step();
  expect_error(ErrorCode::invalid_use, HasSubstr("before its first step"), [&] {
    DistributedOptimizer(world, *sgd, network->named_parameters(), {.sharding = Sharding::state});
  });
}

// The pass that averages and updates: the same bits as averages and a step apart.

std::unique_ptr<torch::optim::Optimizer> make_fused(std::vector<torch::Tensor> parameters) {
  return std::make_unique<optim::SGD>(
      std::move(parameters), torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-3));
}

class FusedUpdateTest : public testing::Test {
 protected:
  bool is_one_node() const { return world_.cross_size() == 1; }

  const Context world_ = init();
  Training apart_{world_, {.bucket_bytes = 1024}, make_sgd};
  Training fused_{world_, {.bucket_bytes = 1024, .sharding = Sharding::fused}, make_fused};

  void expect_same() {
    expect_same_bits(fused_.network->parameters(), apart_.network->parameters());
  }
  void step_both(int step) {
    apart_.step(my_batch(world_, step));
    fused_.step(my_batch(world_, step));
    expect_same();
  }
};

TEST_F(FusedUpdateTest, ASwitchedOffGradScalerLeavesThemThere) {
  if (!is_one_node() || world_.size() == 1) GTEST_SKIP() << "for ranks that share memory";
  GradScaler scaler(fused_.optimizer, {.enabled = false});
  std::size_t bytes = 0;
  for (const auto& parameter : fused_.network->parameters()) bytes += parameter.nbytes();
  for (int step = 0; step < 3; ++step) {
    apart_.step(my_batch(world_, step));
    const auto before = world_.statistics().bytes;
    fused_.optimizer.zero_grad();
    scaler.scale(loss_of(fused_.network, my_batch(world_, step))).backward();
    EXPECT_TRUE(scaler.step());
    scaler.update();
    if (step > 0) {
      EXPECT_LT(world_.statistics().bytes - before, bytes);
    }
    expect_same();
  }
}

TEST_F(FusedUpdateTest, AnOptimizerThatCannotIsNamedOnce) {
  const LoggedLines log;
  Training training(world_, {.sharding = Sharding::fused}, make_sgd);
  training.step(my_batch(world_, 0));
  EXPECT_EQ(log.with("sharding fused does no more than state with torch::optim::SGD").size(),
            world_.rank() == 0 ? 1U : 0U);
}

TEST_F(FusedUpdateTest, SomeRanksMayWantTheAverages) {
  for (int step = 0; step < 4; ++step) {
    apart_.step(my_batch(world_, step));
    fused_.optimizer.zero_grad();
    fused_.backward(my_batch(world_, step));
    if (step % 2 == 1 && world_.rank() == 0) fused_.optimizer.synchronize();
    fused_.optimizer.step();
    expect_same();
  }
}

TEST_F(FusedUpdateTest, ClippedStepsAreTakenAfterTheAverages) {
  for (int step = 0; step < 4; ++step) {
    for (Training* training : {&apart_, &fused_}) {
      training->optimizer.zero_grad();
      training->backward(my_batch(world_, step));
      if (step == 2) training->optimizer.clip_grad_norm_(1e-3);
      training->optimizer.step();
    }
    if (step < 2) expect_same();
    expect_close(fused_.network->parameters(), apart_.network->parameters(), 1e-6);
  }
}

TEST_F(FusedUpdateTest, ScaledAndAccumulatedStepsGiveTheSame) {
  apart_.optimizer.set_backward_passes_per_step(2);
  fused_.optimizer.set_backward_passes_per_step(2);
  GradScaler of_apart(apart_.optimizer, {.initial_scale = 1024.0});
  GradScaler of_fused(fused_.optimizer, {.initial_scale = 1024.0});
  const auto train = [&](Training& training, GradScaler& scaler, int step) {
    training.optimizer.zero_grad();
    for (int pass = 0; pass < 2; ++pass) {
      scaler.scale(loss_of(training.network, my_batch(world_, 2 * step + pass))).backward();
    }
    scaler.step();
    scaler.update();
  };
  for (int step = 0; step < 3; ++step) {
    train(apart_, of_apart, step);
    train(fused_, of_fused, step);
    expect_same();
  }
}

TEST_F(FusedUpdateTest, OtherTypesSumsAndSetsGiveTheSame) {
  const ParitySet parity(world_);
  const std::pair<DistributedOptimizerOptions, torch::ScalarType> cases[] = {
      {{}, torch::kDouble},
      {{.op = ReduceOp::sum, .bucket_bytes = 1024}, torch::kFloat},
      {{.bucket_bytes = 1024, .gradient_predivide_factor = 3.0}, torch::kFloat},
      {{.bucket_bytes = 1024, .process_set = parity.id}, torch::kFloat}};
  for (const auto& [options, type] : cases) {
    Training apart(world_, options, make_sgd, type);
    DistributedOptimizerOptions with_update = options;
    with_update.sharding = Sharding::fused;
    Training fused(world_, with_update, make_fused, type);
    with_update.overlap_parameter_gather = true;
    Training late(world_, with_update, make_fused, type);
    for (int step = 0; step < 3; ++step) {
      for (Training* training : {&apart, &fused, &late}) {
        training->step(my_batch(world_, step, 2, type));
      }
      expect_same_bits(fused.network->parameters(), apart.network->parameters());
      late.optimizer.complete_parameters();
      expect_same_bits(late.network->parameters(), apart.network->parameters());
    }
  }
  barrier(world_);
}

TEST_F(FusedUpdateTest, DiscardedStepsChangeNothing) {
  step_both(0);
  fused_.optimizer.zero_grad();
  fused_.backward(my_batch(world_, 9));
  fused_.optimizer.zero_grad();
  step_both(1);
  step_both(2);
}

TEST_F(FusedUpdateTest, ParametersMayMoveToAndFro) {
  const auto parameters = fused_.network->parameters();
  std::vector<torch::Tensor> shared, own;
  for (const auto& parameter : parameters) {
    shared.push_back(parameter.detach());
    own.push_back(parameter.detach().clone());
  }
  const auto move_to = [&](const std::vector<torch::Tensor>& memory) {
    for (std::size_t i = 0; i < memory.size(); ++i) {
      const torch::NoGradGuard no_grad;
      memory[i].copy_(parameters[i]);
      torch::Tensor(parameters[i]).set_data(memory[i]);
    }
  };
  int step = 0;
  for (const auto* memory : {&own, &shared, &own, &shared}) {
    move_to(*memory);
    step_both(step++);
  }
}

TEST_F(FusedUpdateTest, ATensorInAParametersMemoryGoesOnShowingIt) {
  torch::nn::Sequential network = small_network(seed());
  const auto weight = network->parameters()[0];
  const torch::Tensor view = weight.detach().view(-1);
  const auto optimizer = make_fused(network->parameters());
  DistributedOptimizer wrapped(world_, *optimizer, network->named_parameters(),
                               {.sharding = Sharding::fused});
  EXPECT_EQ(weight.data_ptr(), view.data_ptr());
  loss_of(network, my_batch(world_, 0)).backward();
  wrapped.step();
  EXPECT_TRUE(torch::equal(weight.detach().view(-1), view));
}

TEST_F(FusedUpdateTest, ParametersOutliveTheOptimizer) {
  step_both(0);
  const auto kept = fused_.network->parameters();
  {
    torch::nn::Sequential network = small_network(seed());
    const auto wrapped = make_fused(network->parameters());
    {
      DistributedOptimizer(world_, *wrapped, network->named_parameters(),
                           {.sharding = Sharding::fused});
    }
    EXPECT_TRUE(torch::isfinite(network->parameters()[0]).all().item<bool>());
  }
  step_both(1);
}

}  // namespace
}  // namespace hora::internal::test
