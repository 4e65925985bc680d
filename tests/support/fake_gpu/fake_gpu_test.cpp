// The fake GPU does as a real one what a simpler fake would not: current GPUs and contexts, memory
// that work still uses, captures, and what is not its own.
#include "tests/support/fake_gpu/fake_gpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

#include "ops/cuda/stream.h"

namespace hora::internal::test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

constexpr std::size_t kBytes = 64;

class FakeGpuTest : public testing::Test {
 protected:
  FakeGpuTest() { first_.choose(); }
  static void on_a_fresh_thread(const std::function<void()>& body) { std::jthread{body}; }

  FakeNcclWorld world_;
  FakeGpu first_{world_};
  FakeGpu second_{world_};
  const CudaFunctions& cuda_ = first_.cuda();
};

TEST_F(FakeGpuTest, WaitingIsForTheRecordAtTheTimeOfTheCall) {
  const CudaStream stream(cuda_, 0);
  const CudaStream stuck(cuda_, 0);
  Event event(cuda_);
  wait(stream.get(), event);  // never recorded: nothing to wait for
  event.record(stream.get());
  wait(stream.get(), event);
  first_.delay(std::chrono::milliseconds(200));
  event.record(stuck.get());  // the stream does not wait for this one
  EXPECT_EQ(cuda_.stream_synchronize(stream.get()), cudaSuccess);
  EXPECT_FALSE(event.query());
}

TEST_F(FakeGpuTest, FindsWhatIsNotItsOwn) {
  second_.choose();
  const CudaStream foreign(second_.cuda(), 0);
  first_.choose();
  const CudaStream stream(cuda_, 0);
  const DeviceMemory memory(cuda_, kBytes);
  const PinnedMemory host(cuda_, kBytes);
  std::byte pageable[kBytes];
  cudaEvent_t stale = Event(cuda_).get();
  const auto copy = [&](void* target, const void* source, cudaMemcpyKind kind) {
    return cuda_.memcpy_async(target, source, kBytes, kind, stream.get());
  };
  const std::vector<CopyPiece> pieces = {{nullptr, memory.data() + 4, kBytes / sizeof(float)}};
  const std::vector of_memory = {copy(memory.data() + 1, host.data(), cudaMemcpyHostToDevice),
                                 copy(memory.data(), pageable, cudaMemcpyHostToDevice),
                                 copy(memory.data(), host.data(), cudaMemcpyDeviceToHost),
                                 cuda_.memset_async(host.data(), 0, kBytes, stream.get()),
                                 cuda_.batched_copy({pieces}, stream.get())};
  EXPECT_THAT(of_memory, Each(cudaErrorInvalidValue));
  const std::vector of_handles = {cuda_.stream_synchronize(foreign.get()), cuda_.event_query(stale),
                                  cuda_.event_destroy(stale)};
  EXPECT_THAT(of_handles, Each(cudaErrorInvalidResourceHandle));
  EXPECT_THAT(first_.violations(), SizeIs(of_memory.size() + of_handles.size()));
}

