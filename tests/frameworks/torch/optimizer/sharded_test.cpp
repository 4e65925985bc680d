// ZeRO stage 1: the same bits as without, in a part of the memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch/optim.h>

#include <limits>
#include <memory>
#include <string>

#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;

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

  Sharding sharding() const {
    return name.starts_with("fused") ? Sharding::fused : Sharding::state;
  }
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
    {"fused_sgd",
     [](auto all) {
       return make_in_groups<optim::SGD>(
           all, torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-3).nesterov(true));
     }},
    {"fused_adam",
     [](auto all) {
       return make_in_groups<optim::Adam>(all, torch::optim::AdamOptions(0.01).amsgrad(true));
     }},
    {"fused_adamw",
     [](auto all) { return make_in_groups<optim::AdamW>(all, torch::optim::AdamWOptions(0.01)); }},
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
  Training sharded(world_, {.bucket_bytes = 1024, .sharding = GetParam().sharding()},
                   GetParam().make);
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

}  // namespace
}  // namespace hora::internal::test
