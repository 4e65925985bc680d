// Allgather, alltoall and reduce-scatter of tensors on fake GPUs: when the host waits, and what is
// left. What they give is in tests/conformance.
#include "tests/ops/nccl/gpu_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using test::DeviceTensor;
using test::Exchange;
using test::GpuWorld;
using test::Pending;
using Bytes = std::vector<std::byte>;

constexpr OperationKind kKinds[] = {OperationKind::allgather, OperationKind::alltoall,
                                    OperationKind::reduce_scatter};

class GpuExchange : public testing::TestWithParam<std::vector<int>> {
 protected:
  static test::GpuWorldOptions options() {
    test::GpuWorldOptions result{.node_sizes = GetParam()};
    result.settings.chunk_size = 4096;
    result.gpu.seed = test::seed();
    return result;
  }
};

TEST_P(GpuExchange, LeavesNothingBehind) {
  auto random = test::generator();
  GpuWorld world(options());
  const int ranks = world.size();
  for (const OperationKind kind : kKinds) {
    const Exchange exchange = test::random_exchange(kind, ranks, random);
    world.on_all_ranks([&](int rank) {
      const auto own = static_cast<std::size_t>(rank);
      const DeviceTensor input(world.gpu(rank), exchange.type, exchange.values[own]);
      const Pending pending = submit_on_gpu(world, rank, exchange, "x", input);
      world.engine(rank).wait(*pending.submission);
      pending.result->collect();
      bytes_of(world, rank, *pending.result);
    });
  }
  world.end();
  EXPECT_THAT(world.ranks_with_leftovers(), testing::IsEmpty());
  EXPECT_THAT(world.complaints(), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Layouts, GpuExchange,
                         testing::Values(std::vector{1}, std::vector{2}, std::vector{3},
                                         std::vector{4}, std::vector{1, 1}, std::vector{2, 1},
                                         std::vector{2, 2}),
                         [](const auto& tested) {
                           std::string name = "nodes";
                           for (const int size : tested.param) name += "_" + std::to_string(size);
                           return name;
                         });

Exchange even_gather(int ranks) {
  Exchange exchange{.columns = 100};
  for (int rank = 0; rank < ranks; ++rank) {
    exchange.extents.push_back({10});
    exchange.values.emplace_back(4000, static_cast<std::byte>(rank + 1));
  }
  return exchange;
}

TEST(GpuExchangeOrder, TheHostDoesNotWaitForTheGpu) {
  GpuWorld world({.node_sizes = {2}});
  const Exchange exchange = even_gather(2);
  std::vector<std::unique_ptr<DeviceTensor>> inputs;
  std::vector<Pending> pending(2);
  for (int rank = 0; rank < 2; ++rank) {
    inputs.push_back(
        std::make_unique<DeviceTensor>(world.gpu(rank), DataType::float32, Bytes(4000)));
    inputs.back()->read();
    world.gpu(rank).hold();
    inputs.back()->fill(exchange.values[static_cast<std::size_t>(rank)]);  // comes late
  }
  world.on_all_ranks([&](int rank) {
    const auto own = static_cast<std::size_t>(rank);
    pending[own] = submit_on_gpu(world, rank, exchange, "x", *inputs[own]);
    world.engine(rank).wait(*pending[own].submission);  // returns, though no stream moves
    pending[own].result->collect();
  });
  for (int rank = 0; rank < 2; ++rank) world.gpu(rank).resume();
  for (int rank = 0; rank < 2; ++rank) {
    const Bytes result = bytes_of(world, rank, *pending[static_cast<std::size_t>(rank)].result);
    EXPECT_EQ(result.front(), std::byte{1});
    EXPECT_EQ(result.back(), std::byte{2});
  }
}

TEST(GpuExchangeOrder, TheSteadyStateNeverSynchronises) {
  GpuWorld world({.node_sizes = {2}});
  auto random = test::generator();
  std::vector<Exchange> program;
  for (const OperationKind kind : kKinds)
    program.push_back(test::random_gpu_exchange(kind, 2, random));
  const auto run = [&] {
    world.on_all_ranks([&](int rank) {
      for (const Exchange& exchange : program) {
        const DeviceTensor input(world.gpu(rank), exchange.type,
                                 exchange.values[static_cast<std::size_t>(rank)]);
        const int before = world.gpu(rank).count("malloc") + world.gpu(rank).count("free") +
                           world.gpu(rank).count("stream_synchronize") +
                           world.gpu(rank).count("event_synchronize");
        {
          const Pending pending = submit_on_gpu(world, rank, exchange, "x", input);
          world.engine(rank).wait(*pending.submission);
          pending.result->collect();
        }
        EXPECT_EQ(world.gpu(rank).count("malloc") + world.gpu(rank).count("free") +
                      world.gpu(rank).count("stream_synchronize") +
                      world.gpu(rank).count("event_synchronize"),
                  before)
            << exchange.text();
      }
    });
  };
  run();
  run();
}

}  // namespace
}  // namespace hora::internal
