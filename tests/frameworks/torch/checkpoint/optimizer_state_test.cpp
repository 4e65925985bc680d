#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch/optim.h>
#include <torch/torch.h>

#include <functional>
#include <memory>

#include "frameworks/torch/checkpoint/named_tensors.h"
#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;
using namespace torch::optim;
using Groups = std::vector<OptimizerParamGroup>;
using Make = std::function<std::unique_ptr<Optimizer>(const Groups&)>;

template <class Kind, class Options>
Make make_with(const Options& options) {
  return [options](const Groups& groups) { return std::make_unique<Kind>(groups, options); };
}

/// Two parameters, one of them channels-last, one that has never a gradient, and their optimizer of
/// two groups. LBFGS takes contiguous ones alone, in one group.
struct Subject {
  explicit Subject(const Make& make, bool contiguous = false)
      : first(torch::ones({4, 3, 2, 2})
                  .contiguous(contiguous ? torch::MemoryFormat::Contiguous
                                         : torch::MemoryFormat::ChannelsLast)
                  .set_requires_grad(true)),
        second(torch::ones({5}, torch::requires_grad())),
        unused(torch::ones({2}, torch::requires_grad())),
        optimizer(make(contiguous ? Groups{OptimizerParamGroup({first, second, unused})}
                                  : Groups{OptimizerParamGroup({first}),
                                           OptimizerParamGroup({second, unused})})) {}

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
    {"LBFGSSearch", make_with<LBFGS>(LBFGSOptions(0.1).max_iter(2).line_search_fn("strong_wolfe"))},
};

class OptimizerState : public testing::TestWithParam<std::pair<std::string, Make>> {};

TEST_P(OptimizerState, GoesOnWithTheSameBits) {
  const bool contiguous = GetParam().first.starts_with("LBFGS");
  Subject subject(GetParam().second, contiguous);
  for (int step = 0; step < 3; ++step) subject.step(step);
  subject.optimizer->param_groups().back().options().set_lr(0.02);

  Subject resumed(GetParam().second, contiguous);
  resumed.step(7);  // is lost
  {
    const torch::NoGradGuard no_grad;
    resumed.first.copy_(subject.first);
    resumed.second.copy_(subject.second);
  }
  const NamedTensors state = state_of(*subject.optimizer, subject.pieces());
  load_state(*resumed.optimizer, resumed.pieces(), {&state, 1});
  EXPECT_EQ(resumed.optimizer->param_groups().back().options().get_lr(), 0.02);
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

/// As files have an option: the name, a 0, and the kind and bytes of its value.
std::string option(const std::string& name, char kind, const void* value, std::size_t bytes) {
  const std::uint64_t length = name.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + name + '\0' + kind +
         std::string(static_cast<const char*>(value), bytes);
}

TEST(OptimizerOptions, HaveTheFormatOfFilesAndDamageIsRefused) {
  Subject sgd(kKinds[0].second);
  NamedTensors state = state_of(*sgd.optimizer, sgd.pieces());
  const double rate = 0.05, momentum = 0.9, dampening = 0.0, decay = 1e-3;
  const char nesterov = 0;
  const std::string expected =
      std::string("\5\0\0\0\0\0\0\0", 8) + option("lr", 4, &rate, 8) +
      option("momentum", 4, &momentum, 8) + option("dampening", 4, &dampening, 8) +
      option("weight_decay", 4, &decay, 8) + option("nesterov", 5, &nesterov, 1);
  EXPECT_EQ(text_of(state["groups/0"]), expected);
  auto random = generator();
  for (int round = 0; round < 300; ++round) {
    std::string damaged = expected;
    damaged[random() % damaged.size()] = static_cast<char>(random());
    if (random() % 4 == 0) damaged.resize(random() % damaged.size());
    state["groups/0"] = text_tensor(damaged);
    try {
      load_state(*sgd.optimizer, sgd.pieces(), {&state, 1});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    } catch (const std::exception&) {  // options that LibTorch refuses
    }
  }
}

}  // namespace
}  // namespace hora::internal::test
