// The pass that averages and updates: the same bits as averages and a step apart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch/optim.h>

#include <memory>
#include <vector>

#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/frameworks/torch/process_sets.h"
#include "tests/support/logged_lines.h"

namespace hora::internal::test {
namespace {

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
  const auto expect_same_with = [&](const DistributedOptimizerOptions& options,
                                    torch::ScalarType type = torch::kFloat) {
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
  };
  {
    SCOPED_TRACE("float64");
    expect_same_with({}, torch::kDouble);
  }
  {
    SCOPED_TRACE("a sum");
    expect_same_with({.op = ReduceOp::sum, .bucket_bytes = 1024});
  }
  {
    SCOPED_TRACE("a predivide factor");
    expect_same_with({.bucket_bytes = 1024, .gradient_predivide_factor = 3.0});
  }
  {
    SCOPED_TRACE("a process set");
    expect_same_with({.bucket_bytes = 1024, .process_set = parity.id});
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

TEST_F(FusedUpdateTest, TiedParametersAreRefused) {
  const auto a = torch::ones({8}).requires_grad_();
  auto b = torch::ones({8}).requires_grad_();
  b.set_data(a.detach());
  optim::SGD sgd(std::vector<torch::Tensor>{a, b}, torch::optim::SGDOptions(0.1));
  EXPECT_THROW(
      DistributedOptimizer(world_, sgd, {{"a", a}, {"b", b}}, {.sharding = Sharding::fused}),
      Error);
  EXPECT_EQ(a.data_ptr(), b.data_ptr());
}

}  // namespace
}  // namespace hora::internal::test
