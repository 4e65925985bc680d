// Groups, predivision, sparse gradients, Adasum, buffers; and options that make no sense.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

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
  refused({.buffers = {torch::Tensor()}}, "buffer 0 is undefined");
}

}  // namespace
}  // namespace hora::internal::test
