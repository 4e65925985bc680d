// Tensors as objects, and the state of optimizers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch/collectives.h>

#include <memory>
#include <string>
#include <utility>
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

/// Adam with two groups, of learning rates `rate` and 2 `rate`.
struct Stepped {
  explicit Stepped(double rate)
      : adam({torch::optim::OptimizerParamGroup({weights[0]}),
              torch::optim::OptimizerParamGroup({weights[1]})},
             torch::optim::AdamOptions(rate).amsgrad(true)) {
    adam.param_groups()[1].options().set_lr(2 * rate);
  }
  void steps(int count, double gradient) {
    for (int i = 0; i < count; ++i) {
      for (auto& weight : weights) weight.mutable_grad() = torch::full({3}, gradient + i);
      adam.step();
    }
  }
  double rate_of(std::size_t group) { return adam.param_groups()[group].options().get_lr(); }

  std::vector<torch::Tensor> weights = {torch::ones({3}, torch::requires_grad()),
                                        torch::zeros({3}, torch::requires_grad())};
  torch::optim::Adam adam;
};

// Steps after the broadcast are the root's own: state and options are its. Other optimizers:
// checkpoint/optimizer_state_test.cpp.
TEST(OptimizerStateRules, StateIsTheRootsWhoeverHasMadeSteps) {
  const Context world = init();
  const int root = world.size() - 1;
  const bool sends = world.rank() == root;
  for (const auto& [of_root, of_others] : {std::pair(3, 0), std::pair(0, 2), std::pair(2, 1)}) {
    Stepped expected(0.05), own(sends ? 0.05 : 0.5);
    expected.steps(of_root, 1.0);
    own.steps(sends ? of_root : of_others, sends ? 1.0 : 7.0);
    for (std::size_t i : {0, 1}) own.weights[i].data().copy_(expected.weights[i]);
    broadcast_optimizer_state(world, own.adam, root);
    for (std::size_t i : {0, 1}) EXPECT_EQ(own.rate_of(i), expected.rate_of(i));
    EXPECT_EQ(own.adam.state().size(), expected.adam.state().size());
    expected.steps(2, 3.0);
    own.steps(2, 3.0);
    expect_equal(own.weights, expected.weights);
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
