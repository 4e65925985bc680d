// A tensor on a GPU through all parts: engine, pipeline, NcclGroup, on fake GPUs. What collectives
// give is in tests/conformance, here when the host waits, and what is left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string_view>

#include "ops/cross/cross_group.h"
#include "tests/ops/nccl/gpu_world.h"
#include "tests/support/reference/reference.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using test::DeviceTensor;
using test::GpuWorld;
using test::GpuWorldOptions;
using test::whole_numbers;

using Bytes = std::vector<std::byte>;

/// Nodes, and how data travels between them.
struct Layout {
  std::vector<int> nodes;
  bool device_staging = false;
  CrossAlgorithm algorithm = CrossAlgorithm::direct;
  std::size_t small_message = 0;
  bool by_nccl = false;
};

std::string layout_name(const testing::TestParamInfo<Layout>& info) {
  const Layout& layout = info.param;
  std::string name = "nodes";
  for (const int size : layout.nodes) name += "_" + std::to_string(size);
  if (layout.by_nccl) return name + "_nccl";
  if (!layout.device_staging) return name;
  const std::string_view algorithm = layout.small_message > 0
                                         ? kDisseminationAllreduce.name
                                         : allreduce_algorithm(layout.algorithm).name;
  return name + "_gpu_" + std::string(algorithm);
}

class GpuEngine : public testing::TestWithParam<Layout> {
 protected:
  GpuWorldOptions options() const {
    GpuWorldOptions result{.node_sizes = GetParam().nodes,
                           .device_staging = GetParam().device_staging,
                           .by_nccl = GetParam().by_nccl};
    result.settings.chunk_size = 4096;
    result.settings.cross_algorithm = GetParam().algorithm;
    result.settings.small_message = GetParam().small_message;
    result.settings.device_timeout = std::chrono::seconds(60);
    result.gpu.seed = test::seed();
    return result;
  }
  static void expect_no_complaints(GpuWorld& world) {
    EXPECT_THAT(world.complaints(), testing::IsEmpty());
    EXPECT_EQ(world.messages() > 0, GetParam().device_staging);
    EXPECT_EQ(world.misplaced_messages(), 0);
  }
};

// What costs the host a wait for the GPU, or the GPU a stop.
constexpr const char* kSynchronising[] = {
    "stream_synchronize", "event_synchronize", "malloc",        "free",
    "host_alloc",         "free_host",         "stream_create", "event_create",
    "device_synchronize"};

TEST_P(GpuEngine, TheSteadyStateNeverSynchronises) {
  GpuWorld world(options());
  std::vector<std::unique_ptr<DeviceTensor>> tensors;
  auto random = test::generator();
  for (int rank = 0; rank < world.size(); ++rank) {
    tensors.push_back(std::make_unique<DeviceTensor>(
        world.gpu(rank), DataType::float32, whole_numbers(DataType::float32, 20000, random)));
  }
  const auto run = [&](int rounds) {
    world.on_all_ranks([&](int rank) {
      DeviceTensor& tensor = *tensors[static_cast<std::size_t>(rank)];
      for (int i = 0; i < rounds; ++i) {
        world.engine(rank).submit_and_wait(
            "x", tensor.signature(OperationKind::allreduce, ReduceOp::sum), tensor.data(),
            tensor.stream());
        // The application reads its result before the next round, as an optimizer does.
        tensor.read();
      }
    });
  };
  run(20);
  std::map<std::pair<int, std::string>, int> before;
  for (int rank = 0; rank < world.size(); ++rank) {
    for (const char* call : kSynchronising) before[{rank, call}] = world.gpu(rank).count(call);
    before[{rank, "memcpy_async"}] = world.gpu(rank).count("memcpy_async");
  }
  constexpr int kRounds = 10;
  run(kRounds);
  for (int rank = 0; rank < world.size(); ++rank) {
    for (const char* call : kSynchronising) {
      const int by_the_test = std::string(call) == "stream_synchronize" ? kRounds : 0;
      EXPECT_EQ(world.gpu(rank).count(call) - before.at({rank, call}), by_the_test)
          << call << " on rank " << rank;
    }
    if (GetParam().device_staging) {
      EXPECT_EQ(world.gpu(rank).count("memcpy_async") - before.at({rank, "memcpy_async"}), kRounds)
          << "copies beside the test's own";
    }
  }
  expect_no_complaints(world);
}

