// Options and uses of DistributedOptimizer, right and wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/frameworks/torch/network.h"
#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/frameworks/torch/process_sets.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace hora::internal::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using torch::optim::LBFGS;
using torch::optim::LBFGSOptions;

// Groups, predivision, sparse gradients, Adasum, buffers; and options that make no sense.

using OptimizerOptions = WorldTest;

// The trainings show that groups change no value.
TEST_F(OptimizerOptions, GroupsAreAveragedInOnePieceEach) {
  torch::nn::Sequential network = small_network(seed());
  const auto sgd = make_sgd(network->parameters());
  const auto operations_with = [&](const DistributedOptimizerOptions& options) {
    DistributedOptimizer optimizer(world_, *sgd, network->named_parameters(), options);
    const auto before = operations();
    loss_of(network, my_batch(world_, 0)).backward();
    optimizer.step();
    optimizer.zero_grad();
    return world_.size() == 1 ? 0 : operations() - before;
  };
  for (const int groups : {1, 2, 3, 100}) {
    EXPECT_LE(operations_with({.number_of_groups = groups, .compare_ranks = false}), groups);
  }
  // Three groups, and the rest in one bucket of 4 MiB, which would hold all.
  const auto p = network->parameters();
  const std::vector<std::vector<torch::Tensor>> lists{{p[0], p[5]}, {p[2]}, {p[1], p[3]}};
  EXPECT_EQ(operations_with({.groups = lists, .compare_ranks = false}), world_.size() == 1 ? 0 : 4);
  const auto refused = [&](const std::vector<std::vector<torch::Tensor>>& groups,
                           const std::string& text) {
    expect_error(ErrorCode::invalid_argument, ContainsRegex(text),
                 [&] { operations_with({.groups = groups}); });
  };
  refused({{p[0]}, {torch::zeros({1})}}, "groups.1. .*no parameter");
  refused({{p[0]}, {p[0]}}, "'0.weight' again");
}

TEST_F(OptimizerOptions, PredividingKeepsFloat16InRange) {
  OneWeight one(world_, {.compression = Compression::float16,
                         .gradient_predivide_factor = 1.0 * world_.size()});
  one.backward(60000.0);  // the sum of two overflows
  one.optimizer.synchronize();
  EXPECT_TRUE(torch::allclose(one.weight.grad(), torch::full({4}, 60000.0), 0x1p-9));
}

TEST_F(OptimizerOptions, SparseGradientsBecomeDenseOrAreRefused) {
  const auto train = [&](bool sparse, const DistributedOptimizerOptions& options) {
    torch::manual_seed(seed());
    torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(12, 3).sparse(sparse));
    torch::optim::SGD sgd(embedding->parameters(), 0.5);
    DistributedOptimizer optimizer(world_, sgd, embedding->named_parameters(), options);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      const auto rows = torch::tensor({world_.rank(), step, 3});
      embedding->forward(rows).pow(2).sum().backward();
      optimizer.step();
    }
    return embedding->weight.detach().clone();
  };
  EXPECT_TRUE(torch::allclose(train(true, {.sparse_as_dense = true}), train(false, {}), 1e-6));
  expect_error(ErrorCode::invalid_argument, AllOf(HasSubstr("'weight'"), HasSubstr("sparse")),
               [&] { train(true, {}); });
}

TEST_F(OptimizerOptions, AdasumIsEachGradientsOwn) {
  TwoWeights two(world_, {.op = ReduceOp::adasum});
  const auto gradient = [](int rank) { return torch::arange(3) + 1.0 * rank; };
  (two.a * gradient(world_.rank())).sum().backward();
  two.optimizer->step();
  torch::Tensor expected = gradient(world_.rank());
  allreduce_(world_, expected, {.op = ReduceOp::adasum});
  EXPECT_TRUE(torch::equal(two.a.grad(), expected));
  EXPECT_FALSE(two.b.grad().defined());
}

