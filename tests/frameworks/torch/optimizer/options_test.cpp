// Options and uses of DistributedOptimizer, right and wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/frameworks/torch/network.h"
#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/frameworks/torch/process_sets.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using torch::optim::LBFGS;
using torch::optim::LBFGSOptions;

// Groups, predivision, sparse gradients, Adasum, buffers; and options that make no sense.

using Named = torch::OrderedDict<std::string, torch::Tensor>;

class OptimizerOptions : public testing::Test {
 protected:
  // Allreduces of one step.
  std::uint64_t operations_of_a_step(Training& training) {
    training.optimizer.zero_grad();
    const auto before = world_.statistics().operations;
    training.backward(my_batch(world_, 0));
    training.optimizer.step();
    return world_.statistics().operations - before;
  }

  const Context world_ = init();
};

TEST_F(OptimizerOptions, GroupsByNumberChangeNoBit) {
  Training plain(world_);
  for (const int groups : {1, 2, 3, 100}) {
    Training grouped(world_, {.number_of_groups = groups});
    for (int step = 0; step < 2; ++step) {
      grouped.step(my_batch(world_, step));
      if (groups == 1) plain.step(my_batch(world_, step));
    }
    expect_same_bits(grouped.network->parameters(), plain.network->parameters());
    if (world_.size() > 1) {
      EXPECT_LE(operations_of_a_step(grouped), static_cast<std::uint64_t>(groups));
    }
  }
}

TEST_F(OptimizerOptions, ListedGroupsAreBucketsOfTheirOwn) {
  Training plain(world_);
  // More than one bucket of 4 MiB would hold anyway: three groups, and the rest in one bucket.
  const auto lists = [](torch::nn::Sequential& network) {
    const auto p = network->parameters();
    return std::vector<std::vector<torch::Tensor>>{{p[0], p[5]}, {p[2]}, {p[1], p[3]}};
  };
  torch::nn::Sequential network = small_network(seed());
  const auto sgd = make_sgd(network->parameters());
  DistributedOptimizer optimizer(world_, *sgd, network->named_parameters(),
                                 {.groups = lists(network), .compare_ranks = false});
  plain.step(my_batch(world_, 0));
  const auto before = world_.statistics().operations;
  loss_of(network, my_batch(world_, 0)).backward();
  optimizer.step();
  if (world_.size() > 1) {
    EXPECT_EQ(world_.statistics().operations - before, 4U);
  }
  expect_same_bits(network->parameters(), plain.network->parameters());
}

TEST_F(OptimizerOptions, ListsOfStrangersAndTwinsAreRefused) {
  torch::nn::Sequential network = small_network(seed());
  const auto sgd = make_sgd(network->parameters());
  const auto wrap = [&](std::vector<std::vector<torch::Tensor>> groups) {
    DistributedOptimizer(world_, *sgd, network->named_parameters(), {.groups = std::move(groups)});
  };
  expect_error(ErrorCode::invalid_argument,
               AllOf(HasSubstr("groups[1]"), HasSubstr("no parameter")), [&] {
                 wrap({{network->parameters()[0]}, {torch::zeros({1})}});
               });
  expect_error(ErrorCode::invalid_argument, AllOf(HasSubstr("'0.weight'"), HasSubstr("again")),
               [&] {
                 wrap({{network->parameters()[0]}, {network->parameters()[0]}});
               });
}

TEST_F(OptimizerOptions, PredividingKeepsFloat16InRange) {
  const auto weight = torch::zeros({4}, torch::requires_grad());
  torch::optim::SGD sgd({weight}, 1.0);
  DistributedOptimizer optimizer(
      world_, sgd, {{"weight", weight}},
      {.compression = Compression::float16, .gradient_predivide_factor = 1.0 * world_.size()});
  (weight * 60000.0).sum().backward();  // the sum of two overflows
  optimizer.synchronize();
  EXPECT_TRUE(torch::allclose(weight.grad(), torch::full({4}, 60000.0), 0x1p-9));
}

