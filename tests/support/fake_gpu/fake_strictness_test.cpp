// The fake GPU and NCCL do as the real ones what a simpler fake would not: current GPUs and
// contexts, memory that work still uses, captures, groups that stay open.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "ops/cuda/stream.h"
#include "tests/support/fake_gpu/nccl_rank.h"

namespace hora::internal::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class FakeStrictnessTest : public testing::Test {
 protected:
  static void on_a_fresh_thread(const std::function<void()>& body) { std::jthread{body}; }

  FakeNcclWorld world_;
  FakeGpu first_{world_};
  FakeGpu second_{world_};
};

TEST_F(FakeStrictnessTest, NearlyEveryCallMakesAContext) {
  on_a_fresh_thread([&] {
    CUcontext context = nullptr;
    int device = -1;
    second_.cuda().ctx_get_current(&context);
    second_.cuda().get_device(&device);
    EXPECT_EQ(context, nullptr);
    EXPECT_EQ(device, 0);
    EXPECT_THAT(second_.contexts(), ElementsAre(1)) << "of NCCL's thread";
    second_.cuda().event_query(nullptr);
    second_.cuda().ctx_get_current(&context);
    EXPECT_NE(context, nullptr);
    EXPECT_THAT(second_.contexts(), ElementsAre(0, 1));
  });
}

TEST_F(FakeStrictnessTest, WhatIsMadeIsOnTheThreadsGpu) {
  on_a_fresh_thread([&] {
    cudaStream_t stream = nullptr;
    cudaEvent_t event = nullptr;
    void* memory = nullptr;
    EXPECT_EQ(second_.cuda().stream_create(&stream, 0, 0), cudaErrorInvalidDevice);
    EXPECT_EQ(second_.cuda().event_create(&event, 0), cudaErrorInvalidDevice);
    EXPECT_EQ(second_.cuda().malloc(&memory, 4), cudaErrorInvalidDevice);
    EXPECT_NE(second_.cuda().stream_synchronize(nullptr), cudaSuccess);
    EXPECT_NE(second_.nccl().mem_alloc(&memory, 4), ncclSuccess);
    EXPECT_EQ(second_.violations().size(), 5U);
    EXPECT_EQ(second_.cuda().set_device(1), cudaSuccess);
    EXPECT_EQ(second_.cuda().stream_create(&stream, 0, 0), cudaSuccess);
    EXPECT_EQ(second_.cuda().set_device(2), cudaErrorInvalidDevice);
  });
}

TEST_F(FakeStrictnessTest, NcclUnmapsUnderWorkThatIsQueued) {
  first_.choose();
  const CudaStream stream(first_.cuda(), 0);
  void* memory = nullptr;
  ASSERT_EQ(first_.nccl().mem_alloc(&memory, 64), ncclSuccess);
  first_.hold();
  first_.cuda().memset_async(memory, 1, 64, stream.get());
  EXPECT_NE(first_.nccl().mem_free(memory), ncclSuccess);
  EXPECT_THAT(first_.violations(), ElementsAre(HasSubstr("unmaps memory")));
  first_.resume();
}

TEST_F(FakeStrictnessTest, MemoryFreedInAnotherStreamsOrderIsSeen) {
  first_.choose();
  const CudaStream stream(first_.cuda(), 0);
  const CudaStream other(first_.cuda(), 0);
  const MemoryPool pool(first_.cuda(), 0);
  void* memory = nullptr;
  ASSERT_EQ(first_.cuda().malloc_from_pool_async(&memory, 64, pool.get(), stream.get()),
            cudaSuccess);
  first_.delay("memset_async", std::chrono::milliseconds(50));
  first_.cuda().memset_async(memory, 1, 64, stream.get());
  first_.cuda().free_async(memory, other.get());
  first_.cuda().stream_synchronize(stream.get());
  EXPECT_THAT(first_.violations(), ElementsAre(HasSubstr("cudaFreeAsync of memory")));
}

