// Results of training with DistributedOptimizer.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "tests/frameworks/torch/network.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

constexpr std::int64_t batch_per_rank = 8;
constexpr int kStepsOfTraining = 10;

double largest_difference(const torch::nn::Sequential& a, const torch::nn::Sequential& b) {
  double largest = 0.0;
  const auto of_a = a->parameters();
  const auto of_b = b->parameters();
  for (std::size_t i = 0; i < of_a.size(); ++i) {
    largest = std::max(largest, (of_a[i] - of_b[i]).abs().max().item<double>());
  }
  return largest;
}

// Both orders of summation add the same n terms: a gradient differs by about n rounding errors of
// the terms' size (below 1 here), and ten steps of a smooth network at this learning rate amplify
// that less than tenfold: 32 * 2^-52 * 10 = 7e-14. Every real mistake (a rank left out, a sum for
// an average) moves parameters by more than 1e-4.
void equals_one_rank(torch::ScalarType type, double tolerance) {
  const Context world = init();
  auto alone = small_network(seed(), type);
  auto together = small_network(seed(), type);
  const auto options = torch::optim::SGDOptions(0.05).momentum(0.9);
  torch::optim::SGD sgd_alone(alone->parameters(), options);
  torch::optim::SGD sgd(together->parameters(), options);
  DistributedOptimizer optimizer(world, sgd, together->named_parameters());
  const auto before = copies_of(alone->parameters());
  for (int step = 0; step < kStepsOfTraining; ++step) {
    const Batch batch = whole_batch(seed() + step, batch_per_rank * world.size(), type);
    sgd_alone.zero_grad();
    loss_of(alone, batch).backward();
    sgd_alone.step();
    optimizer.zero_grad();
    loss_of(together, part_of(batch, world.rank(), batch_per_rank)).backward();
    optimizer.step();
  }
  EXPECT_LE(largest_difference(alone, together), tolerance);
  EXPECT_FALSE(torch::allclose(before[0], alone->parameters()[0])) << "the network did not learn";
  EXPECT_EQ(optimizer.statistics().steps, std::uint64_t{kStepsOfTraining});
}

TEST(DistributedOptimizer, EqualsOneRankWithTheWholeBatchInDoublePrecision) {
  equals_one_rank(torch::kDouble, 1e-12);
}

TEST(DistributedOptimizer, EqualsOneRankWithTheWholeBatchInSinglePrecision) {
  equals_one_rank(torch::kFloat, 1e-12 * (1 << 29));  // 2^-23 in place of 2^-52
}

struct Trained {
  std::vector<torch::Tensor> parameters;
  std::vector<torch::Tensor> buffers;
};

// With BatchNorm, whose running statistics differ between ranks until they are broadcast.
Trained train(const Context& world, const DistributedOptimizerOptions& options = {}) {
  torch::manual_seed(seed() + world.rank());  // unequal until broadcast_parameters
  torch::nn::Sequential network(torch::nn::Conv2d(3, 4, 3), torch::nn::BatchNorm2d(4),
                                torch::nn::ReLU(), torch::nn::Flatten(), torch::nn::Linear(64, 5));
  torch::optim::Adam adam(network->parameters(), torch::optim::AdamOptions(0.01));
  DistributedOptimizer optimizer(world, adam, network->named_parameters(), options);
  broadcast_parameters(world, *network);
  for (int step = 0; step < kStepsOfTraining; ++step) {
    const Batch batch = whole_batch(seed() + step, batch_per_rank * world.size());
    optimizer.zero_grad();
    loss_of(network, part_of(batch, world.rank(), batch_per_rank)).backward();
    optimizer.step();
  }
  broadcast_buffers(world, *network);
  return {copies_of(network->parameters()), copies_of(network->buffers())};
}

TEST(DistributedOptimizer, LeavesTheSameBitsOnEveryRankAndInEveryRun) {
  const Context world = init();
  const Trained first = train(world);
  const Trained again = train(world);
  // Where a gradient lies must not matter: a bucket for each tensor, or one for all.
  const Trained in_small_buckets = train(world, {.bucket_bytes = 64});
  const Trained in_one_bucket = train(world, {.bucket_bytes = 1U << 30U});
  for (std::size_t i = 0; i < first.parameters.size(); ++i) {
    EXPECT_TRUE(equals_root(world, first.parameters[i])) << "parameter " << i;
    EXPECT_TRUE(torch::equal(first.parameters[i], again.parameters[i])) << i;
    EXPECT_TRUE(torch::equal(first.parameters[i], in_small_buckets.parameters[i])) << i;
    EXPECT_TRUE(torch::equal(first.parameters[i], in_one_bucket.parameters[i])) << i;
  }
  for (std::size_t i = 0; i < first.buffers.size(); ++i) {
    EXPECT_TRUE(equals_root(world, first.buffers[i])) << "buffer " << i;
    EXPECT_TRUE(torch::equal(first.buffers[i], again.buffers[i])) << i;
  }
}