TEST_F(FakeGpuTest, NearlyEveryCallMakesAContext) {
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

TEST_F(FakeGpuTest, WhatIsMadeIsOnTheThreadsGpu) {
  on_a_fresh_thread([&] {
    const CudaFunctions& cuda = second_.cuda();
    cudaStream_t stream = nullptr;
    cudaEvent_t event = nullptr;
    void* memory = nullptr;
    EXPECT_THAT((std::vector{cuda.stream_create(&stream, 0, 0), cuda.event_create(&event, 0),
                             cuda.malloc(&memory, 4)}),
                Each(cudaErrorInvalidDevice));
    EXPECT_NE(cuda.stream_synchronize(nullptr), cudaSuccess);
    EXPECT_NE(second_.nccl().mem_alloc(&memory, 4), ncclSuccess);
    EXPECT_THAT(second_.violations(), SizeIs(5));
    EXPECT_EQ(cuda.set_device(2), cudaErrorInvalidDevice);
  });
}

TEST_F(FakeGpuTest, MemoryFreedUnderWorkIsSeen) {
  const CudaStream stream(cuda_, 0);
  const CudaStream other(cuda_, 0);
  const MemoryPool pool(cuda_, 0);
  void* mapped = nullptr;
  void* pooled = nullptr;
  ASSERT_EQ(first_.nccl().mem_alloc(&mapped, kBytes), ncclSuccess);
  ASSERT_EQ(cuda_.malloc_from_pool_async(&pooled, kBytes, pool.get(), stream.get()), cudaSuccess);
  first_.delay(std::chrono::milliseconds(50));
  for (void* const memory : {mapped, pooled}) cuda_.memset_async(memory, 1, kBytes, stream.get());
  first_.delay(std::chrono::milliseconds(0));
  cuda_.free_async(pooled, other.get());  // in another stream's order
  cuda_.stream_synchronize(other.get());
  EXPECT_NE(first_.nccl().mem_free(mapped), ncclSuccess);
  EXPECT_THAT(first_.violations(),
              ElementsAre(HasSubstr("cudaFreeAsync of memory"), HasSubstr("unmaps memory")));
}

TEST_F(FakeGpuTest, AQueryOnAnyThreadEndsAGlobalCapture) {
  const CudaStream stream(cuda_, 0);
  const Event event(cuda_);
  using Modes = std::pair<cudaStreamCaptureMode, cudaStreamCaptureMode>;
  constexpr auto kGlobal = cudaStreamCaptureModeGlobal;
  for (const auto& [mode, of_thread] :
       {Modes(kGlobal, kGlobal), Modes(kGlobal, cudaStreamCaptureModeRelaxed),
        Modes(cudaStreamCaptureModeThreadLocal, kGlobal),
        Modes(cudaStreamCaptureModeRelaxed, kGlobal)}) {
    ASSERT_EQ(first_.begin_capture(stream.get(), mode), cudaSuccess);
    const bool ends = mode == kGlobal && of_thread == kGlobal;
    on_a_fresh_thread([&, own = of_thread]() mutable {
      EXPECT_EQ(cuda_.thread_exchange_stream_capture_mode(&own), cudaSuccess);
      EXPECT_EQ(own, kGlobal) << "the former one";
      EXPECT_EQ(cuda_.event_query(event.get()),
                ends ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
    });
    EXPECT_EQ(first_.end_capture(stream.get()),
              ends ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
  }
}

TEST_F(FakeGpuTest, ACapturedStreamRunsNothing) {
  const CudaStream stream(cuda_, 0);
  const CudaStream other(cuda_, 0);
  const DeviceMemory memory(cuda_, kBytes);
  Event event(cuda_);
  const auto expect_end = [&](cudaError_t result, const std::function<void()>& body) {
    ASSERT_EQ(first_.begin_capture(stream.get()), cudaSuccess);
    body();
    EXPECT_EQ(first_.end_capture(stream.get()), result);
    event.record(other.get());  // of no capture from here on
  };
  expect_end(cudaSuccess, [&] { cuda_.memset_async(memory.data(), 1, kBytes, stream.get()); });
  EXPECT_EQ(cuda_.stream_synchronize(stream.get()), cudaSuccess);
  EXPECT_EQ(memory.data()[0], std::byte{0xcb});
  expect_end(cudaErrorStreamCaptureUnjoined, [&] {
    event.record(stream.get());
    EXPECT_EQ(cuda_.stream_wait_event(other.get(), event.get(), 0), cudaSuccess);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    EXPECT_EQ(cuda_.stream_is_capturing(other.get(), &status), cudaSuccess);
    EXPECT_EQ(status, cudaStreamCaptureStatusActive) << "it has joined";
  });
  expect_end(cudaErrorStreamCaptureInvalidated, [&] {
    EXPECT_EQ(cuda_.stream_wait_event(stream.get(), event.get(), 0),
              cudaErrorStreamCaptureIsolation);
  });
  expect_end(cudaErrorStreamCaptureInvalidated, [&] {
    EXPECT_EQ(cuda_.stream_synchronize(stream.get()), cudaErrorStreamCaptureUnsupported);
  });
  expect_end(cudaErrorStreamCaptureInvalidated,
             [&] { EXPECT_EQ(cuda_.device_synchronize(), cudaErrorStreamCaptureUnsupported); });
}

}  // namespace
}  // namespace hora::internal::test