TEST_F(OptimizerOptions, ThatMakeNoSenseAreRefused) {
  const auto hook = std::make_shared<TopK>();
  std::string texts;
  for (const DistributedOptimizerOptions& options : std::vector<DistributedOptimizerOptions>{
           {.op = ReduceOp::max},
           {.bucket_bytes = SIZE_MAX},
           {.compression = static_cast<Compression>(9)},
           {.backward_passes_per_step = 0},
           {.gradient_predivide_factor = 0.0},
           {.gradient_predivide_factor = std::nan("")},
           {.number_of_groups = -1},
           {.op = ReduceOp::sum, .gradient_predivide_factor = 2.0},
           {.overlap_parameter_gather = true},
           {.op = ReduceOp::sum, .hook = hook},
           {.gradient_predivide_factor = 2.0, .hook = hook},
           {.buffers = {torch::Tensor()}}}) {
    texts += expect_error(ErrorCode::invalid_argument, [&] { Training(world_, options); }).what();
    texts += "\n";
  }
  expect_golden("frameworks/torch/optimizer/texts.txt", "options", texts);
}

// Errors of DistributedOptimizer: each says what is wrong and where, and no rank hangs.

using Misuse = WorldTest;

TEST_F(Misuse, ParametersThatCannotBeAveraged) {
  const auto a = torch::zeros({3}, torch::requires_grad());
  const auto counts = torch::zeros({3}, torch::kLong);
  const auto refused = [&](const torch::Tensor& second, const Named& named, const auto& text) {
    torch::optim::SGD sgd({a, second}, 0.1);
    expect_error(ErrorCode::invalid_argument, text,
                 [&] { DistributedOptimizer(world_, sgd, named); });
  };
  refused(torch::zeros({3}, torch::requires_grad()), {{"a", a}},
          AllOf(HasSubstr("parameter 1"), HasSubstr("group 0")));
  refused(counts, {{"a", a}, {"counts", counts}}, AllOf(HasSubstr("'counts'"), HasSubstr("Long")));
}

TEST_F(Misuse, ParameterGroupAddedAfterConstruction) {
  OneWeight one(world_);
  one.sgd.add_param_group(torch::optim::OptimizerParamGroup({torch::zeros({3})}));
  expect_error(ErrorCode::invalid_argument, HasSubstr("after construction"),
               [&] { one.optimizer.step(); });
}

TEST_F(Misuse, TwoWrappersOfOneOptimizer) {
  for (const Sharding sharding : {Sharding::off, Sharding::state}) {
    OneWeight one(world_, {.sharding = sharding});
    const Named named{{"a", one.weight}};
    const auto text = HasSubstr("another DistributedOptimizer");
    expect_error(sharding == Sharding::state ? ErrorCode::invalid_argument : ErrorCode::invalid_use,
                 text, [&] { DistributedOptimizer(world_, one.sgd, named); });
    torch::optim::SGD other({one.weight}, 1.0);
    expect_error(ErrorCode::invalid_use, AllOf(HasSubstr("'a'"), text),
                 [&] { DistributedOptimizer(world_, other, named); });
    one.backward(own_);
    one.optimizer.step();  // as always
    EXPECT_TRUE(equals_root(world_, one.weight));
  }
}

TEST_F(Misuse, TheWrappedOptimizerSteppedInPlaceOfThisOne) {
  for (const Sharding sharding : {Sharding::off, Sharding::state}) {
    OneWeight one(world_, {.sharding = sharding}, 1000);
    DistributedOptimizer& optimizer = one.optimizer;
    one.backward();
    optimizer.synchronize();
    if (sharding == Sharding::off) {
      one.sgd.step();  // with averages
    } else {
      optimizer.step();
    }
    optimizer.zero_grad();
    one.backward();
    optimizer.zero_grad();  // without a step
    one.backward(own_);
    if (sharding == Sharding::state) optimizer.synchronize();
    one.sgd.step();
    expect_error(ErrorCode::invalid_use,
                 AllOf(HasSubstr("wrapped optimizer's own step()"),
                       HasSubstr("Call DistributedOptimizer's in its place")),
                 [&] { optimizer.zero_grad(); });
  }
}

