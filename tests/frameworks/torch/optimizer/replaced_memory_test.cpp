// Memory put under a parameter after wrapping: training goes on with it, or an error names it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <sstream>
#include <string>
#include <utility>

#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using Change = std::function<void(torch::nn::Sequential&)>;

template <class T>
std::string saved(const T& object) {
  std::ostringstream stream;
  torch::save(object, stream);
  return std::move(stream).str();
}

template <class T>
void load(T& object, const std::string& text) {
  std::istringstream stream(text);
  torch::load(object, stream);
}

// Each changes the values as well, so that the old ones cannot pass for them.
const std::pair<const char*, Change> kChanges[] = {
    {"set_data",
     [](auto& network) {
       for (auto& parameter : network->parameters()) parameter.set_data(parameter.data() * 0.5);
     }},
    {"load",
     [](auto& network) {
       auto other = small_network(seed() + 1);
       load(network, saved(other));
     }},
    {"to_another_type_and_back",
     [](auto& network) {
       network->to(torch::kDouble);
       for (auto& parameter : network->parameters()) parameter.data().mul_(0.5);
       network->to(torch::kFloat);
     }},
    {"copy_in_place",
     [](auto& network) {
       const torch::NoGradGuard no_grad;
       for (auto& parameter : network->parameters()) parameter.mul_(0.5);
     }},
    {"one_parameter",
     [](auto& network) {
       auto weight = network->parameters().front();
       weight.set_data(torch::full_like(weight, 0.1));
     }},
};

enum class When { after_step, after_zero_grad, before_step };

class ReplacedMemory : public testing::TestWithParam<DistributedOptimizerOptions> {
 protected:
  void train(Training& training, int step, const std::function<void(When)>& at) const {
    training.optimizer.zero_grad();
    at(When::after_zero_grad);
    training.backward(my_batch(world_, step));
    training.optimizer.synchronize();
    at(When::before_step);
    training.optimizer.step();
    at(When::after_step);
  }

  // LibTorch alone, but for the averages.
  void train_plain(torch::nn::Sequential& network, torch::optim::Optimizer& plain, int step,
                   const std::function<void(When)>& at) const {
    network->zero_grad();
    at(When::after_zero_grad);
    loss_of(network, my_batch(world_, step)).backward();
    for (auto& parameter : network->parameters()) allreduce_(world_, parameter.mutable_grad());
    at(When::before_step);
    plain.step();
    at(When::after_step);
  }

  const Context world_ = init();
};

TEST_P(ReplacedMemory, TrainingGoesOnWithIt) {
  for (const auto& [name, change] : kChanges) {
    for (const When when : {When::after_step, When::after_zero_grad, When::before_step}) {
      SCOPED_TRACE(std::string(name) + " at " + std::to_string(static_cast<int>(when)));
      Training training(world_, GetParam());
      auto network = small_network(seed());
      const auto plain = make_sgd(network->parameters());
      for (int step = 0; step < 4; ++step) {
        const auto changing = [&](torch::nn::Sequential& of, const Change& by) {
          return [&, when, step](When at) {
            if (step == 1 && at == when) by(of);
          };
        };
        const bool late =
            GetParam().overlap_parameter_gather && when == When::after_step && step == 1;
        train(training, step, changing(training.network, [&](auto& of) {
                if (late) training.optimizer.complete_parameters();
                change(of);
              }));
        train_plain(network, *plain, step, changing(network, change));
      }
      training.optimizer.complete_parameters();
      expect_same_bits(training.network->parameters(), network->parameters());
    }
  }
}

TEST_P(ReplacedMemory, ACheckpointLoadedIntoAWrappedModelResumes) {
  Training whole(world_, GetParam(), make_adam);
  for (int step = 0; step < 3; ++step) whole.step(my_batch(world_, step));
  whole.optimizer.complete_parameters();
  const std::string model = saved(whole.network);
  const std::string state = saved(*whole.wrapped);
  for (int step = 3; step < 6; ++step) whole.step(my_batch(world_, step));
  whole.optimizer.complete_parameters();

  Training resumed(world_, GetParam(), make_adam);
  load(resumed.network, model);
  load(*resumed.wrapped, state);
  for (int step = 3; step < 6; ++step) resumed.step(my_batch(world_, step));
  resumed.optimizer.complete_parameters();
  expect_same_bits(resumed.network->parameters(), whole.network->parameters());
}

// Their accumulators are others then; a second backward() finds the first one's gradients taken.
TEST_P(ReplacedMemory, GradientsAreTakenDuringBackwardAgain) {
  Training training(world_, GetParam());
  training.network->to(torch::kDouble);
  training.network->to(torch::kFloat);
  training.optimizer.zero_grad();
  training.backward(my_batch(world_, 0));
  expect_error(ErrorCode::invalid_use, HasSubstr("a second time before step()"),
               [&] { training.backward(my_batch(world_, 0)); });
  training.optimizer.step();
}

TEST_P(ReplacedMemory, AnotherFormIsAnErrorThatNamesTheParameter) {
  const auto refused = [&](const Change& change, const testing::Matcher<std::string>& text) {
    Training training(world_, GetParam());
    training.step(my_batch(world_, 0));
    training.optimizer.zero_grad();
    change(training.network);
    expect_error(ErrorCode::invalid_argument, text, [&] { training.optimizer.step(); });
  };
  refused([](auto& network) { network->to(torch::kDouble); },
          AllOf(HasSubstr("Parameter '"), HasSubstr("type Float"), HasSubstr("Double")));
  refused(
      [](auto& network) {
        network->parameters()[2].set_data(torch::zeros({4, 128}));
      },
      AllOf(HasSubstr("Parameter '3.weight' had shape [8, 64]"), HasSubstr("[4, 128]")));
}