TEST(DistributedOptimizer, TakesGradientsThatTheUserZeroedInPlace) {
  const Context world = init();
  const auto run = [&](bool in_place) {
    auto network = small_network(seed());
    torch::optim::SGD sgd(network->parameters(), 0.1);
    DistributedOptimizer optimizer(world, sgd, network->named_parameters());
    const void* place = nullptr;
    for (int step = 0; step < 3; ++step) {
      for (auto& parameter : network->parameters()) {
        if (in_place && step > 0) parameter.mutable_grad().zero_();
      }
      if (!in_place) optimizer.zero_grad();
      const Batch batch = whole_batch(seed() + step, batch_per_rank * world.size());
      loss_of(network, part_of(batch, world.rank(), batch_per_rank)).backward();
      optimizer.step();
      const void* now = network->parameters()[0].grad().data_ptr();
      EXPECT_TRUE(place == nullptr || place == now) << "the gradient left its bucket";
      place = now;
    }
    return copies_of(network->parameters());
  };
  const auto undefined = run(false);
  const auto zeroed = run(true);
  for (std::size_t i = 0; i < zeroed.size(); ++i) {
    EXPECT_TRUE(torch::equal(undefined[i], zeroed[i])) << i;
  }
}

TEST(DistributedOptimizer, KeepsTheMemoryOrderOfParameters) {
  const Context world = init();
  const auto gradients = [&](torch::MemoryFormat weights, torch::MemoryFormat images) {
    torch::manual_seed(seed());
    torch::nn::Conv2d convolution(torch::nn::Conv2dOptions(3, 4, 3));
    convolution->weight.set_data(convolution->weight.contiguous(weights));
    torch::optim::SGD sgd(convolution->parameters(), 0.1);
    DistributedOptimizer optimizer(world, sgd, convolution->named_parameters());
    const Batch batch = part_of(whole_batch(seed(), 2 * world.size()), world.rank(), 2);
    convolution->forward(batch.images.contiguous(images)).square().sum().backward();
    optimizer.synchronize();
    EXPECT_EQ(convolution->weight.grad().strides(), convolution->weight.strides());
    return convolution->weight.grad().contiguous();
  };
  const auto row_major = torch::MemoryFormat::Contiguous;
  const auto channels_last = torch::MemoryFormat::ChannelsLast;
  const auto expected = gradients(row_major, row_major);
  // Each way of computing adds up 32 products of numbers below 100 in an order of its own.
  EXPECT_TRUE(torch::allclose(gradients(channels_last, channels_last), expected, 1e-4, 1e-3));
  EXPECT_TRUE(torch::allclose(gradients(row_major, channels_last), expected, 1e-4, 1e-3));
  EXPECT_TRUE(torch::allclose(gradients(channels_last, row_major), expected, 1e-4, 1e-3));
}

TEST(DistributedOptimizer, TypesMayBeMixed) {
  const Context world = init();
  const std::vector<torch::ScalarType> types{torch::kHalf, torch::kDouble, torch::kBFloat16,
                                             torch::kFloat};
  torch::OrderedDict<std::string, torch::Tensor> named;
  for (const auto type : types) {
    named.insert(torch::toString(type), torch::ones({5}, torch::dtype(type)).requires_grad_());
  }
  torch::optim::SGD sgd(named.values(), 1.0);
  DistributedOptimizer optimizer(world, sgd, named, {.op = ReduceOp::sum});
  // The half types have no backward of their own in double: all but one are given a gradient.
  for (const auto& parameter : named.values()) {
    if (parameter.scalar_type() != torch::kFloat)
      parameter.backward(torch::ones_like(parameter) * 2);
  }
  optimizer.synchronize();
  for (const auto& parameter : named.values()) {
    ASSERT_EQ(parameter.grad().defined(), parameter.scalar_type() != torch::kFloat);
    if (!parameter.grad().defined()) continue;
    EXPECT_EQ(parameter.grad().scalar_type(), parameter.scalar_type());
    EXPECT_TRUE(torch::equal(parameter.grad(), torch::full_like(parameter, 2 * world.size())));
  }
}

}  // namespace
}  // namespace hora::internal::test