TEST_F(Misuse, TheWrappedOptimizerSteppedFromTheFirstStepOn) {
  OneWeight one(world_);
  const torch::Tensor values = one.weight.detach();
  one.backward(own_);
  values.sub_(world_.rank() + 1);  // as sgd.step(), before the gradient is averaged
  expect_error(ErrorCode::invalid_use, HasSubstr("Call DistributedOptimizer's in its place"),
               [&] { one.optimizer.zero_grad(); });
  values.zero_();
  one.optimizer.zero_grad();
  one.backward(own_);
  one.optimizer.step();
  EXPECT_TRUE(equals_root(world_, one.weight));
}

TEST_F(Misuse, OneThatWasMovedFrom) {
  OneWeight one(world_);
  DistributedOptimizer other = std::move(one.optimizer);
  for (const auto& use : std::vector<std::function<void(DistributedOptimizer&)>>{
           [](auto& of) { of.zero_grad(); }, [](auto& of) { of.synchronize(); },
           [](auto& of) { of.step(); }, [](auto& of) { of.step([] { return torch::Tensor(); }); },
           [](auto& of) { auto guard = of.no_sync(); },
           [](auto& of) { auto guard = of.skip_synchronize(); },
           [](auto& of) { of.set_backward_passes_per_step(1); },
           [](auto& of) { of.clip_grad_norm_(1.0); }, [](auto& of) { of.complete_parameters(); },
           [](auto& of) { of.join(); }, [](auto& of) { of.wrapped(); },
           [](auto& of) { of.statistics(); }, [](auto& of) { of.reset_statistics(); }}) {
    // NOLINTNEXTLINE(bugprone-use-after-move)
    expect_error(ErrorCode::invalid_use, HasSubstr("moved from"), [&] { use(one.optimizer); });
  }
  one.optimizer = std::move(other);
  one.backward(own_);
  one.optimizer.step();
  EXPECT_TRUE(equals_root(world_, one.weight));
}

// step(closure): optimizers that compute the loss themselves, LBFGS again and again.

MakeOptimizer make_lbfgs(bool searches) {
  return [=](std::vector<torch::Tensor> parameters) {
    LBFGSOptions options(searches ? 1.0 : 0.05);
    options.max_iter(4).history_size(3);
    if (searches) options.line_search_fn("strong_wolfe");
    return std::make_unique<LBFGS>(std::move(parameters), options);
  };
}

torch::Tensor closure_step(Training& training, const Batch& batch, int passes = 1) {
  return training.optimizer.step([&] {
    training.optimizer.zero_grad();
    torch::Tensor sum = torch::zeros({}, torch::kDouble);
    for (int pass = 0; pass < passes; ++pass) {
      const auto loss =
          loss_of(training.network, part_of(batch, pass, batch.labels.size(0) / passes)) / passes;
      loss.backward();
      sum += loss.detach();
    }
    return sum;
  });
}

class Lbfgs : public WorldTest, public testing::WithParamInterface<bool> {};

TEST_P(Lbfgs, EqualsOneProcessWithAllImages) {
  // The same images in every step: on others, line searches overshoot, and a difference in the
  // last bit can then decide where one ends.
  const Batch all = whole_batch(seed(), 2 * world_.size(), torch::kDouble);
  for (const int passes : {1, 2}) {
    Training training(world_, {.bucket_bytes = 512, .backward_passes_per_step = passes},
                      make_lbfgs(GetParam()), torch::kDouble);
    auto network = small_network(seed(), torch::kDouble);
    const auto plain = make_lbfgs(GetParam())(network->parameters());
    for (int step = 0; step < 3; ++step) {
      const auto loss = closure_step(training, part_of(all, world_.rank(), 2), passes);
      const auto expected = plain->step([&] {
        network->zero_grad();
        const auto whole = loss_of(network, all);
        whole.backward();
        return whole;
      });
      EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-7);
      expect_close(training.network->parameters(), network->parameters(), 1e-6);
      expect_alike(world_, training.network);
    }
    EXPECT_EQ(training.optimizer.statistics().steps, 3u);
  }
}

