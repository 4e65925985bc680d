// Tensors as objects, and the state of every optimizer of LibTorch's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch/collectives.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/frameworks/torch/network.h"
#include "tests/frameworks/torch/process_sets.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::vector<torch::Tensor> tensors_of(int rank) {
  return {torch::full({rank + 1, 2}, rank), torch::full({2}, rank, torch::kLong),
          torch::full({3}, rank, torch::kComplexFloat), torch::arange(12).view({3, 4}).t() + rank};
}

TEST(TensorObjects, ShapesAndTypesNeedNotBeKnown) {
  const Context world = init();
  const int root = world.size() - 1;
  const bool sends = world.rank() == root;
  expect_equal(broadcast_object(world, sends ? tensors_of(root) : std::vector<torch::Tensor>{},
                                {.name = "tensors", .root = root}),
               tensors_of(root));
}

TEST(TensorObjects, OfEveryRankOfASet) {
  const Context world = init();
  const ParitySet set(world);
  const auto all = allgather_object(world, tensors_of(world.rank()), {.process_set = set.id});
  ASSERT_EQ(all.size(), set.members.size());
  for (std::size_t i = 0; i < all.size(); ++i) expect_equal(all[i], tensors_of(set.members[i]));
  barrier(world);
}

TEST(TensorObjects, OfAViewOnlyWhatItShowsAndUndefinedOnes) {
  const Context world = init();
  const auto large = torch::zeros({1000000});
  const auto received = broadcast_object(world, std::vector{large.narrow(0, 5, 2)});
  EXPECT_EQ(received[0].storage().nbytes(), 2 * sizeof(float));
  EXPECT_FALSE(broadcast_object(world, std::vector{large, torch::Tensor()})[1].defined());
  const auto conjugated = torch::full({2}, c10::complex<float>(1, 2)).conj();
  expect_equal(broadcast_object(world, std::vector{conjugated}), {conjugated.resolve_conj()});
  expect_error(ErrorCode::invalid_argument, HasSubstr("sparse"),
               [&] { allgather_object(world, std::vector{large.to_sparse()}, {.name = "own"}); });
}

using Groups = std::vector<torch::optim::OptimizerParamGroup>;
using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(const Groups&)>;

template <class Optimizer, class Options>
Make make_with(const Options& options) {
  return [options](const Groups& groups) { return std::make_unique<Optimizer>(groups, options); };
}

struct Kind {
  friend void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

  std::string name;
  Make make;
  bool one_group = false;
};

using namespace torch::optim;
const Kind kKinds[] = {
    {"Adagrad", make_with<Adagrad>(AdagradOptions(1).lr_decay(0.1).eps(1e-6))},
    {"Adam", make_with<Adam>(AdamOptions(1).betas({0.7, 0.8}).amsgrad(true))},
    {"AdamPlain", make_with<Adam>(AdamOptions(1).weight_decay(0.1))},
    {"AdamW", make_with<AdamW>(AdamWOptions(1).betas({0.6, 0.9}))},
    {"LBFGS", make_with<LBFGS>(LBFGSOptions(1).max_iter(3).history_size(4)), true},
    {"LBFGSSearch", make_with<LBFGS>(LBFGSOptions(1).max_iter(2).line_search_fn("strong_wolfe")),
     true},
    {"RMSprop", make_with<RMSprop>(RMSpropOptions(1).alpha(0.8).momentum(0.5).centered(true))},
    {"RMSpropPlain", make_with<RMSprop>(RMSpropOptions(1).alpha(0.7))},
    {"SGD", make_with<SGD>(SGDOptions(1).momentum(0.9).nesterov(true))},
    {"SGDPlain", make_with<SGD>(SGDOptions(1).weight_decay(0.1))},
};

/// A network, and an optimizer of two groups with learning rates `rate` and 2 `rate`.
class Training {
 public:
  Training(const Kind& kind, std::uint64_t seed, double rate)
      : network_(small_network(seed, torch::kDouble)) {
    using Parameters = std::vector<torch::Tensor>;
    const Parameters parameters = network_->parameters();
    const auto middle = kind.one_group ? parameters.end() : parameters.begin() + 2;
    Groups groups{OptimizerParamGroup(Parameters(parameters.begin(), middle))};
    if (!kind.one_group) groups.emplace_back(Parameters(middle, parameters.end()));
    optimizer_ = kind.make(groups);
    for (auto& group : optimizer_->param_groups()) {
      group.options().set_lr(rate);
      rate *= 2;
    }
  }

  void steps(int count, std::uint64_t seed) {
    const Batch batch = whole_batch(seed, 4, torch::kDouble);
    for (int i = 0; i < count; ++i) {
      optimizer_->step([&] {
        for (auto& parameter : network_->parameters()) parameter.mutable_grad().reset();
        auto loss = loss_of(network_, batch);
        loss.backward();
        return loss;
      });
    }
  }