TEST_F(FakeStrictnessTest, AQueryOnAnyThreadEndsAGlobalCapture) {
  first_.choose();
  const CudaStream stream(first_.cuda(), 0);
  const Event event(first_.cuda());
  for (const auto mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                          cudaStreamCaptureModeRelaxed}) {
    ASSERT_EQ(first_.begin_capture(stream.get(), mode), cudaSuccess);
    const bool global = mode == cudaStreamCaptureModeGlobal;
    on_a_fresh_thread([&] {
      EXPECT_EQ(first_.cuda().event_query(event.get()),
                global ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
    });
    EXPECT_EQ(first_.end_capture(stream.get()),
              global ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
  }
  ASSERT_EQ(first_.begin_capture(stream.get()), cudaSuccess);
  on_a_fresh_thread([&] {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    EXPECT_EQ(first_.cuda().thread_exchange_stream_capture_mode(&mode), cudaSuccess);
    EXPECT_EQ(mode, cudaStreamCaptureModeGlobal) << "the former one";
    EXPECT_EQ(first_.cuda().event_query(event.get()), cudaSuccess);
  });
  EXPECT_EQ(first_.end_capture(stream.get()), cudaSuccess);
}

TEST_F(FakeStrictnessTest, ACapturedStreamRunsNothing) {
  first_.choose();
  const CudaStream stream(first_.cuda(), 0);
  const CudaStream other(first_.cuda(), 0);
  const DeviceMemory memory(first_.cuda(), 64);
  Event event(first_.cuda());
  const auto expect_end = [&](cudaError_t result) {
    EXPECT_EQ(first_.end_capture(stream.get()), result);
    event.record(other.get());  // of no capture from here on
    ASSERT_EQ(first_.begin_capture(stream.get()), cudaSuccess);
  };
  ASSERT_EQ(first_.begin_capture(stream.get()), cudaSuccess);
  first_.cuda().memset_async(memory.data(), 1, 64, stream.get());
  EXPECT_EQ(memory.data()[0], std::byte{0xcb});
  expect_end(cudaSuccess);
  event.record(stream.get());
  EXPECT_EQ(first_.cuda().stream_wait_event(other.get(), event.get(), 0), cudaSuccess);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  EXPECT_EQ(first_.cuda().stream_is_capturing(other.get(), &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive) << "it has joined";
  expect_end(cudaErrorStreamCaptureUnjoined);
  EXPECT_EQ(first_.cuda().stream_wait_event(stream.get(), event.get(), 0),
            cudaErrorStreamCaptureIsolation);
  expect_end(cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(first_.cuda().stream_synchronize(stream.get()), cudaErrorStreamCaptureUnsupported);
  expect_end(cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(first_.cuda().device_synchronize(), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(first_.end_capture(stream.get()), cudaErrorStreamCaptureInvalidated);
}

TEST_F(FakeStrictnessTest, AnAbortInAnOpenGroupIsOnlyQueued) {
  Ranks ranks(1);
  NcclRank rank(ranks, 0);
  ASSERT_EQ(rank.nccl.group_start(), ncclSuccess);
  rank.communicator.abort();
  EXPECT_EQ(rank.gpu.live().communicators, 1);
  ASSERT_EQ(rank.nccl.group_end(), ncclSuccess);
  EXPECT_EQ(rank.gpu.live().communicators, 0);
}

TEST_F(FakeStrictnessTest, RegistrationsAreReadUntilACallIsTakenIn) {
  Ranks ranks(2);
  ranks.run([&](int number) {
    NcclRank rank(ranks, number);
    RegisteredMemory memory(rank.nccl, rank.communicator, 64);
    rank.gpu.hold_launches();
    rank.all_reduce(1);
    memory.deregister();
    EXPECT_THAT(rank.gpu.violations(), ElementsAre(HasSubstr("registration was changed")));
    rank.gpu.resume_launches();
    rank.finish();
    rank.communicator.close(far_away());
  });
}

}  // namespace
}  // namespace hora::internal::test