// Each rank's own losses would end its line search at another place.
TEST_P(Lbfgs, RanksOfDifferentLossesStayAlike) {
  const auto weight = torch::full({3}, 2.0, torch::dtype(torch::kDouble).requires_grad(true));
  const auto of_rank_0 = torch::full({}, 2.0, torch::dtype(torch::kDouble).requires_grad(true));
  const auto wrapped = make_lbfgs(GetParam())({weight, of_rank_0});
  DistributedOptimizer optimizer(world_, *wrapped, {{"weight", weight}, {"of_rank_0", of_rank_0}});
  int evaluations = 0;
  for (int step = 0; step < 3; ++step) {
    optimizer.step([&] {
      evaluations += 1;
      wrapped->zero_grad();  // LibTorch's own
      auto loss = (weight - world_.rank()).pow(4).sum() * 100.0 * world_.rank();
      if (world_.rank() == 0) loss = loss + of_rank_0.pow(2);
      loss.backward();
      return loss;
    });
  }
  torch::Tensor calls = torch::tensor({evaluations});
  EXPECT_TRUE(equals_root(world_, calls));
  EXPECT_TRUE(equals_root(world_, weight));
  EXPECT_TRUE(equals_root(world_, of_rank_0));
  EXPECT_LT(std::abs(of_rank_0.item<double>()), 2.0);
}

INSTANTIATE_TEST_SUITE_P(LineSearch, Lbfgs, testing::Bool(),
                         [](const auto& of) { return of.param ? "strong_wolfe" : "none"; });

class Closure : public WorldTest {
 protected:
  const torch::Tensor weight_ = torch::ones({3}, torch::requires_grad());
  torch::optim::SGD sgd_{{weight_}, 0.5};

  // Its gradient is 1 / 3 for each element, and rank + 1 times that.
  torch::Tensor loss(DistributedOptimizer& optimizer) const {
    optimizer.zero_grad();
    auto mean = weight_.mean() * own_;
    mean.backward();
    return mean;
  }
};

TEST_F(Closure, GivesTheStepOfEveryOptimizer) {
  for (const Sharding sharding : {Sharding::off, Sharding::state}) {
    for (const auto& make : {make_sgd, make_adam}) {
      Training by_closure(world_, {.sharding = sharding}, make, torch::kDouble);
      Training plain(world_, {.sharding = sharding}, make, torch::kDouble);
      for (int step = 0; step < 3; ++step) {
        const Batch batch = my_batch(world_, step, 2, torch::kDouble);
        closure_step(by_closure, batch);
        plain.step(batch);
        expect_same_bits(by_closure.network->parameters(), plain.network->parameters());
      }
    }
  }
}

TEST_F(Closure, ReturnsTheAverageOrTheSumOfLosses) {
  const auto first_step = [&](const DistributedOptimizerOptions& options) {
    weight_.detach().fill_(1.0);
    DistributedOptimizer optimizer(world_, sgd_, {{"weight", weight_}}, options);
    return optimizer.step([&] { return loss(optimizer); });
  };
  const auto mean = first_step({});
  EXPECT_EQ(mean.scalar_type(), torch::kFloat);
  EXPECT_EQ(mean.dim(), 0);
  EXPECT_FLOAT_EQ(mean.item<float>(), static_cast<float>(mean_));
  EXPECT_FLOAT_EQ(weight_[0].item<float>(), static_cast<float>(1.0 - 0.5 * mean_ / 3));
  const auto sum = first_step({.op = ReduceOp::sum});
  EXPECT_FLOAT_EQ(sum.item<float>(), static_cast<float>(mean_ * world_.size()));
}

TEST_F(Closure, MustReturnTheLossAndAnEmptyOneIsNone) {
  DistributedOptimizer optimizer(world_, sgd_, {{"weight", weight_}});
  for (const torch::Tensor& wrong :
       {torch::Tensor(), torch::ones({2}), torch::ones({}, torch::kLong)}) {
    expect_error(ErrorCode::invalid_argument, HasSubstr("must return its loss"), [&] {
      optimizer.step([&] {
        loss(optimizer);
        return wrong;
      });
    });
    optimizer.zero_grad();
  }
  loss(optimizer);
  EXPECT_FALSE(optimizer.step(nullptr).defined());
  EXPECT_LT(weight_[0].item<double>(), 1.0);
}