TEST_P(GpuEngine, LeavesNothingBehind) {
  GpuWorld world(options());
  auto random = test::generator();
  {
    std::vector<std::unique_ptr<DeviceTensor>> tensors;
    for (int rank = 0; rank < world.size(); ++rank) {
      tensors.push_back(std::make_unique<DeviceTensor>(
          world.gpu(rank), DataType::float32, whole_numbers(DataType::float32, 5000, random)));
    }
    world.on_all_ranks([&](int rank) {
      DeviceTensor& tensor = *tensors[static_cast<std::size_t>(rank)];
      world.engine(rank).submit_and_wait("x",
                                         tensor.signature(OperationKind::allreduce, ReduceOp::sum),
                                         tensor.data(), tensor.stream());
      tensor.read();
      std::byte* const buffer = world.engine(rank).allocate_on_device(1000);
      world.engine(rank).release_on_device(buffer);
    });
  }
  world.end();
  EXPECT_THAT(world.ranks_with_leftovers(), testing::IsEmpty());
  EXPECT_THAT(world.complaints(), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Layouts, GpuEngine,
                         testing::Values(Layout{{1}}, Layout{{2}}, Layout{{3}}, Layout{{4}},
                                         Layout{{1, 1}}, Layout{{2, 1}}, Layout{{2, 2}},
                                         Layout{{1, 3}}, Layout{{1, 1, 1, 1}}),
                         layout_name);

/// Of a rank that is alone in its communicator; values are checked by the conformance tests.
TEST(GpuEngineAlone, CallsNoCollectiveOfNccl) {
  for (const std::vector<int>& nodes : {std::vector<int>{1}, std::vector<int>{1, 1}}) {
    GpuWorld world({.node_sizes = nodes});
    world.on_all_ranks([&](int rank) {
      const Bytes zeros(5000 * sizeof(float));
      DeviceTensor tensor(world.gpu(rank), DataType::float32, zeros);
      Engine& engine = world.engine(rank);
      engine.submit_and_wait("sum", tensor.signature(OperationKind::allreduce, ReduceOp::sum),
                             tensor.data(), tensor.stream());
      engine.submit_and_wait("root", tensor.signature(OperationKind::broadcast, ReduceOp::sum),
                             tensor.data(), tensor.stream());
      EXPECT_EQ(tensor.read(), zeros);
      for (const char* call :
           {"all_reduce", "broadcast", "reduce_scatter", "all_gather", "reduce", "group_start"}) {
        EXPECT_EQ(world.gpu(rank).nccl_count(call), 0) << call << ", " << nodes.size() << " nodes";
      }
    });
    EXPECT_THAT(world.complaints(), testing::IsEmpty());
  }
}

constexpr auto kDirect = CrossAlgorithm::direct;
constexpr auto kRing = CrossAlgorithm::ring;
constexpr std::size_t kAllSmall = std::size_t{1} << 20;
INSTANTIATE_TEST_SUITE_P(DeviceStaging, GpuEngine,
                         testing::Values(Layout{{1, 1}, true}, Layout{{2, 1}, true},
                                         Layout{{2, 2}, true}, Layout{{1, 1, 1}, true},
                                         Layout{{2, 1, 1}, true, kRing},
                                         Layout{{1, 1}, true, kDirect, kAllSmall},
                                         Layout{{1, 2, 1}, true, kDirect, kAllSmall}),
                         layout_name);

Layout by_nccl(std::vector<int> nodes) {
  return {.nodes = std::move(nodes), .by_nccl = true};
}
INSTANTIATE_TEST_SUITE_P(ByNccl, GpuEngine,
                         testing::Values(by_nccl({1, 1}), by_nccl({2, 1}), by_nccl({2, 2}),
                                         by_nccl({1, 3}), by_nccl({1, 1, 1, 1})),
                         layout_name);

TEST(GpuEngineOrder, WaitDoesNotWaitForTheGpu) {
  GpuWorld world({.node_sizes = {2}, .settings = {}, .gpu = {}});
  std::vector<std::unique_ptr<DeviceTensor>> tensors;
  const Bytes ones = [] {
    Bytes bytes(1000 * sizeof(float));
    const std::vector<float> values(1000, 1.0F);
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }();
  for (int rank = 0; rank < 2; ++rank) {
    tensors.push_back(std::make_unique<DeviceTensor>(world.gpu(rank), DataType::float32, ones));
    tensors.back()->read();
    world.gpu(rank).hold();
    tensors.back()->fill(ones);  // comes late
  }
  world.on_all_ranks([&](int rank) {
    DeviceTensor& tensor = *tensors[static_cast<std::size_t>(rank)];
    world.engine(rank).submit_and_wait(
        "x", tensor.signature(OperationKind::allreduce, ReduceOp::sum), tensor.data(),
        tensor.stream());  // returns, though no stream moves
  });
  for (int rank = 0; rank < 2; ++rank) world.gpu(rank).resume();
  for (int rank = 0; rank < 2; ++rank) {
    const Bytes result = tensors[static_cast<std::size_t>(rank)]->read();
    float first = 0.0F;
    std::memcpy(&first, result.data(), sizeof first);
    EXPECT_EQ(first, 2.0F);
  }
}

}  // namespace
}  // namespace hora::internal
