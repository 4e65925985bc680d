#include "ops/nccl/device_space.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <cstring>
#include <random>

#include "ops/local/kernels.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_gpu/fake_gpu.h"
#include "tests/support/reference/elements.h"
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
  bool withdraw(Request) override { return ++calls > 0; }
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

}  // namespace
}  // namespace hora::internal
