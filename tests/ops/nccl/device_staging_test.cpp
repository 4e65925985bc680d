// Slices that stay in GPU memory give the same bits as those that go over pinned host memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "tests/ops/nccl/gpu_world.h"
#include "tests/support/reference/elements.h"
#include "tests/support/reference/reference.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using test::Bytes;
using test::DeviceTensor;
using test::GpuWorld;

constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max,
                             ReduceOp::product};

struct Tensor {
  DataType type;
  ReduceOp op;
  std::vector<Bytes> values;  ///< by rank
};

/// What every rank has in the end, tensor by tensor.
std::vector<std::vector<Bytes>> results(const std::vector<int>& nodes, std::size_t small_message,
                                        bool device_staging, const std::vector<Tensor>& tensors) {
  test::GpuWorldOptions options{.node_sizes = nodes, .device_staging = device_staging};
  options.settings.chunk_size = 8192;
  options.settings.small_message = small_message;
  options.gpu.seed = test::seed();
  options.gpu.longest_delay = std::chrono::microseconds(100);
  GpuWorld world(options);
  std::vector<std::vector<Bytes>> all(static_cast<std::size_t>(world.size()));
  world.on_all_ranks([&](int rank) {
    const auto own = static_cast<std::size_t>(rank);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      DeviceTensor tensor(world.gpu(rank), tensors[i].type, tensors[i].values[own]);
      world.engine(rank).submit_and_wait(std::to_string(i),
                                         tensor.signature(OperationKind::allreduce, tensors[i].op),
                                         tensor.data(), tensor.stream());
      all[own].push_back(tensor.read());
    }
  });
  EXPECT_EQ(world.misplaced_messages(), 0);
  return all;
}

TEST(DeviceStaging, GivesThePinnedPathsBits) {
  auto random = test::generator();
  for (const std::vector<int>& nodes :
       {std::vector{1, 1}, std::vector{1, 1, 1}, std::vector{2, 2}, std::vector{2, 1, 2}}) {
    const auto ranks = static_cast<std::size_t>(std::accumulate(nodes.begin(), nodes.end(), 0));
    std::vector<Tensor> tensors;
    for (const DataType type : test::kNcclTypes) {
      for (const ReduceOp op : kOps) {
        if (op == ReduceOp::average && !is_floating_point(type)) continue;
        Tensor& tensor = tensors.emplace_back(Tensor{type, op, {}});
        const std::size_t bytes = (1 + random() % 3000) * 8;
        for (std::size_t rank = 0; rank < ranks; ++rank) {
          tensor.values.push_back(test::random_values(type, bytes, random));
        }
      }
    }
    const auto pinned = results(nodes, 0, false, tensors);
    for (const std::size_t small_message : {0, 2048}) {
      const auto on_device = results(nodes, small_message, true, tensors);
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          ASSERT_TRUE(on_device[rank][i] == pinned[rank][i])
              << name_of(tensors[i].op) << " of " << name_of(tensors[i].type) << " over "
              << nodes.size() << " nodes, rank " << rank << ", small message " << small_message;
        }
      }
    }
  }
}

}  // namespace
}  // namespace hora::internal