INSTANTIATE_TEST_SUITE_P(
    State, ReplacedMemory,
    testing::Values(DistributedOptimizerOptions{.bucket_bytes = 1024},
                    DistributedOptimizerOptions{.bucket_bytes = 1024, .static_graph = true},
                    DistributedOptimizerOptions{.bucket_bytes = 1024, .sharding = Sharding::state},
                    DistributedOptimizerOptions{.bucket_bytes = 1024,
                                                .sharding = Sharding::state,
                                                .overlap_parameter_gather = true}),
    [](const auto& of) {
      if (of.param.static_graph) return "static_graph";
      if (of.param.overlap_parameter_gather) return "gathered_late";
      return of.param.sharding == Sharding::off ? "whole" : "sharded";
    });

class ReplacedShares : public testing::Test {
 protected:
  const Context world_ = init();
  const torch::Tensor weight_ = torch::ones({4, 6}, torch::requires_grad());
  torch::optim::SGD sgd_{{weight_}, 1.0};

  void step(DistributedOptimizer& optimizer) const {
    optimizer.zero_grad();
    weight_.sum().backward();
    optimizer.step();
  }
};

TEST_F(ReplacedShares, AnotherMemoryOrderIsAnError) {
  DistributedOptimizer optimizer(world_, sgd_, {{"weight", weight_}},
                                 {.sharding = Sharding::state});
  step(optimizer);
  weight_.set_data(torch::ones({6, 4}).t());
  expect_error(ErrorCode::invalid_argument,
               AllOf(HasSubstr("'weight' had strides [6, 1]"), HasSubstr("[1, 4]")),
               [&] { step(optimizer); });
}

TEST_F(ReplacedShares, WithoutSharesItIsNone) {
  DistributedOptimizer optimizer(world_, sgd_, {{"weight", weight_}});
  step(optimizer);
  weight_.set_data(torch::arange(24, torch::kFloat).view({6, 4}).t());
  optimizer.zero_grad();
  (weight_ * weight_).sum().backward();
  optimizer.step();
  EXPECT_TRUE(torch::equal(weight_, -torch::arange(24, torch::kFloat).view({6, 4}).t()));
}

// Also by ranks that would have no part of it.
TEST_F(ReplacedShares, NotDenseIsRefusedByEveryRank) {
  const auto few = torch::ones({2, 6}).narrow(1, 1, 2).detach().requires_grad_();
  torch::optim::SGD sgd({few}, 1.0);
  const auto wrap = [&](const DistributedOptimizerOptions& options) {
    return DistributedOptimizer(world_, sgd, {{"few", few}}, options);
  };
  expect_error(ErrorCode::invalid_argument,
               AllOf(HasSubstr("'few'"), HasSubstr("not dense in memory")),
               [&] { wrap({.sharding = Sharding::state}); });
  auto optimizer = wrap({.static_graph = true});
  for (int i = 0; i < 3; ++i) {
    optimizer.zero_grad();
    few.sum().backward();
    optimizer.step();
    few.set_data(few.data().contiguous());
  }
  EXPECT_TRUE(torch::equal(few, torch::full({2, 2}, -2.0)));
}

TEST_F(ReplacedShares, MemoryOfTwoParametersIsAnError) {
  const auto first = torch::ones({30}, torch::requires_grad());
  const auto part = first.detach().narrow(0, 20, 5).requires_grad_();
  torch::optim::SGD sgd({part, first}, 1.0);
  const auto wrap = [&] {
    return DistributedOptimizer(world_, sgd, {{"part", part}, {"first", first}},
                                {.sharding = Sharding::state});
  };
  expect_error(ErrorCode::invalid_argument,
               AllOf(HasSubstr("'part'"), HasSubstr("'first'"), HasSubstr("share memory")), wrap);
  part.set_data(part.clone());
  auto optimizer = wrap();
  part.set_data(first.detach().narrow(0, 0, 5));
  expect_error(ErrorCode::invalid_argument, HasSubstr("share memory"), [&] { optimizer.step(); });
}

TEST_F(ReplacedShares, WrittenWhileTheyAreGathered) {
  DistributedOptimizer optimizer(world_, sgd_, {{"weight", weight_}},
                                 {.sharding = Sharding::state, .overlap_parameter_gather = true});
  step(optimizer);
  weight_.set_data(torch::full({4, 6}, 5.0));  // the later one of the two
  step(optimizer);
  optimizer.complete_parameters();
  EXPECT_TRUE(torch::equal(weight_, torch::full({4, 6}, 4.0)));
  step(optimizer);
  weight_.detach().zero_();
  if (world_.size() == 1) return;  // nothing is gathered
  expect_error(ErrorCode::invalid_use,
               AllOf(HasSubstr("'weight'"), HasSubstr("complete_parameters()")),
               [&] { optimizer.zero_grad(); });
}

TEST_F(ReplacedShares, BuffersOfAnotherForm) {
  torch::Tensor buffer = torch::zeros({3});
  DistributedOptimizer optimizer(world_, sgd_, {{"weight", weight_}}, {.buffers = {buffer}});
  step(optimizer);
  buffer.set_data(torch::full({3}, 1.0 * world_.rank()));
  step(optimizer);
  EXPECT_TRUE(torch::equal(buffer, torch::zeros({3})));
  buffer.set_data(torch::zeros({3}, torch::kDouble));
  expect_error(ErrorCode::invalid_argument, HasSubstr("Buffer '0' had type Float"),
               [&] { step(optimizer); });
}

}  // namespace
}  // namespace hora::internal::test