TEST_F(OptimizerOptions, SparseGradientsBecomeDense) {
  const auto train = [&](bool sparse) {
    torch::manual_seed(seed());
    torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(12, 3).sparse(sparse));
    torch::optim::SGD sgd(embedding->parameters(), 0.5);
    DistributedOptimizer optimizer(world_, sgd, embedding->named_parameters(),
                                   {.backward_passes_per_step = 2, .sparse_as_dense = true});
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      for (int pass = 0; pass < 2; ++pass) {
        const auto rows = torch::tensor({world_.rank(), step, 3 + pass});
        (embedding->forward(rows).pow(2).sum() * (pass + 1)).backward();
      }
      optimizer.step();
    }
    return embedding->weight.detach().clone();
  };
  EXPECT_TRUE(torch::allclose(train(true), train(false), 1e-6));
}

TEST_F(OptimizerOptions, AdasumIsEachGradientsOwn) {
  const auto weight = torch::zeros({3}, torch::requires_grad());
  const auto other = torch::zeros({2}, torch::requires_grad());
  torch::optim::SGD sgd({weight, other}, 1.0);
  DistributedOptimizer optimizer(world_, sgd, {{"weight", weight}, {"other", other}},
                                 {.op = ReduceOp::adasum});
  const auto gradient = [](int rank) { return torch::arange(3) + 1.0 * rank; };
  (weight * gradient(world_.rank())).sum().backward();
  optimizer.step();
  torch::Tensor expected = gradient(world_.rank());
  allreduce_(world_, expected, {.op = ReduceOp::adasum});
  EXPECT_TRUE(torch::equal(weight.grad(), expected));
  EXPECT_FALSE(other.grad().defined());
}

TEST_F(OptimizerOptions, BuffersBecomeTheFirstRanksWithEachStep) {
  const auto weight = torch::zeros({3}, torch::requires_grad());
  torch::optim::SGD sgd({weight}, 1.0);
  const auto mean = torch::zeros({5});
  const auto count = torch::zeros({}, torch::kLong);
  DistributedOptimizer optimizer(world_, sgd, {{"weight", weight}}, {.buffers = {mean, count}});
  for (int step = 1; step <= 3; ++step) {
    optimizer.zero_grad();
    mean.fill_(10.0 * step + world_.rank());
    count.fill_(100 * step + world_.rank());
    weight.sum().backward();
    optimizer.step();
    EXPECT_TRUE(torch::equal(mean, torch::full({5}, 10.0 * step)));
    EXPECT_EQ(count.item<std::int64_t>(), 100 * step);
  }
}

TEST_F(OptimizerOptions, NumbersOutOfRangeAreRefused) {
  const auto refused = [&](const DistributedOptimizerOptions& options, const std::string& text) {
    expect_error(ErrorCode::invalid_argument, HasSubstr(text), [&] { Training(world_, options); });
  };
  refused({.op = ReduceOp::max}, "op is max");
  refused({.bucket_bytes = SIZE_MAX},
          "bucket_bytes is 18446744073709551615; expected up to 64 GiB");
  refused({.compression = static_cast<Compression>(9)}, "compression is 9; expected");
  refused({.backward_passes_per_step = 0}, "backward_passes_per_step is 0");
  refused({.gradient_predivide_factor = 0.0}, "gradient_predivide_factor is 0");
  refused({.gradient_predivide_factor = std::nan("")}, "gradient_predivide_factor is nan");
  refused({.number_of_groups = -1}, "number_of_groups is -1");
  refused({.op = ReduceOp::sum, .gradient_predivide_factor = 2.0},
          "gradient_predivide_factor and an op other than average do not go together");
  refused({.compression = Compression::float16, .sharding = Sharding::state},
          "sharding and compression do not go together");
  refused({.static_graph = true, .sharding = Sharding::state},
          "sharding and static_graph do not go together");
  refused({.overlap_parameter_gather = true}, "overlap_parameter_gather is for sharding");
  const auto hook = std::make_shared<TopK>();
  refused({.op = ReduceOp::sum, .hook = hook}, "hook and an op other than average");
  refused({.gradient_predivide_factor = 2.0, .hook = hook}, "hook and gradient_predivide_factor");
  refused({.sharding = Sharding::state, .hook = hook}, "hook and sharding");
  refused({.buffers = {torch::Tensor()}}, "buffer 0 is undefined");
}