TEST_F(Closure, WhatCannotBeRightIsRefused) {
  LBFGS lbfgs({weight_});
  const auto refused = [&](const DistributedOptimizerOptions& options, const std::string& text) {
    expect_error(ErrorCode::invalid_argument, HasSubstr("LBFGS and " + text), [&] {
      DistributedOptimizer(world_, lbfgs, {{"weight", weight_}}, options);
    });
  };
  refused({.sharding = Sharding::state}, "sharding");
  refused({.op = ReduceOp::adasum}, "adasum");
  refused({.hook = std::make_shared<TopK>()}, "hook");

  {
    DistributedOptimizer searching(world_, lbfgs, {{"weight", weight_}});
    expect_error(ErrorCode::invalid_argument, HasSubstr("GradScaler and LBFGS"),
                 [&] { GradScaler scaler(searching); });
    expect_error(ErrorCode::invalid_use, HasSubstr("step(closure)"), [&] { searching.step(); });
  }

  DistributedOptimizer plain(world_, sgd_, {{"weight", weight_}});
  const auto step = [&] { plain.step([&] { return loss(plain); }); };
  {
    const auto guard = plain.skip_synchronize();
    expect_error(ErrorCode::invalid_use, HasSubstr("skip_synchronize()"), step);
  }
  {
    GradScaler scaler(plain);
    expect_error(ErrorCode::invalid_use, HasSubstr("GradScaler"), step);
  }
  step();
}

// Optimizers of process sets: even and odd ranks train apart.

class OptimizerOfSet : public WorldTest, public testing::WithParamInterface<Sharding> {
 protected:
  ~OptimizerOfSet() override { barrier(world_); }

  const ParitySet set_{world_};
};

TEST_P(OptimizerOfSet, WorldAndSetSideBySide) {
  Training of_world(world_, {.sharding = GetParam()});
  Training of_set(world_, {.process_set = set_.id, .sharding = GetParam()});
  Training alone(world_, {.sharding = GetParam()});
  for (int step = 0; step < 3; ++step) {
    const Batch batch = my_batch(world_, step);
    for (Training* training : {&of_world, &of_set}) training->optimizer.zero_grad();
    of_world.backward(batch);
    of_set.backward(batch);
    of_set.optimizer.step();
    of_world.optimizer.step();
    alone.step(batch);
  }
  expect_same_bits(of_world.network->parameters(), alone.network->parameters());
}

TEST_P(OptimizerOfSet, StepsAreCountedInside) {
  Training training(world_, {.process_set = set_.id, .sharding = GetParam()});
  const bool even = world_.rank() % 2 == 0;
  for (int step = 0; step < (even ? 1 : 3); ++step) training.step(my_batch(world_, step));
  const int last = set_.members.back();
  if (world_.rank() == last) training.optimizer.zero_grad();
  const auto step = [&] { training.step(my_batch(world_, 5)); };
  if (set_.members.size() == 1) return step();
  expect_error(ErrorCode::mismatch,
               HasSubstr("rank " + std::to_string(last) + " is in step " + (even ? "2" : "4")),
               step);
}

TEST_P(OptimizerOfSet, ForeignAndUnknownSetsAreRefused) {
  const auto refused = [&](ProcessSet set, const testing::Matcher<std::string>& text) {
    expect_error(ErrorCode::invalid_argument, text,
                 [&] { Training(world_, {.process_set = set}); });
  };
  refused(ProcessSet(4711), testing::_);
  // The sets were made in one order: the other one's number is next to this one's.
  if (world_.size() == 1) return;
  refused(ProcessSet(set_.id.number() + (world_.rank() % 2 == 0 ? 1 : -1)),
          HasSubstr("does not hold this rank"));
}

INSTANTIATE_TEST_SUITE_P(State, OptimizerOfSet, testing::Values(Sharding::off, Sharding::state),
                         [](const auto& of) {
                           return of.param == Sharding::off ? "whole" : "sharded";
                         });

}  // namespace
}  // namespace hora::internal::test
