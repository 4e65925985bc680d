// Process sets on fake GPUs: each has a communicator, and all of them share the ranks' devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "tests/ops/nccl/gpu_world.h"
#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using test::DeviceTensor;
using test::GpuWorld;
using Bytes = std::vector<std::byte>;

class GpuSets : public testing::TestWithParam<std::vector<int>> {
 protected:
  static test::GpuWorldOptions options() {
    test::GpuWorldOptions result{.node_sizes = GetParam()};
    result.settings.chunk_size = 4096;
    result.settings.device_timeout = std::chrono::seconds(30);
    result.gpu.seed = test::seed();
    return result;
  }
};

TEST_P(GpuSets, HaveACommunicatorFromTheFirstUseToTheirRemoval) {
  GpuWorld world(options());
  std::vector<int> all(static_cast<std::size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  const auto communicators = [&](int rank) { return world.gpu(rank).live().communicators; };
  world.on_all_ranks([&](int rank) {
    Engine& engine = world.engine(rank);
    const ProcessSet set = engine.add_set(all);
    EXPECT_EQ(communicators(rank), 1);
    DeviceTensor tensor(world.gpu(rank), DataType::int32, Bytes(400, std::byte{1}));
    for (int i = 0; i < 3; ++i) {
      const auto submission =
          engine.submit({"x", tensor.signature(OperationKind::allreduce, ReduceOp::sum),
                         tensor.data(), tensor.stream()},
                        set);
      engine.wait(*submission);
      EXPECT_EQ(communicators(rank), 2);
    }
    tensor.read();
    engine.remove_set(set);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (communicators(rank) > 1 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    EXPECT_EQ(communicators(rank), 1);
  });
  EXPECT_THAT(world.complaints(), testing::IsEmpty());
  world.end();
  EXPECT_THAT(world.ranks_with_leftovers(), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Layouts, GpuSets,
                         testing::Values(std::vector{2}, std::vector{3}, std::vector{4},
                                         std::vector{1, 1}, std::vector{2, 2}, std::vector{1, 3}));

// The rank that fails has no turn any more: those that wait for it get its error.
TEST(GpuSetFaults, ARankThatFailsToConnectFreesTheOthers) {
  for (const char* call : {"initialisation", "comm_init_rank_config", "all_reduce"}) {
    test::GpuWorldOptions options{.node_sizes = {3}};
    options.settings.device_timeout = std::chrono::milliseconds(400);
    options.settings.log_level = LogLevel::off;
    options.gpu.seed = test::seed();
    GpuWorld world(options);
    world.on_all_ranks([&](int rank) {
      Engine& engine = world.engine(rank);
      const ProcessSet set = engine.add_set({0, 1, 2});
      if (rank == 2) world.gpu(rank).nccl_fail(call, 1, ncclSystemError);
      DeviceTensor tensor(world.gpu(rank), DataType::int32, Bytes(400, std::byte{1}));
      const Signature signature = tensor.signature(OperationKind::allreduce, ReduceOp::sum);
      const auto begin = std::chrono::steady_clock::now();
      test::expect_error(ErrorCode::transport, [&] {
        // The first one may end before its kernel, which never does.
        for (int i = 0; i < 1000; ++i) {
          const auto submission =
              engine.submit({"x", signature, tensor.data(), tensor.stream()}, set);
          engine.wait(*submission);
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
      });
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << call;
    });
  }
}

}  // namespace
}  // namespace hora::internal