// Errors of DistributedOptimizer: each says what is wrong and where, and no rank hangs.

TEST(Misuse, ParametersThatCannotBeAveraged) {
  const Context world = init();
  const auto a = torch::zeros({3}, torch::requires_grad());
  const auto counts = torch::zeros({3}, torch::kLong);
  const auto refused = [&](const torch::Tensor& second, const Named& named, const auto& text) {
    torch::optim::SGD sgd({a, second}, 0.1);
    expect_error(ErrorCode::invalid_argument, text,
                 [&] { DistributedOptimizer(world, sgd, named); });
  };
  refused(torch::zeros({3}, torch::requires_grad()), {{"a", a}},
          AllOf(HasSubstr("parameter 1"), HasSubstr("group 0")));
  refused(counts, {{"a", a}, {"counts", counts}}, AllOf(HasSubstr("'counts'"), HasSubstr("Long")));
}

TEST(Misuse, SparseGradient) {
  const Context world = init();
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(10, 3).sparse(true));
  torch::optim::SGD sgd(embedding->parameters(), 0.1);
  DistributedOptimizer optimizer(world, sgd, embedding->named_parameters());
  expect_error(ErrorCode::invalid_argument, AllOf(HasSubstr("'weight'"), HasSubstr("sparse")), [&] {
    embedding->forward(torch::tensor({1, 2})).sum().backward();
  });
  embedding->weight.mutable_grad().reset();
}

TEST(Misuse, ParameterGroupAddedAfterConstruction) {
  const Context world = init();
  OneWeight one(world);
  one.sgd.add_param_group(torch::optim::OptimizerParamGroup({torch::zeros({3})}));
  expect_error(ErrorCode::invalid_argument, HasSubstr("after construction"),
               [&] { one.optimizer.step(); });
}

TEST(Misuse, TwoWrappersOfOneOptimizer) {
  const Context world = init();
  const auto a = torch::zeros({3}, torch::requires_grad());
  torch::optim::SGD sgd({a}, 1.0);
  for (const Sharding sharding : {Sharding::off, Sharding::state}) {
    DistributedOptimizer optimizer(world, sgd, {{"a", a}}, {.sharding = sharding});
    const auto text = HasSubstr("another DistributedOptimizer");
    expect_error(sharding == Sharding::state ? ErrorCode::invalid_argument : ErrorCode::invalid_use,
                 text, [&] {
                   DistributedOptimizer(world, sgd, {{"a", a}});
                 });
    torch::optim::SGD other({a}, 1.0);
    expect_error(ErrorCode::invalid_use, AllOf(HasSubstr("'a'"), text), [&] {
      DistributedOptimizer(world, other, {{"a", a}});
    });
    (a * (world.rank() + 1)).sum().backward();
    optimizer.step();  // as always
    EXPECT_TRUE(equals_root(world, a));
  }
}

TEST(Misuse, TheWrappedOptimizerSteppedInPlaceOfThisOne) {
  const Context world = init();
  for (const Sharding sharding : {Sharding::off, Sharding::state}) {
    OneWeight one(world, {.sharding = sharding}, 1000);
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
    one.backward(world.rank() + 1);
    if (sharding == Sharding::state) optimizer.synchronize();
    one.sgd.step();
    expect_error(ErrorCode::invalid_use,
                 AllOf(HasSubstr("wrapped optimizer's own step()"),
                       HasSubstr("Call DistributedOptimizer's in its place")),
                 [&] { optimizer.zero_grad(); });
  }
}

