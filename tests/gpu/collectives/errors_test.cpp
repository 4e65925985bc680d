// Misuse of a GPU's memory, and what ranks disagree about.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/hora.h>

#include <functional>
#include <string>

#include "tests/gpu/collectives/device_array.h"
#include "tests/gpu/collectives/values.h"
#include "tests/gpu/require_gpu.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;

class GpuErrors : public GpuTest {
 protected:
  /// Collective: after an error the next collective is right.
  static void expect_works(const Context& world) {
    const DeviceArray array(DataType::int32, random_values(DataType::int32, 100, 0));
    Bytes expected = random_values(DataType::int32, 100, 0);
    allreduce(world, {expected.data(), DataType::int32, {100}, {}, nullptr},
              {.name = "next.cpu", .op = ReduceOp::sum});
    allreduce(world, array.view(world.device()), {.name = "next.gpu", .op = ReduceOp::sum});
    EXPECT_EQ(array.read(nullptr), expected);
  }
};

TEST_F(GpuErrors, AnotherRanksDeviceIsRefused) {
  const Context world = init();
  const DeviceArray array(DataType::float32, 100);
  for (const int index : {-1, world.device().index + 1, 99}) {
    const Device wrong{DeviceKind::cuda, index};
    const std::string name = "cuda:" + std::to_string(index);
    expect_error(ErrorCode::invalid_argument, HasSubstr(name),
                 [&] { allreduce(world, array.view(wrong), {.name = "x"}); });
    expect_error(ErrorCode::invalid_argument, HasSubstr(name),
                 [&] { const Buffer buffer(world, 100, wrong); });
  }
  expect_works(world);
}

TEST_F(GpuErrors, RanksThatDisagreeAllGetTheError) {
  const Context world = init();
  if (world.size() == 1) GTEST_SKIP() << "one rank cannot disagree with itself";
  const bool odd = world.rank() == world.size() - 1;
  const DeviceArray array(DataType::float32, 100);
  const DeviceArray longer(DataType::float32, 101);
  expect_error(ErrorCode::mismatch, HasSubstr("shape"), [&] {
    allreduce(world, (odd ? longer : array).view(world.device()), {.name = "shape"});
  });
  std::vector<float> on_host(100);
  expect_error(ErrorCode::mismatch, HasSubstr("device"), [&] {
    const TensorView here = odd ? view(on_host.data(), 100) : array.view(world.device());
    allreduce(world, here, {.name = "device"});
  });
  expect_works(world);
}

TEST_F(GpuErrors, IntegersHaveNoAverage) {
  const Context world = init();
  const DeviceArray array(DataType::int32, 100);
  expect_error(ErrorCode::invalid_argument, HasSubstr("average"),
               [&] { allreduce(world, array.view(world.device()), {.name = "x"}); });
  expect_works(world);
}

TEST_F(GpuErrors, MoreMemoryThanThereIs) {
  const Context world = init();
  expect_error(ErrorCode::out_of_memory,
               [&] { const Buffer buffer(world, std::size_t{1} << 45, world.device()); });
  expect_works(world);
}

TEST_F(GpuErrors, AContextMayCloseAndOpenAgain) {
  for (int round = 0; round < 3; ++round) {
    Context world = init();
    expect_works(world);
    world.shutdown();
  }
}

}  // namespace
}  // namespace hora::internal::test
