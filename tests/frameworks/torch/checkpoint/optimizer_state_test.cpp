#include "frameworks/torch/checkpoint/optimizer_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch/optim.h>
#include <torch/torch.h>

#include <functional>
#include <memory>

#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;
using namespace torch::optim;
using Make = std::function<std::unique_ptr<Optimizer>(std::vector<torch::Tensor>)>;

template <class Kind, class Options>
Make make_with(const Options& options) {
  return [options](std::vector<torch::Tensor> parameters) {
    return std::make_unique<Kind>(std::move(parameters), options);
  };
}

/// Two parameters, one of them channels-last, one that has never a gradient, and their optimizer.
/// LBFGS takes contiguous ones alone.
struct Subject {
  explicit Subject(const Make& make, bool contiguous = false)
      : first(torch::ones({4, 3, 2, 2})
                  .contiguous(contiguous ? torch::MemoryFormat::Contiguous
                                         : torch::MemoryFormat::ChannelsLast)
                  .set_requires_grad(true)),
        second(torch::ones({5}, torch::requires_grad())),
        unused(torch::ones({2}, torch::requires_grad())),
        optimizer(make({first, second, unused})) {}

  std::vector<OptimizerPiece> pieces() const {
    return {{"first", first, first}, {"second", second, second}, {"unused", unused, unused}};
  }
  void step(int number) {
    optimizer->step([&] {
      optimizer->zero_grad();
      torch::manual_seed(seed() + static_cast<std::uint64_t>(number));
      const auto loss = (first * torch::randn({4, 3, 2, 2})).pow(2).sum() +
                        (second * torch::randn({5})).pow(2).sum();
      loss.backward();
      return loss;
    });
  }

  torch::Tensor first, second, unused;
  std::unique_ptr<Optimizer> optimizer;
};

const std::pair<std::string, Make> kKinds[] = {
    {"SGD", make_with<SGD>(SGDOptions(0.05).momentum(0.9).weight_decay(1e-3))},
    {"SgdWithoutState", make_with<SGD>(SGDOptions(0.05))},
    {"Adam", make_with<Adam>(AdamOptions(0.01).amsgrad(true))},
    {"AdamW", make_with<AdamW>(AdamWOptions(0.01))},
    {"FusedSgd", make_with<hora::optim::SGD>(SGDOptions(0.05).momentum(0.9).weight_decay(1e-3))},
    {"FusedAdam", make_with<hora::optim::Adam>(AdamOptions(0.01).amsgrad(true))},
    {"FusedAdamW", make_with<hora::optim::AdamW>(AdamWOptions(0.01))},
    {"RMSprop", make_with<RMSprop>(RMSpropOptions(0.01).momentum(0.5).centered(true))},
    {"Adagrad", make_with<Adagrad>(AdagradOptions(0.05).lr_decay(0.1))},
    {"LBFGS", make_with<LBFGS>(LBFGSOptions(0.1).max_iter(3))},
};

class OptimizerState : public testing::TestWithParam<std::pair<std::string, Make>> {};

TEST_P(OptimizerState, GoesOnWithTheSameBits) {
  const bool contiguous = GetParam().first == "LBFGS";
  Subject subject(GetParam().second, contiguous);
  for (int step = 0; step < 3; ++step) subject.step(step);
  for (auto& group : subject.optimizer->param_groups()) group.options().set_lr(0.02);

  Subject resumed(GetParam().second, contiguous);
  resumed.step(7);  // is lost
  {
    const torch::NoGradGuard no_grad;
    resumed.first.copy_(subject.first);
    resumed.second.copy_(subject.second);
  }
  const NamedTensors state = state_of(*subject.optimizer, subject.pieces());
  load_state(*resumed.optimizer, resumed.pieces(), {&state, 1});
  EXPECT_EQ(resumed.optimizer->param_groups()[0].options().get_lr(), 0.02);
  for (int step = 3; step < 6; ++step) {
    subject.step(step);
    resumed.step(step);
    EXPECT_TRUE(torch::equal(resumed.first, subject.first)) << "step " << step;
    EXPECT_TRUE(torch::equal(resumed.second, subject.second)) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, OptimizerState, testing::ValuesIn(kKinds),
                         [](const auto& of) { return of.param.first; });

TEST(OptimizerStateErrors, AnotherKindOfOptimizerIsRefused) {
  Subject sgd(kKinds[0].second);
  sgd.step(0);
  Subject adam(kKinds[2].second);
  const NamedTensors state = state_of(*sgd.optimizer, sgd.pieces());
  expect_error(ErrorCode::invalid_argument,
               HasSubstr("the checkpoint is of SGD, the optimizer is Adam"), [&] {
                 load_state(*adam.optimizer, adam.pieces(), {&state, 1});
               });
}

TEST(OptimizerStateErrors, MissingShardsAreRefused) {
  Subject sgd(kKinds[0].second);
  sgd.step(0);
  NamedTensors state = state_of(*sgd.optimizer, sgd.pieces());
  const torch::Tensor buffer = state["second/momentum_buffer"];
  state.erase("second/momentum_buffer");
  state.insert("second/layout", torch::tensor({{5}, {1}}, torch::kLong));
  state.insert("second[0:2]/momentum_buffer", buffer.narrow(0, 0, 2));
  Subject other(kKinds[0].second);
  expect_error(ErrorCode::invalid_argument,
               HasSubstr("of parameter \"second\" elements are missing"), [&] {
                 load_state(*other.optimizer, other.pieces(), {&state, 1});
               });
  state.insert("second[2:5]/momentum_buffer", buffer.narrow(0, 2, 3));
  load_state(*other.optimizer, other.pieces(), {&state, 1});
  EXPECT_TRUE(
      torch::equal(state_of(*other.optimizer, other.pieces())["second/momentum_buffer"], buffer));
}

}  // namespace
}  // namespace hora::internal::test