TEST(Misuse, TheWrappedOptimizerSteppedFromTheFirstStepOn) {
  const Context world = init();
  OneWeight one(world);
  const torch::Tensor values = one.weight.detach();
  one.backward(world.rank() + 1);
  values.sub_(world.rank() + 1);  // as sgd.step(), before the gradient is averaged
  expect_error(ErrorCode::invalid_use, HasSubstr("Call DistributedOptimizer's in its place"),
               [&] { one.optimizer.zero_grad(); });
  values.zero_();
  one.optimizer.zero_grad();
  one.backward(world.rank() + 1);
  one.optimizer.step();
  EXPECT_TRUE(equals_root(world, one.weight));
}

TEST(Misuse, OneThatWasMovedFrom) {
  const Context world = init();
  OneWeight one(world);
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
  one.backward(world.rank() + 1);
  one.optimizer.step();
  EXPECT_TRUE(equals_root(world, one.weight));
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

// One process and LibTorch alone, with all ranks' images.
torch::Tensor whole_step(const Context& world, torch::nn::Sequential& network,
                         torch::optim::Optimizer& optimizer) {
  std::vector<torch::Tensor> images;
  std::vector<torch::Tensor> labels;
  for (int rank = 0; rank < world.size(); ++rank) {
    const Batch batch = batch_of(world, rank, 0, 2, torch::kDouble);
    images.push_back(batch.images);
    labels.push_back(batch.labels);
  }
  const Batch all{torch::cat(images), torch::cat(labels)};
  return optimizer.step([&] {
    network->zero_grad();
    const auto loss = loss_of(network, all);
    loss.backward();
    return loss;
  });
}

class Lbfgs : public testing::TestWithParam<bool> {
 protected:
  void expect_plain(const DistributedOptimizerOptions& options, int passes = 1) {
    Training training(world_, options, make_lbfgs(GetParam()), torch::kDouble);
    auto network = small_network(seed(), torch::kDouble);
    const auto plain = make_lbfgs(GetParam())(network->parameters());
    // The same images in every step: on others, line searches overshoot, and a difference in the
    // last bit can then decide where one ends.
    const Batch batch = my_batch(world_, 0, 2, torch::kDouble);
    for (int step = 0; step < 3; ++step) {
      const auto loss = closure_step(training, batch, passes);
      const auto expected = whole_step(world_, network, *plain);
      EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-7);
      expect_close(training.network->parameters(), network->parameters(), 1e-6);
      for (const auto& parameter : training.network->parameters()) {
        EXPECT_TRUE(equals_root(world_, parameter));
      }
    }
    EXPECT_EQ(training.optimizer.statistics().steps, 3u);
  }

  const Context world_ = init();
};

TEST_P(Lbfgs, EqualsOneProcessWithAllImages) {
  expect_plain({});
}