  void take_from(const Context& world, int root) {
    broadcast_parameters(world, *network_, root);
    broadcast_optimizer_state(world, *optimizer_, root);
  }

  std::vector<torch::Tensor> values() { return copies_of(network_->parameters()); }
  torch::optim::Optimizer& optimizer() { return *optimizer_; }

 private:
  torch::nn::Sequential network_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

class OptimizerState : public testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(All, OptimizerState, testing::ValuesIn(kKinds),
                         [](const auto& kind) { return kind.param.name; });

// Steps after the broadcast are the root's own: state and options are its.
void expect_goes_on_as_root(const Context& world, const Kind& kind, int steps_of_root,
                            int steps_of_others) {
  const int root = world.size() - 1;
  constexpr double rate = 0.05;
  Training expected(kind, 1, rate);
  expected.steps(steps_of_root, 2);
  expected.steps(2, 3);

  const bool sends = world.rank() == root;
  Training own(kind, sends ? 1 : 10, sends ? rate : 0.5);
  own.steps(sends ? steps_of_root : steps_of_others, sends ? 2 : 20);
  own.take_from(world, root);
  for (std::size_t i = 0; i < own.optimizer().param_groups().size(); ++i) {
    EXPECT_EQ(own.optimizer().param_groups()[i].options().get_lr(),
              expected.optimizer().param_groups()[i].options().get_lr());
  }
  own.steps(2, 3);
  EXPECT_EQ(own.optimizer().state().size(), expected.optimizer().state().size());
  expect_equal(own.values(), expected.values());
}

TEST_P(OptimizerState, IsTheRootsWhoeverHasMadeSteps) {
  for (const auto& [of_root, of_others] : {std::pair(3, 0), std::pair(0, 2), std::pair(2, 1)}) {
    SCOPED_TRACE(of_root);
    expect_goes_on_as_root(init(), GetParam(), of_root, of_others);
  }
}

/// A state class of the program's own.
struct OwnState : torch::optim::OptimizerCloneableParamState<OwnState> {};

TEST(OptimizerStateRules, OfAnotherClassIsTheSameErrorOnEveryRank) {
  const Context world = init();
  const auto weight = torch::ones({3}, torch::requires_grad());
  torch::optim::SGD sgd({weight}, torch::optim::SGDOptions(0.1).momentum(0.9));
  if (world.rank() == 0) {
    weight.sum().backward();
    sgd.step();
    for (auto& state : sgd.state()) state.second = std::make_unique<OwnState>();
  }
  expect_error(ErrorCode::invalid_argument, HasSubstr("of a class that is none of LibTorch's"),
               [&] { broadcast_optimizer_state(world, sgd); });
}

TEST(OptimizerStateRules, FrozenParametersStayWithoutGradientAndState) {
  const Context world = init();
  const auto trained = torch::ones({3}, torch::requires_grad());
  const auto frozen = torch::ones({3});
  torch::optim::Adam adam({trained, frozen}, 0.1);
  if (world.rank() == 0) {
    trained.sum().backward();
    adam.step();
  }
  broadcast_optimizer_state(world, adam);
  EXPECT_EQ(adam.state().size(), 1U);
  EXPECT_FALSE(frozen.requires_grad());
  EXPECT_FALSE(frozen.grad().defined());
  EXPECT_EQ(trained.grad().defined(), world.rank() == 0);
}

TEST(OptimizerStateRules, OthersAreTheSameErrorOnEveryRank) {
  const Context world = init();
  if (world.size() == 1) GTEST_SKIP() << "one rank cannot disagree with itself";
  const auto weight = torch::zeros({3}, torch::requires_grad());
  const auto longer = torch::zeros({4}, torch::requires_grad());
  torch::optim::Adam adam({weight}, 0.1), of_longer({longer}, 0.1);
  torch::optim::SGD sgd({weight}, 0.1);
  const auto refused = [&](torch::optim::Optimizer& of_rank_1,
                           const testing::Matcher<std::string>& text) {
    expect_error(ErrorCode::mismatch, text,
                 [&] { broadcast_optimizer_state(world, world.rank() == 1 ? of_rank_1 : adam); });
  };
  refused(of_longer, AllOf(HasSubstr("Optimizers differ"), HasSubstr("rank 0 has Float [3]"),
                           HasSubstr("rank 1 has Float [4]")));
  refused(sgd,
          AllOf(HasSubstr("class torch::optim::Adam,"), HasSubstr("class torch::optim::SGD.")));
}

}  // namespace
}  // namespace hora::internal::test
