// The device of a thread while hora works on it, and what that does to the application's captures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <functional>
#include <thread>

#include "ops/cuda/stream.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_gpu/fake_gpu.h"

namespace hora::internal {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// This process works on GPU 1, and sees GPUs 0 and 2, too.
class DeviceGuardTest : public testing::Test {
 protected:
  DeviceGuardTest() { gpu_.choose(); }
  ~DeviceGuardTest() override { EXPECT_THAT(gpu_.violations(), IsEmpty()); }
  static void on_a_fresh_thread(const std::function<void()>& body) { std::jthread{body}; }
  int current() {
    int device = -1;
    gpu_.cuda().get_device(&device);
    return device;
  }

  test::FakeNcclWorld world_;
  test::FakeGpu first_{world_};
  test::FakeGpu gpu_{world_, {.peers = {{.bus_id = "0000:77:00.0"}}}};
  const CudaFunctions& cuda_ = gpu_.cuda();
};

TEST_F(DeviceGuardTest, AThreadWithoutADeviceMakesNoContextOnTheFirst) {
  on_a_fresh_thread([&] {
    {
      const DeviceGuard guard(cuda_, 1);
      EXPECT_EQ(current(), 1);
    }
    EXPECT_EQ(current(), 1) << "it keeps the device";
    const Event event(cuda_);
    EXPECT_TRUE(event.query());
  });
  EXPECT_THAT(gpu_.contexts(), ElementsAre(1));
}

TEST_F(DeviceGuardTest, AThreadsOwnDeviceIsRestored) {
  on_a_fresh_thread([&] {
    ASSERT_EQ(cuda_.set_device(2), cudaSuccess);
    {
      const DeviceGuard guard(cuda_, 1);
      EXPECT_EQ(current(), 1);
    }
    EXPECT_EQ(current(), 2);
  });
}

TEST_F(DeviceGuardTest, FailuresAreThrownAndLeaveTheThreadsDevice) {
  for (const char* call :
       {"ctx_get_current", "get_device", "set_device", "thread_exchange_stream_capture_mode"}) {
    on_a_fresh_thread([&] {
      ASSERT_EQ(cuda_.set_device(2), cudaSuccess);
      gpu_.fail(call, 1, cudaErrorUnknown);
      EXPECT_THROW(DeviceGuard(cuda_, 1), Error) << call;
      EXPECT_EQ(current(), 2) << call;
    });
  }
}

TEST_F(DeviceGuardTest, QueriesLeaveTheApplicationsCapturesAsTheyAre) {
  const CudaStream stream(cuda_, 0);
  const Event event(cuda_);
  ASSERT_EQ(gpu_.begin_capture(stream.get()), cudaSuccess);
  on_a_fresh_thread([&] {
    {
      const DeviceGuard guard(cuda_, 1);
      EXPECT_TRUE(event.query());
    }
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    cuda_.thread_exchange_stream_capture_mode(&mode);
    EXPECT_EQ(mode, cudaStreamCaptureModeGlobal) << "the thread's own mode is restored";
  });
  EXPECT_EQ(gpu_.end_capture(stream.get()), cudaSuccess);
}

TEST_F(DeviceGuardTest, TheDefaultStreamIsTheTensorsDevices) {
  EventPool events(cuda_);
  on_a_fresh_thread([&] {
    ASSERT_EQ(cuda_.set_device(2), cudaSuccess);
    StreamOrder order(events, 1, nullptr);
    {
      const DeviceGuard guard(cuda_, 1);
      order.record_done(nullptr);
    }
    order.wait_done(nullptr);
    order.synchronize();
    EXPECT_EQ(current(), 2);
  });
}

TEST_F(DeviceGuardTest, CapturedStreamsAreRefusedAndStayValid) {
  const CudaStream stream(cuda_, 0);
  const CudaStream other(cuda_, 0);
  EventPool events(cuda_);
  StreamOrder order(events, 1, other.get());
  order.record_done(other.get());
  ASSERT_EQ(gpu_.begin_capture(stream.get()), cudaSuccess);
  const auto expect_refusal = [](const std::function<void()>& call) {
    test::expect_error(ErrorCode::invalid_use, HasSubstr("CUDA graph is being captured"), call);
  };
  expect_refusal([&] { StreamOrder(events, 1, stream.get()); });
  expect_refusal([&] { StreamOrder(events, 1, other.get(), stream.get()); });
  expect_refusal([&] { order.wait_done(stream.get()); });
  EXPECT_EQ(gpu_.end_capture(stream.get()), cudaSuccess);
  order.wait_done(stream.get());
}

TEST_F(DeviceGuardTest, BesideACaptureTheLegacyStreamIsRefusedToo) {
  gpu_.fail("stream_is_capturing", 1, cudaErrorStreamCaptureImplicit);
  test::expect_error(ErrorCode::invalid_use, HasSubstr("CUDA graph"),
                     [&] { refuse_capture(cuda_, nullptr, "a collective"); });
  EXPECT_EQ(cuda_.get_last_error(), cudaSuccess);
}

}  // namespace
}  // namespace hora::internal