TEST_P(Lbfgs, SeveralBackwardPassesInAClosure) {
  expect_plain({.bucket_bytes = 512, .backward_passes_per_step = 2}, 2);
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

class Closure : public testing::Test {
 protected:
  const Context world_ = init();
  const torch::Tensor weight_ = torch::ones({3}, torch::requires_grad());
  torch::optim::SGD sgd_{{weight_}, 0.5};

  // Its gradient is 1 / 3 for each element, and rank + 1 times that.
  torch::Tensor loss(DistributedOptimizer& optimizer) const {
    optimizer.zero_grad();
    auto mean = weight_.mean() * (world_.rank() + 1);
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
  const double average = mean_over_ranks(world_, [](int rank) { return rank + 1.0; });
  const auto first_step = [&](const DistributedOptimizerOptions& options) {
    weight_.detach().fill_(1.0);
    DistributedOptimizer optimizer(world_, sgd_, {{"weight", weight_}}, options);
    return optimizer.step([&] { return loss(optimizer); });
  };
  const auto mean = first_step({});
  EXPECT_EQ(mean.scalar_type(), torch::kFloat);
  EXPECT_EQ(mean.dim(), 0);
  EXPECT_FLOAT_EQ(mean.item<float>(), static_cast<float>(average));
  EXPECT_FLOAT_EQ(weight_[0].item<float>(), static_cast<float>(1.0 - 0.5 * average / 3));
  const auto sum = first_step({.op = ReduceOp::sum});
  EXPECT_FLOAT_EQ(sum.item<float>(), static_cast<float>(average * world_.size()));
}

TEST_F(Closure, AnEmptyOneIsNone) {
  DistributedOptimizer optimizer(world_, sgd_, {{"weight", weight_}});
  loss(optimizer);
  EXPECT_FALSE(optimizer.step(nullptr).defined());
  EXPECT_LT(weight_[0].item<double>(), 1.0);
}

TEST_F(Closure, MustReturnTheLoss) {
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
  optimizer.step([&] { return loss(optimizer); });
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

class OptimizerOfSet : public testing::TestWithParam<Sharding> {
 protected:
  ~OptimizerOfSet() override { barrier(world_); }

  const Context world_ = init();
  const ParitySet own_{world_};
};

TEST_P(OptimizerOfSet, AveragesInsideAndNotAcross) {
  Training training(world_, {.process_set = own_.id, .sharding = GetParam()});
  for (int step = 0; step < 3; ++step) training.step(my_batch(world_, step));
  for (const auto& parameter : training.network->parameters()) {
    torch::Tensor of_set = parameter.detach().clone();
    broadcast_(world_, of_set, {.root = own_.members.front(), .process_set = own_.id});
    EXPECT_TRUE(torch::equal(of_set, parameter));
    if (world_.size() > 1) {
      const torch::Tensor both = allgather(world_, parameter.detach().unsqueeze(0));
      EXPECT_FALSE(torch::equal(both[0], both[1]));
    }
  }
}

TEST_P(OptimizerOfSet, WorldAndSetSideBySide) {
  Training of_world(world_, {.sharding = GetParam()});
  Training of_set(world_, {.process_set = own_.id, .sharding = GetParam()});
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
  Training training(world_, {.process_set = own_.id, .sharding = GetParam()});
  const bool even = world_.rank() % 2 == 0;
  for (int step = 0; step < (even ? 1 : 3); ++step) training.step(my_batch(world_, step));
  const int last = own_.members.back();
  if (world_.rank() == last) training.optimizer.zero_grad();
  const auto step = [&] { training.step(my_batch(world_, 5)); };
  if (own_.members.size() == 1) return step();
  expect_error(ErrorCode::mismatch,
               HasSubstr("rank " + std::to_string(last) + " is in step " + (even ? "2" : "4")),
               step);
}

TEST_P(OptimizerOfSet, ForeignAndUnknownSetsAreRefused) {
  expect_error(ErrorCode::invalid_argument, testing::_,
               [&] { Training(world_, {.process_set = ProcessSet(4711)}); });
  if (world_.size() == 1) return;
  // The sets were made in one order: the other one's number is next to this one's.
  const ProcessSet other =
      ProcessSet(world_.rank() % 2 == 0 ? own_.id.number() + 1 : own_.id.number() - 1);
  expect_error(ErrorCode::invalid_argument, HasSubstr("does not hold this rank"),
               [&] { Training(world_, {.process_set = other}); });
}

INSTANTIATE_TEST_SUITE_P(State, OptimizerOfSet, testing::Values(Sharding::off, Sharding::state),
                         [](const auto& of) {
                           return of.param == Sharding::off ? "whole" : "sharded";
                         });

}  // namespace
}  // namespace hora::internal::test
