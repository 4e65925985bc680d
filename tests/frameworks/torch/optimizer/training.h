/// Networks and weights in training, and what tests of all ranks have in common.
#pragma once

#include <gtest/gtest.h>
#include <hora/torch.h>
#include <hora/torch/grad_scaler.h>
#include <hora/torch/optim.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/frameworks/torch/network.h"
#include "tests/support/seed.h"

namespace hora::internal::test {

using Named = torch::OrderedDict<std::string, torch::Tensor>;

/// A test of all ranks.
class WorldTest : public testing::Test {
 protected:
  explicit WorldTest(const InitOptions& options = {}) : world_(init(options)) {}

  bool last() const { return world_.rank() + 1 == world_.size(); }
  /// One that errs by itself; with one rank none does.
  bool is_odd_one() const { return world_.size() > 1 && last(); }
  std::uint64_t operations() const { return world_.statistics().operations; }

  const Context world_;
  const double own_ = world_.rank() + 1.0;           ///< each rank's own number
  const double mean_ = (world_.size() + 1.0) / 2.0;  ///< of all ranks' numbers
};

/// INSTANTIATE_TEST_SUITE_P(, Suite, kCompressions, compression_of)
inline const auto kCompressions =
    testing::Values(Compression::none, Compression::float16, Compression::bfloat16);
inline std::string compression_of(const testing::TestParamInfo<Compression>& test) {
  return std::string(name_of(test.param));
}

using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>;

inline std::unique_ptr<torch::optim::Optimizer> make_sgd(std::vector<torch::Tensor> parameters) {
  return std::make_unique<torch::optim::SGD>(
      std::move(parameters), torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-3));
}

/// The same bits, and what sharding fused and in_backward take.
inline std::unique_ptr<torch::optim::Optimizer> make_fused_sgd(
    std::vector<torch::Tensor> parameters) {
  return std::make_unique<optim::SGD>(
      std::move(parameters), torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-3));
}

inline std::unique_ptr<torch::optim::Optimizer> make_adam(std::vector<torch::Tensor> parameters) {
  return std::make_unique<torch::optim::Adam>(std::move(parameters),
                                              torch::optim::AdamOptions(0.01));
}

struct Training {
  explicit Training(const Context& world, const DistributedOptimizerOptions& options = {},
                    const MakeOptimizer& make = make_sgd, torch::ScalarType type = torch::kFloat,
                    std::uint64_t seed_of_weights = seed())
      : Training(world, options, make, small_network(seed_of_weights, type)) {}
  Training(const Context& world, const DistributedOptimizerOptions& options,
           const MakeOptimizer& make, torch::nn::Sequential its_network)
      : network(std::move(its_network)),
        wrapped(make(network->parameters())),
        optimizer(world, *wrapped, network->named_parameters(), options) {}

  void backward(const Batch& batch) { loss_of(network, batch).backward(); }
  void step(const Batch& batch) {
    optimizer.zero_grad();
    backward(batch);
    optimizer.step();
  }

  std::vector<torch::Tensor> weights() const { return copies_of(network->parameters()); }

  torch::nn::Sequential network;
  std::unique_ptr<torch::optim::Optimizer> wrapped;
  DistributedOptimizer optimizer;
};

/// One weight, "weight", and its optimizer, whose gradients the test gives.
struct OneWeight {
  explicit OneWeight(const Context& world, const DistributedOptimizerOptions& options = {},
                     std::int64_t elements = 4, torch::ScalarType type = torch::kFloat)
      : weight(torch::zeros({elements}, torch::dtype(type)).requires_grad_()),
        sgd({weight}, 1.0),
        optimizer(world, sgd, {{"weight", weight}}, options) {}

  /// The average of the ranks' is known where each has its own `factor`.
  void backward(double factor = 1.0) { (weight * factor).sum().backward(); }

  torch::Tensor weight;
  torch::optim::SGD sgd;
  DistributedOptimizer optimizer;
};

/// Parameters "a" and "b" of three elements, by default, in SGD with learning rate 1.
struct TwoWeights {
  explicit TwoWeights(const Context& its_world, const DistributedOptimizerOptions& options = {},
                      std::int64_t elements = 3)
      : a(torch::zeros({elements}, torch::requires_grad())),
        b(torch::zeros({elements}, torch::requires_grad())),
        sgd({a, b}, 1.0),
        optimizer(std::in_place, its_world, sgd, Named{{"a", a}, {"b", b}}, options) {}

  torch::Tensor a, b;
  torch::optim::SGD sgd;
  std::optional<DistributedOptimizer> optimizer;
};

/// This rank's `count` images in step `step`; another rank's.
inline Batch batch_of(const Context& world, int rank, int step, std::int64_t count = 2,
                      torch::ScalarType type = torch::kFloat) {
  const auto seed_of_step = seed() + 1000 * static_cast<std::uint64_t>(step);
  return part_of(whole_batch(seed_of_step, count * world.size(), type), rank, count);
}
inline Batch my_batch(const Context& world, int step, std::int64_t count = 2,
                      torch::ScalarType type = torch::kFloat) {
  return batch_of(world, world.rank(), step, count, type);
}

inline void expect_same_bits(const std::vector<torch::Tensor>& a,
                             const std::vector<torch::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(torch::equal(a[i], b[i])) << "tensor " << i;
  }
}

inline void expect_close(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b,
                         double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(torch::allclose(a[i], b[i], tolerance, tolerance))
        << "tensor " << i << ": " << (a[i] - b[i]).abs().max();
  }
}

/// Collective.
inline void expect_alike(const Context& world, const torch::nn::Sequential& network) {
  for (const auto& parameter : network->parameters()) EXPECT_TRUE(equals_root(world, parameter));
}

/// A network that trains with these options learns its batch, and the same on every rank.
inline void expect_to_learn_alike(const Context& world,
                                  const DistributedOptimizerOptions& options) {
  Training training(world, options);
  const Batch batch = my_batch(world, 0, 8);
  const auto loss = [&] { return loss_of(training.network, batch).item<double>(); };
  const double before = loss();
  for (int step = 0; step < 60; ++step) training.step(batch);
  EXPECT_LT(loss(), 0.7 * before);
  expect_alike(world, training.network);
}

}  // namespace hora::internal::test
