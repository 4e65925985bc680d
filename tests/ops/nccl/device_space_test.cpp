// Slices that stay in GPU memory give the same bits as those that go over pinned host memory.
#include "ops/nccl/device_space.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <cstring>
#include <numeric>
#include <random>

#include "ops/local/kernels.h"
#include "tests/ops/nccl/gpu_world.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_gpu/fake_gpu.h"
#include "tests/support/reference/elements.h"
#include "tests/support/reference/reference.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using Bytes = std::vector<std::byte>;

class DeviceSpaceTest : public testing::Test {
 protected:
  static void finish(Completion& completion) {
    while (!completion.poll()) {
    }
  }

  test::FakeNcclWorld world_;
  test::FakeGpu gpu_{world_,
                     {.seed = test::seed(), .longest_delay = std::chrono::microseconds(300)}};
};

TEST_F(DeviceSpaceTest, ReducesAsTheHostDoes) {
  auto random = test::generator();
  EventPool events(gpu_.cuda());
  DeviceSpace space(gpu_.cuda(), 0, events);
  constexpr std::size_t kBytes = 4096;
  for (const DataType type : test::kAllTypes) {
    for (const std::size_t inputs : {1U, 2U, 5U}) {
      std::vector<std::byte*> on_device;
      std::vector<Bytes> on_host;
      for (std::size_t i = 0; i < inputs; ++i) {
        Bytes& bytes = on_host.emplace_back(kBytes);
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % 64);  // no NaN
        on_device.push_back(space.allocate(kBytes));
        std::memcpy(on_device.back(), bytes.data(), kBytes);  // fake memory is the host's
      }
      std::vector<const std::byte*> all_host;
      for (const Bytes& bytes : on_host) all_host.push_back(bytes.data());
      Bytes expected(kBytes);
      std::byte* const output = expected.data();
      const ReduceOp op = test::kElementOps[random() % test::kElementOps.size()];
      reduce(type, op, all_host, {&output, 1}, kBytes / size_of(type), {.post = 0.3});

      const std::vector<const std::byte*> all(on_device.begin(), on_device.end());
      Completion sum = space.reduce({type, op, 0.3}, all, on_device.back(), kBytes / size_of(type));
      finish(sum);
      EXPECT_EQ(std::memcmp(on_device.back(), expected.data(), kBytes), 0)
          << name_of(op) << " of " << inputs << " inputs of " << name_of(type);
      for (std::byte* const data : on_device) space.release(data);
    }
  }
  EXPECT_EQ(gpu_.live().device, 0);
  EXPECT_THAT(gpu_.violations(), testing::IsEmpty());
}

TEST_F(DeviceSpaceTest, IsCompleteWhenTheGpuIs) {
  EventPool events(gpu_.cuda());
  DeviceSpace space(gpu_.cuda(), 0, events);
  std::byte* const data = space.allocate(64);
  const std::vector<const std::byte*> inputs = {data, data};
  gpu_.hold();
  Completion sum = space.reduce({.type = DataType::uint8}, inputs, data, 64);
  for (int poll = 0; poll < 100; ++poll) EXPECT_FALSE(sum.poll());
  gpu_.resume();
  finish(sum);
  space.release(data);
}

TEST_F(DeviceSpaceTest, NothingIsStartedForNothing) {
  EventPool events(gpu_.cuda());
  DeviceSpace space(gpu_.cuda(), 0, events);
  EXPECT_TRUE(space.reduce({}, {}, nullptr, 0).poll());
  EXPECT_EQ(gpu_.count("device_reduce"), 0);
}

TEST_F(DeviceSpaceTest, WithoutMemoryItSaysHowMuch) {
  EventPool events(gpu_.cuda());
  DeviceSpace space(gpu_.cuda(), 0, events);
  gpu_.fail("malloc", 1, cudaErrorMemoryAllocation);
  test::expect_error(ErrorCode::out_of_memory, testing::HasSubstr("12345 bytes"),
                     [&] { space.allocate(12345); });
  EXPECT_EQ(gpu_.live().device, 0);
}

TEST_F(DeviceSpaceTest, FailuresAreNamed) {
  for (const char* call : {"get_device", "device_reduce", "event_record", "event_query"}) {
    EventPool events(gpu_.cuda());
    DeviceSpace space(gpu_.cuda(), 0, events);
    std::byte* const data = space.allocate(64);
    const std::vector<const std::byte*> inputs = {data, data};
    gpu_.fail(call, 1, cudaErrorLaunchFailure);
    EXPECT_THROW(
        {
          Completion sum = space.reduce({.type = DataType::uint8}, inputs, data, 64);
          finish(sum);
        },
        Error)
        << call;
    space.release(data);
  }
  EXPECT_EQ(gpu_.live(), test::LiveHandles{});
}

/// Counts what reaches it.
struct CountingLink final : PointToPoint {
  CountingLink() : PointToPoint(1, 3) {}
  Request send(int, int, std::span<const std::byte>) override { return calls++; }
  Request receive(int, int, std::span<std::byte>) override { return calls++; }
  bool test(Request) override { return ++calls > 0; }
  bool cancel(Request) override { return ++calls > 0; }
  int calls = 0;
};

TEST_F(DeviceSpaceTest, NoMessageGoesWithoutTheDevice) {
  CountingLink inner;
  DeviceLink link(gpu_.cuda(), 0, inner);
  EXPECT_EQ(link.index(), 1);
  EXPECT_EQ(link.size(), 3);
  std::byte byte{};
  link.send(0, 0, {&byte, 1});
  link.receive(0, 0, {&byte, 1});
  EXPECT_TRUE(link.test(0));
  EXPECT_EQ(inner.calls, 3);
  gpu_.fail("get_device", 0, cudaErrorLaunchFailure);
  EXPECT_THROW(link.send(0, 0, {&byte, 1}), Error);
  EXPECT_THROW(link.receive(0, 0, {&byte, 1}), Error);
  EXPECT_THROW(link.test(0), Error);
  EXPECT_EQ(inner.calls, 3);
}

TEST_F(DeviceSpaceTest, TheDeviceIsMadeCurrentWhereItIsNot) {
  CountingLink inner;
  CudaFunctions cuda = gpu_.cuda();
  int current = 0;
  cuda.get_device = [&](int* device) {
    *device = current;
    return cudaSuccess;
  };
  cuda.set_device = [&](int device) {
    current = device;
    return cudaSuccess;
  };
  DeviceLink link(cuda, 2, inner);
  EXPECT_TRUE(link.test(0));
  EXPECT_EQ(current, 2) << "and it stays so";
}

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
