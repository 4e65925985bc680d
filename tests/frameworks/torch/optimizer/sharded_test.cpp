// Sharded state, and the pass that averages and updates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"
#include "tests/support/logged_lines.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;

// ZeRO stage 1, in a part of the memory.

using ShardedState = WorldTest;

// Bytes of Adam's two moments on this rank.
std::int64_t state_bytes(torch::optim::Optimizer& optimizer) {
  std::int64_t bytes = 0;
  for (const auto& entry : optimizer.state()) {
    const auto& state = static_cast<const torch::optim::AdamParamState&>(*entry.second);
    bytes += static_cast<std::int64_t>(state.exp_avg().nbytes() + state.exp_avg_sq().nbytes());
  }
  return bytes;
}

TEST_F(ShardedState, TakesItsPartOfTheMemory) {
  Training whole(world_, {}, make_adam);
  Training sharded(world_, {.sharding = Sharding::state}, make_adam);
  whole.step(my_batch(world_, 0));
  sharded.step(my_batch(world_, 0));
  const std::int64_t all = state_bytes(*whole.wrapped);
  // Slices are equal up to padding: of each of 6 gradients to 64 bytes, and of the slice.
  const std::int64_t padding = 2 * (6 * 64 + 64 * world_.size());
  EXPECT_LE(state_bytes(*sharded.wrapped), all / world_.size() + padding);
  torch::Tensor sum = torch::tensor({state_bytes(*sharded.wrapped)});
  allreduce_(world_, sum, {.op = ReduceOp::sum});
  EXPECT_EQ(sum.item<std::int64_t>(), all) << "each element on one rank";
}

TEST_F(ShardedState, GivesTheOptimizerItsParametersBack) {
  torch::nn::Sequential network = small_network(seed());
  torch::nn::Sequential expected = small_network(seed());
  const auto wrapped = make_sgd(network->parameters());
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
    step(expected, *make_sgd(expected->parameters()), number, {});
    expect_same_bits(network->parameters(), expected->parameters());
    EXPECT_EQ(wrapped->state().empty(), sharding != Sharding::off);
    wrapped->state().clear();
  }
  loss_of(network, my_batch(world_, 3)).backward();
  wrapped->step();
  EXPECT_FALSE(torch::equal(network->parameters()[0], expected->parameters()[0]));
}

TEST_F(ShardedState, LibTorchsClippingThrows) {
  Training training(world_, {.sharding = Sharding::state});
  Training plain(world_, {.sharding = Sharding::state});
  for (int step = 0; step < 2; ++step) {
    training.backward(my_batch(world_, step));
    training.optimizer.synchronize();
    const auto parameters = training.network->parameters();
    EXPECT_TRUE(parameters[0].grad().is_meta()) << "nothing to be read";
    EXPECT_THROW(torch::nn::utils::clip_grad_norm_(parameters, 0.1), c10::Error);
    training.optimizer.step();  // the next backward() finds no gradient to add to
    plain.step(my_batch(world_, step));
  }
  expect_same_bits(training.weights(), plain.weights());
}

TEST_F(ShardedState, AnOptimizerThatHasSteppedIsRefused) {
  torch::nn::Sequential network = small_network(seed());
  const auto sgd = make_sgd(network->parameters());
  loss_of(network, my_batch(world_, 0)).backward();
  sgd->step();
  expect_error(ErrorCode::invalid_use, HasSubstr("before its first step"), [&] {
    DistributedOptimizer(world_, *sgd, network->named_parameters(), {.sharding = Sharding::state});
  });
}

// The pass that averages and updates: the same bits as averages and a step apart.

const DistributedOptimizerOptions kFused{.bucket_bytes = 1024, .sharding = Sharding::fused};

using FusedUpdateTest = WorldTest;

TEST_F(FusedUpdateTest, ASwitchedOffGradScalerLeavesThemThere) {
  if (world_.cross_size() != 1 || world_.size() == 1) GTEST_SKIP() << "for shared memory";
  Training apart(world_, {.bucket_bytes = 1024});
  Training fused(world_, kFused, make_fused_sgd);
  GradScaler scaler(fused.optimizer, {.enabled = false});
  std::size_t bytes = 0;
  for (const auto& weight : fused.weights()) bytes += weight.nbytes();
  for (int step = 0; step < 3; ++step) {
    apart.step(my_batch(world_, step));
    const auto before = world_.statistics().bytes;
    fused.optimizer.zero_grad();
    scaler.scale(loss_of(fused.network, my_batch(world_, step))).backward();
    EXPECT_TRUE(scaler.step());
    scaler.update();
    if (step > 0) {
      EXPECT_LT(world_.statistics().bytes - before, bytes);
    }
    expect_same_bits(fused.weights(), apart.weights());
  }
}

TEST_F(FusedUpdateTest, AnOptimizerThatCannotIsNamedOnce) {
  const LoggedLines log;
  Training training(world_, {.sharding = Sharding::fused}, make_sgd);
  training.step(my_batch(world_, 0));
  EXPECT_EQ(log.with("sharding fused does no more than state with torch::optim::SGD").size(),
            world_.rank() == 0 ? 1U : 0U);
}

TEST_F(FusedUpdateTest, ATensorInAParametersMemoryGoesOnShowingIt) {
  torch::nn::Sequential network = small_network(seed());
  const auto weight = network->parameters()[0];
  const torch::Tensor view = weight.detach().view(-1);
  Training training(world_, kFused, make_fused_sgd, network);
  EXPECT_EQ(weight.data_ptr(), view.data_ptr());
  training.step(my_batch(world_, 0));
  EXPECT_TRUE(torch::equal(weight.detach().view(-1), view));
}

TEST_F(FusedUpdateTest, ParametersOutliveTheOptimizer) {
  std::optional<Training> fused(std::in_place, world_, kFused, make_fused_sgd);
  fused->step(my_batch(world_, 0));
  const auto before = fused->weights();
  const auto network = fused->network;
  fused.reset();
  const Training other(world_, kFused, make_fused_sgd);  // takes memory that is free
  expect_same_bits(network->parameters(), before);
}

}  // namespace
}  // namespace hora::internal::test
