// Gradients that travel in another type than their parameter's.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "frameworks/torch/tensor_view.h"
#include "frameworks/torch/wire_type.h"
#include "tests/frameworks/torch/averaging_model.h"
#include "tests/frameworks/torch/network.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

using NamedParameters = torch::OrderedDict<std::string, torch::Tensor>;

class CompressionTest : public testing::TestWithParam<Compression> {
 protected:
  DistributedOptimizerOptions options() const { return {.compression = GetParam()}; }

  torch::ScalarType wire(torch::ScalarType type) const {
    return to_scalar_type(wire_type(GetParam(), *to_data_type(type)));
  }

  // Any rank's, known to all. What a float32 holds: LibTorch rounds float64 by way of it.
  static torch::Tensor gradient_of(int rank, int step, torch::IntArrayRef shape,
                                   torch::ScalarType type) {
    torch::manual_seed(seed() + 1000 * static_cast<std::uint64_t>(step) +
                       static_cast<std::uint64_t>(rank));
    return torch::randn(shape, torch::kFloat).to(type);
  }

  torch::Tensor expected(int step, torch::IntArrayRef shape, torch::ScalarType type) const {
    return average_model(
               world_,
               [&](int rank) { return gradient_of(rank, step, shape, type).to(wire(type)); })
        .to(type);
  }

  const Context world_ = init();
};

TEST_P(CompressionTest, AveragesAreThoseOfTheWireTypeToTheBit) {
  // A bucket of one cache line, of a few, and of enough to be written past the caches.
  for (const std::int64_t elements : {3, 1000, 300001}) {
    const auto weight = torch::zeros({elements}, torch::requires_grad());
    torch::optim::SGD sgd({weight}, 1.0);
    DistributedOptimizer optimizer(world_, sgd, {{"weight", weight}}, options());
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      weight.backward(gradient_of(world_.rank(), step, {elements}, torch::kFloat));
      optimizer.synchronize();
      EXPECT_EQ(weight.grad().scalar_type(), torch::kFloat);
      EXPECT_TRUE(torch::equal(weight.grad(), expected(step, {elements}, torch::kFloat)))
          << elements << " elements, step " << step;
      optimizer.step();
    }
  }
}

TEST_P(CompressionTest, EveryTypeTravelsAsItShould) {
  NamedParameters named;
  for (const auto type : {torch::kHalf, torch::kDouble, torch::kBFloat16, torch::kFloat}) {
    for (const char* which : {"first ", "second "}) {
      named.insert(which + std::string(torch::toString(type)),
                   torch::zeros({7, 5}, torch::dtype(type)).requires_grad_());
    }
  }
  torch::optim::SGD sgd(named.values(), 1.0);
  DistributedOptimizer optimizer(world_, sgd, named, options());
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    for (const auto& item : named) {
      const auto type = item.value().scalar_type();
      item.value().backward(gradient_of(world_.rank(), step, {7, 5}, type));
    }
    optimizer.synchronize();
    for (const auto& item : named) {
      const auto type = item.value().scalar_type();
      ASSERT_EQ(item.value().grad().scalar_type(), type) << item.key();
      EXPECT_TRUE(torch::equal(item.value().grad(), expected(step, {7, 5}, type))) << item.key();
    }
  }
}

TEST_P(CompressionTest, GradientsStayWhereTheyAreFromStepToStep) {
  auto network = small_network(seed());
  network->push_back(torch::nn::Linear(5, 5));
  torch::optim::SGD sgd(network->parameters(), 0.1);
  DistributedOptimizer optimizer(world_, sgd, network->named_parameters(), options());
  std::map<std::size_t, const void*> places;
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    loss_of(network, part_of(whole_batch(seed(), 2 * world_.size()), world_.rank(), 2)).backward();
    optimizer.step();
    const auto parameters = network->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const void* place = parameters[i].grad().data_ptr();
      EXPECT_EQ(places.emplace(i, place).first->second, place) << "parameter " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, CompressionTest,
                         testing::Values(Compression::none, Compression::float16,
                                         Compression::bfloat16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace hora::internal::test
