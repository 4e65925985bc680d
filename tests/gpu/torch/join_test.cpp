// DistributedOptimizer on a GPU where ranks' data end at different steps, and clipping.
#include <gtest/gtest.h>
#include <hora/torch.h>

#include <cmath>

#include "tests/frameworks/torch/network.h"
#include "tests/gpu/require_gpu.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

class GpuJoin : public GpuTest {
 protected:
  static Batch batch_on(const torch::Device& device, const Context& world, int step) {
    const Batch whole = whole_batch(seed() + static_cast<std::uint64_t>(step), 2 * world.size());
    const Batch own = part_of(whole, world.rank(), 2);
    return {own.images.to(device), own.labels.to(device)};
  }
};

TEST_F(GpuJoin, EveryRankEndsWithTheLastOnesModelAndState) {
  const Context world = init();
  const auto device = local_device(world);
  for (const bool first_is_longest : {false, true}) {
    auto network = small_network(seed());
    network->to(device);
    torch::optim::Adam adam(network->parameters(), torch::optim::AdamOptions(0.01));
    DistributedOptimizer optimizer(world, adam, network->named_parameters());
    const auto step = [&](int number) {
      optimizer.zero_grad();
      loss_of(network, batch_on(device, world, number)).backward();
      optimizer.step();
    };
    const int place = first_is_longest ? world.size() - 1 - world.rank() : world.rank();
    for (int number = 0; number < 2 + 2 * place; ++number) step(number);
    EXPECT_EQ(optimizer.join(), first_is_longest ? 0 : world.size() - 1);
    for (const auto& parameter : network->parameters()) EXPECT_TRUE(equals_root(world, parameter));
    for (int number = 100; number < 102; ++number) step(number);
    for (const auto& parameter : network->parameters()) EXPECT_TRUE(equals_root(world, parameter));
  }
}

TEST_F(GpuJoin, ClippingIsThatOfTheRanksThatAreLeft) {
  const Context world = init();
  for (const auto type : {torch::kFloat, torch::kHalf, torch::kDouble}) {
    const auto weight =
        torch::zeros({1000}, torch::dtype(type).device(local_device(world))).requires_grad_();
    torch::optim::SGD sgd({weight}, 1.0);
    DistributedOptimizer optimizer(world, sgd, {{"weight", weight}}, {.op = ReduceOp::sum});
    for (int step = 0; step <= world.rank(); ++step) {
      optimizer.zero_grad();
      (weight * 2.0).sum().backward();
      const double norm = 2.0 * (world.size() - step) * std::sqrt(1000.0);
      EXPECT_NEAR(optimizer.clip_grad_norm_(1.0), norm, 1e-5 * norm);
      EXPECT_NEAR(weight.grad().to(torch::kDouble).norm().item<double>(), 1.0, 1e-2);
      optimizer.step();
    }
    optimizer.join();
  }
}

}  // namespace
}  // namespace hora::internal::test
