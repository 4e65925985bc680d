// How long a buffer on a GPU lives, what a thread may rely on after synchronize(), and captures of
// the program beside collectives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <thread>

#include "tests/ops/nccl/gpu_world.h"
#include "tests/support/expect_error.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using test::DeviceTensor;
using test::GpuWorld;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::size_t kBytes = 4096;

Settings quiet(std::chrono::milliseconds timeout) {
  Settings settings;
  settings.device_timeout = timeout;
  settings.log_level = LogLevel::off;
  return settings;
}

class GpuLifetime : public testing::Test {
 protected:
  explicit GpuLifetime(std::chrono::milliseconds timeout = 60s)
      : world_({.node_sizes = {2}, .settings = quiet(timeout), .gpu = {}}) {
    for (int rank = 0; rank < 2; ++rank) {
      tensors_.push_back(std::make_unique<DeviceTensor>(world_.gpu(rank), DataType::float32,
                                                        std::vector<std::byte>(kBytes)));
      tensors_.back()->read();
    }
  }
  DeviceTensor& tensor(int rank) { return *tensors_[static_cast<std::size_t>(rank)]; }
  std::shared_ptr<Operation> submit(int rank, const char* name = "x") {
    return world_.engine(rank).submit(
        name, tensor(rank).signature(OperationKind::allreduce, ReduceOp::sum), tensor(rank).data(),
        tensor(rank).stream());
  }
  void expect_freed() {
    tensors_.clear();
    world_.end();
    EXPECT_THAT(world_.complaints(), IsEmpty());
    EXPECT_THAT(world_.ranks_with_leftovers(), IsEmpty());
  }

  GpuWorld world_;
  std::vector<std::unique_ptr<DeviceTensor>> tensors_;
};

TEST_F(GpuLifetime, ABufferIsFreedWhenNoStreamUsesItAnyMore) {
  const CudaFunctions& cuda = world_.gpu(0).cuda();
  for (int round = 0; round < 3; ++round) {
    std::byte* const buffer = world_.engine(0).allocate_on_device(kBytes);
    world_.gpu(0).delay("memset_async", 30ms);
    ASSERT_EQ(cuda.memset_async(buffer, 1, kBytes, static_cast<cudaStream_t>(tensor(0).stream())),
              cudaSuccess);
    world_.engine(0).release_on_device(buffer);
  }
  EXPECT_EQ(world_.gpu(0).nccl_count("mem_free"), 3);
  EXPECT_EQ(world_.gpu(0).nccl_count("comm_deregister"), 3);
  expect_freed();
}

TEST_F(GpuLifetime, NothingIsDeregisteredWhileACallIsTakenIn) {
  std::byte* const buffer = world_.engine(0).allocate_on_device(kBytes);
  world_.gpu(0).hold_launches();
  auto first = submit(0);
  auto second = submit(1);
  while (world_.gpu(0).nccl_count("all_reduce") == 0) std::this_thread::sleep_for(1ms);
  std::jthread releasing([&] { world_.engine(0).release_on_device(buffer); });
  std::this_thread::sleep_for(30ms);
  EXPECT_EQ(world_.gpu(0).nccl_count("comm_deregister"), 0);
  world_.gpu(0).resume_launches();
  world_.engine(0).wait(*first);
  world_.engine(1).wait(*second);
  first = second = nullptr;
  releasing.join();
  EXPECT_EQ(world_.gpu(0).nccl_count("comm_deregister"), 1);
  expect_freed();
}

TEST_F(GpuLifetime, ProgressGoesOnWhileABufferWaits) {
  std::byte* const buffer = world_.engine(0).allocate_on_device(kBytes);
  world_.gpu(1).hold();  // rank 0's collective waits for rank 1's GPU
  auto first = submit(0);
  auto second = submit(1);
  world_.engine(0).wait(*first);
  std::jthread releasing([&] { world_.engine(0).release_on_device(buffer); });
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(world_.gpu(0).nccl_count("mem_free"), 0);
  auto third = submit(0, "y");  // and takes part in others meanwhile
  auto fourth = submit(1, "y");
  world_.engine(0).wait(*third);
  world_.gpu(1).resume();
  world_.engine(1).wait(*second);
  world_.engine(1).wait(*fourth);
  first = second = third = fourth = nullptr;
  releasing.join();
  EXPECT_EQ(world_.gpu(0).nccl_count("mem_free"), 1);
  expect_freed();
}

TEST_F(GpuLifetime, AfterAFailureABufferStaysAsPeersMayWriteToIt) {
  std::byte* const buffer = world_.engine(0).allocate_on_device(kBytes);
  world_.gpu(0).async_error(ncclRemoteError);
  const auto first = submit(0);
  const auto second = submit(1);
  while (!world_.engine(0).aborted()) std::this_thread::sleep_for(1ms);
  world_.engine(0).release_on_device(buffer);
  tensors_.clear();
  world_.end();
  EXPECT_EQ(world_.gpu(0).nccl_count("mem_free"), 0);
  EXPECT_THAT(world_.complaints(), IsEmpty());
}

TEST_F(GpuLifetime, ACaptureOfTheProgramsGoesOnBesideCollectives) {
  const DeviceGuard device(world_.gpu(0).cuda(), 0);
  const CudaStream captured(world_.gpu(0).cuda(), 0);
  ASSERT_EQ(world_.gpu(0).begin_capture(captured.get()), cudaSuccess);
  for (int round = 0; round < 5; ++round) {
    world_.on_all_ranks([&](int rank) { world_.engine(rank).wait(*submit(rank)); });
  }
  const auto deadline = std::chrono::steady_clock::now() + 100ms;
  while (std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(world_.gpu(0).end_capture(captured.get()), cudaSuccess);
}

TEST_F(GpuLifetime, ACollectiveIsNoPartOfACapture) {
  auto* const stream = static_cast<cudaStream_t>(tensor(0).stream());
  ASSERT_EQ(world_.gpu(0).begin_capture(stream), cudaSuccess);
  test::expect_error(ErrorCode::invalid_use, HasSubstr("end the capture"), [&] { submit(0); });
  EXPECT_EQ(world_.gpu(0).end_capture(stream), cudaSuccess);
  world_.on_all_ranks([&](int rank) { world_.engine(rank).wait(*submit(rank)); });
  expect_freed();
}

class GpuAbort : public GpuLifetime {
 protected:
  GpuAbort() : GpuLifetime(300ms) {}
};

TEST_F(GpuAbort, SynchronizeThrowsWhereTheResultIsUndefined) {
  world_.gpu(1).hold();
  world_.on_all_ranks([&](int rank) {
    const auto submission = submit(rank);
    if (rank == 1) return;
    test::expect_error(ErrorCode::transport, HasSubstr("no progress"),
                       [&] { world_.engine(0).synchronize(*submission); });
  });
  world_.gpu(1).resume();
}

TEST_F(GpuAbort, WhereAPeerIsGoneABufferDoesNotWaitForEver) {
  std::byte* const buffer = world_.engine(0).allocate_on_device(kBytes);
  world_.gpu(1).hold();
  world_.on_all_ranks([&](int rank) {
    const auto submission = submit(rank);
    if (rank == 1) return;
    world_.engine(0).wait(*submission);
    const auto begin = std::chrono::steady_clock::now();
    world_.engine(0).release_on_device(buffer);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
  });
  EXPECT_EQ(world_.gpu(0).nccl_count("mem_free"), 0);
  world_.gpu(1).resume();
}

}  // namespace
}  // namespace hora::internal
