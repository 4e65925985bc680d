// Collectives on tensors on a GPU.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/frameworks/torch/network.h"
#include "tests/gpu/require_gpu.h"

namespace hora::internal::test {
namespace {

class GpuTensors : public GpuTest {
 protected:
  static torch::TensorOptions on_gpu(const Context& world, torch::ScalarType type = torch::kFloat) {
    return torch::dtype(type).device(local_device(world));
  }
  static double sum_of_ranks(const Context& world) {
    return world.size() * (world.size() + 1) / 2.0;
  }
};

TEST_F(GpuTensors, TheRanksDeviceIsItsGpu) {
  const Context world = init();
  EXPECT_TRUE(local_device(world).is_cuda());
  EXPECT_EQ(local_device(world).index(), world.device().index);
}

TEST_F(GpuTensors, AllreduceSumsEveryTypeInPlaceAndNot) {
  const Context world = init();
  for (const auto type : {torch::kHalf, torch::kBFloat16, torch::kFloat, torch::kDouble,
                          torch::kInt, torch::kLong, torch::kByte}) {
    auto tensor = torch::full({1000, 7}, 1 + world.rank(), on_gpu(world, type));
    const auto expected = torch::full({1000, 7}, sum_of_ranks(world), on_gpu(world, type));
    const auto sum = allreduce(world, tensor, {.op = ReduceOp::sum});
    EXPECT_TRUE(sum.is_cuda());
    EXPECT_TRUE(torch::equal(sum, expected)) << type;
    EXPECT_EQ(tensor[0][0].item<int>(), 1 + world.rank());
    EXPECT_TRUE(allreduce_(world, tensor, {.op = ReduceOp::sum}).is_same(tensor));
    EXPECT_TRUE(torch::equal(tensor, expected)) << type;
  }
}

TEST_F(GpuTensors, StridesAndEmptinessAreNoObstacle) {
  const Context world = init();
  auto base = torch::zeros({400, 600}, on_gpu(world));
  auto every_second = base.slice(1, 0, 600, 2);
  every_second.fill_(1 + world.rank());
  allreduce_(world, every_second, {.op = ReduceOp::sum});
  EXPECT_TRUE(torch::equal(every_second.cpu(), torch::full({400, 300}, sum_of_ranks(world))));
  EXPECT_EQ(base.slice(1, 1, 600, 2).abs().max().item<double>(), 0.0);
  auto transposed = torch::full({200, 300}, 1.0 + world.rank(), on_gpu(world)).t();
  broadcast_(world, transposed, {.root = world.size() - 1});
  EXPECT_TRUE(torch::equal(transposed.cpu(), torch::full({300, 200}, 1.0 * world.size())));
  auto images = torch::full({4, 3, 8, 8}, 1.0 + world.rank(), on_gpu(world))
                    .contiguous(torch::MemoryFormat::ChannelsLast);
  allreduce_(world, images, {.op = ReduceOp::sum});
  EXPECT_TRUE(images.is_contiguous(torch::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(torch::equal(images.cpu(), torch::full({4, 3, 8, 8}, sum_of_ranks(world))));
  auto empty = torch::zeros({0, 3}, on_gpu(world));
  allreduce_(world, empty);
  const auto scalar = torch::tensor(1.0 + world.rank(), on_gpu(world));
  EXPECT_DOUBLE_EQ(allreduce(world, scalar, {.op = ReduceOp::sum}).item<double>(),
                   sum_of_ranks(world));
}

TEST_F(GpuTensors, ManyInAnyOrderWithMemoryFreedAtOnce) {
  const Context world = init();
  constexpr int kCount = 30;
  for (int round = 0; round < 5; ++round) {
    std::vector<TensorHandle> handles;
    for (int i = 0; i < kCount; ++i) {
      const int which = world.rank() % 2 == 0 ? i : kCount - 1 - i;
      // Calculated on the current stream, and only the handle keeps it.
      auto tensor = torch::full({50000}, which, on_gpu(world)) + world.rank();
      handles.push_back(
          allreduce_async_(world, tensor, {.name = std::to_string(which), .op = ReduceOp::sum}));
    }
    for (int i = 0; i < kCount; ++i) {
      const int which = world.rank() % 2 == 0 ? i : kCount - 1 - i;
      const double expected = which * world.size() + sum_of_ranks(world) - world.size();
      const auto result = handles[static_cast<std::size_t>(i)].wait();
      EXPECT_TRUE((result == expected).all().item<bool>()) << which;
    }
  }
}

TEST_F(GpuTensors, ExchangesGiveTensorsOnTheGpu) {
  const Context world = init();
  const int size = world.size();
  const auto own = torch::full({2 * size, 3}, 1.0 + world.rank(), on_gpu(world));
  const auto ranks = (torch::arange(size) + 1.0).repeat_interleave(2).unsqueeze(1);
  const auto gathered = allgather(world, own.narrow(0, 0, 2));
  EXPECT_TRUE(gathered.is_cuda());
  EXPECT_TRUE(torch::equal(gathered.cpu(), ranks.expand({2 * size, 3}).to(torch::kFloat)));
  EXPECT_TRUE(torch::equal(alltoall(world, own).tensor, gathered));
  const auto splits = torch::full({size}, 2, on_gpu(world, torch::kLong));
  EXPECT_TRUE(torch::equal(alltoall(world, own, splits).tensor, gathered));
  const auto sum = reduce_scatter(world, own, {.op = ReduceOp::sum});
  EXPECT_TRUE(torch::equal(sum.cpu(), torch::full({2, 3}, sum_of_ranks(world))));
  EXPECT_EQ(allgather(world, torch::zeros({0, 3}, on_gpu(world))).numel(), 0);
}

TEST_F(GpuTensors, BroadcastParametersGivesEveryRankTheRootsModule) {
  const Context world = init();
  const int root = world.size() - 1;
  auto module = small_network(100 + static_cast<std::uint64_t>(world.rank()));
  auto expected = small_network(100 + static_cast<std::uint64_t>(root));
  module->to(local_device(world));
  broadcast_parameters(world, *module, root);
  for (std::size_t i = 0; i < expected->parameters().size(); ++i) {
    EXPECT_TRUE(torch::equal(module->parameters()[i].cpu(), expected->parameters()[i])) << i;
  }
}

}  // namespace
}  // namespace hora::internal::test
