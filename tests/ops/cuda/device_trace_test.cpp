// A device's part of a timeline, on a fake GPU.
#include "ops/cuda/device_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/fake_gpu/fake_gpu.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/timeline.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;

TEST(DeviceClock, AStampIsNeverEarlierThanTheCall) {
  EXPECT_EQ(host_time(2000us, 1000us, 900us), 2000us) << "the former estimate was 100 us early";
}

TEST(DeviceClock, ASlowCallShiftsTheTimelineByNoMoreThanClocksDrift) {
  // The device came to the reference 5 ms after the call.
  EXPECT_EQ(host_time(2s, 1s, 1s + 5ms), 2s + 5ms - 100'500ns);
}

TEST(DeviceClock, FollowsADeviceWhoseClockIsFast) {
  // 50 ppm fast, latency 10 us: the estimate stays within the latency of the truth.
  std::chrono::nanoseconds host = 0ns;
  for (int second = 1; second <= 1000; ++second) {
    const std::chrono::nanoseconds stamped = second * 1s + 10us;
    const std::chrono::nanoseconds distance = 1s + 50us;
    host = host_time(second * 1s, host, distance);
    EXPECT_LE(host, stamped);
    EXPECT_GE(host, stamped - 10us);
  }
}

TEST(DeviceClock, FollowsADeviceWhoseClockIsSlow) {
  std::chrono::nanoseconds host = 0ns;
  for (int second = 1; second <= 1000; ++second) {
    host = host_time(second * 1s, host, 1s - 50us);
    EXPECT_EQ(host, second * 1s);
  }
}

using test::Timeline;
using testing::IsEmpty;
using testing::SizeIs;

constexpr std::string_view kRow = "GPU: collectives";

double microseconds(TraceTime time) {
  return static_cast<double>(time.count()) / 1000.0;
}

class DeviceTraceTest : public testing::Test {
 protected:
  ~DeviceTraceTest() override { EXPECT_THAT(gpu_.violations(), IsEmpty()); }
  void start() { trace_.start(file_, {0, 1, 0, "h"}); }
  Timeline stop() {
    trace_.stop();
    return Timeline(file_);
  }
  void run(const char* phase) { device_.begin(stream_.get(), {kRow, phase, {.number = 7}, 64}); }
  void end() { device_.end(stream_.get()); }

  test::TemporaryFolder folder_;
  std::string file_ = folder_.file("t.json");
  Trace trace_{{.write_interval = 1h, .source_limit = 50ms}};
  test::FakeNcclWorld world_;
  test::FakeGpu gpu_{world_};
  CudaStream stream_{gpu_.cuda(), 0};
  DeviceTrace device_{Tracer(&trace_), gpu_.cuda(), 0};
  const test::LiveHandles before_ = gpu_.live();
};

TEST_F(DeviceTraceTest, OffNothingIsMade) {
  run("pack");
  end();
  EXPECT_EQ(gpu_.timing_events(), 0);
  EXPECT_EQ(gpu_.count("event_record"), 0);
  EXPECT_EQ(gpu_.live(), before_);
}

TEST_F(DeviceTraceTest, ShowsWhenTheDeviceWorked) {
  start();
  const TraceTime started = trace_now();
  run("warm");
  end();
  while (device_.collect()) {
  }
  // By so much the reference's stamp may be later than its call, and all times early.
  const TraceTime latency = trace_now() - started;
  gpu_.hold();
  run("pack");
  run("reduce_scatter");
  end();
  EXPECT_TRUE(device_.collect());
  const TraceTime resumed = trace_now();
  gpu_.resume();
  const Timeline timeline = stop();
  const double stopped = microseconds(trace_now());
  auto spans = timeline.spans(std::string(kRow));
  ASSERT_THAT(spans, SizeIs(3));
  spans.erase(spans.begin());
  EXPECT_EQ(spans[0].name, "pack");
  EXPECT_EQ(spans[1].name, "reduce_scatter");
  EXPECT_NEAR(spans[0].end, spans[1].begin, test::kTimelineRounding) << "one event for both";
  for (const auto& span : spans) {
    EXPECT_EQ(span.args.at("unit"), 7);
    EXPECT_EQ(span.args.at("bytes"), 64);
  }
  constexpr double kFloat = 1.0;  // cudaEventElapsedTime's rounding, generously
  EXPECT_GE(spans[0].begin + kFloat, microseconds(resumed - latency));
  EXPECT_LE(spans[1].end, stopped);
  EXPECT_EQ(timeline.dropped(), 0u);
}

TEST_F(DeviceTraceTest, LengthsAreTheDevices) {
  gpu_.delay("memset_async", 20ms);
  test::FakeGpu& gpu = gpu_;
  void* memory = nullptr;
  ASSERT_EQ(gpu.cuda().malloc(&memory, 64), cudaSuccess);
  start();
  run("pack");
  ASSERT_EQ(gpu.cuda().memset_async(memory, 0, 64, stream_.get()), cudaSuccess);
  end();
  const auto spans = stop().spans(std::string(kRow));
  ASSERT_THAT(spans, SizeIs(1));
  EXPECT_GE(spans[0].end - spans[0].begin, 20'000 - 1);
  ASSERT_EQ(gpu.cuda().free(memory), cudaSuccess);
}

TEST_F(DeviceTraceTest, StreamsHavePhasesOfTheirOwn) {
  const CudaStream other(gpu_.cuda(), 0);
  start();
  run("pack");
  device_.begin(other.get(), {"GPU: upload", "upload", {7}, 1});
  end();
  device_.end(other.get());
  const Timeline timeline = stop();
  EXPECT_THAT(timeline.spans(std::string(kRow)), SizeIs(1));
  EXPECT_THAT(timeline.spans("GPU: upload"), SizeIs(1));
}

TEST_F(DeviceTraceTest, AllIsGivenBackAtStopAndMadeAnewAtStart) {
  for (int round = 1; round <= 3; ++round) {
    start();
    run("pack");
    EXPECT_NE(gpu_.live(), before_);
    end();
    EXPECT_THAT(stop().spans(std::string(kRow)), SizeIs(1));
    EXPECT_EQ(gpu_.live(), before_);
  }
  EXPECT_EQ(gpu_.count("event_synchronize") + gpu_.count("stream_synchronize"), 0);
}

TEST_F(DeviceTraceTest, ADeviceThatIsStuckIsLeftOutAndCounted) {
  start();
  gpu_.hold();
  run("pack");
  run("reduce_scatter");
  const Timeline timeline = stop();
  EXPECT_THAT(timeline.spans(""), IsEmpty());
  EXPECT_EQ(timeline.dropped(), 2u);
  EXPECT_EQ(gpu_.live().events, before_.events);
  gpu_.resume();
}

TEST_F(DeviceTraceTest, StoppedBetweenBeginAndEndNothingRemains) {
  start();
  run("pack");
  stop();
  end();
  EXPECT_EQ(gpu_.live(), before_);
  start();
  end();
  run("unpack");
  end();
  EXPECT_THAT(stop().spans(std::string(kRow)), SizeIs(1));
}

TEST_F(DeviceTraceTest, ItsFailuresEndNothingElse) {
  for (const char* call : {"event_create", "event_record", "event_elapsed_time", "event_query"}) {
    start();
    gpu_.fail(call, 1, cudaErrorUnknown);
    run("pack");
    end();
    run("unpack");
    end();
    Tracer(&trace_).marked("a", "x");
    const Timeline timeline = stop();
    EXPECT_THAT(timeline.marks("a"), SizeIs(1)) << call;
    EXPECT_LT(timeline.spans(std::string(kRow)).size(), 2u) << call;
    EXPECT_EQ(gpu_.live(), before_) << call;
    EXPECT_EQ(gpu_.cuda().get_last_error(), cudaSuccess) << call;
  }
}

}  // namespace

}  // namespace hora::internal
