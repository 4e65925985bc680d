// Streams and memory: given back once, whatever fails.
//
// The device of a thread while hora works on it, and what that does to the application's captures.
#include "ops/cuda/stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/fake_gpu/fake_gpu.h"
#include "tests/support/seed.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/timeline.h"

namespace hora::internal {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class EventTest : public testing::Test {
 protected:
  ~EventTest() override { EXPECT_THAT(gpu_.violations(), IsEmpty()); }
  test::FakeNcclWorld world_;
  test::FakeGpu gpu_{world_};
};

TEST_F(EventTest, IsDoneWhenTheStreamGetsThereWhoseTimeItsStampsTell) {
  const CudaStream stream(gpu_.cuda(), 0);
  Event first(gpu_.cuda(), TimeStamp::on);
  Event second(gpu_.cuda(), TimeStamp::on);
  first.record(stream.get());
  gpu_.delay(std::chrono::milliseconds(20));
  gpu_.hold();
  second.record(stream.get());
  EXPECT_FALSE(second.query());
  EXPECT_EQ(gpu_.cuda().get_last_error(), cudaSuccess) << "not ready is not left as an error";
  EXPECT_THROW(elapsed(first, second), Error) << "not done yet";
  gpu_.resume();
  second.synchronize();
  EXPECT_TRUE(second.query());
  EXPECT_GE(elapsed(first, second), std::chrono::milliseconds(19));
  EXPECT_EQ(elapsed(second, first), -elapsed(first, second));
  EXPECT_EQ(elapsed(first, first).count(), 0);
}

TEST_F(EventTest, MemoryIsReadyWhenTheStreamsOfInputAndOutputAre) {
  const CudaStream input(gpu_.cuda(), 0);
  const CudaStream output(gpu_.cuda(), 0);
  const CudaStream slow(gpu_.cuda(), 0);
  const CudaStream own(gpu_.cuda(), 0);
  Event written(gpu_.cuda());
  EventPool events(gpu_.cuda());
  for (const CudaStream* const late : {&input, &output}) {
    gpu_.delay(std::chrono::milliseconds(50));
    written.record(slow.get());
    gpu_.delay(std::chrono::microseconds(0));
    wait(late->get(), written);
    StreamOrder order(events, gpu_.index(), input.get(), output.get());
    order.wait_ready(own.get());
    Event after(gpu_.cuda());
    after.record(own.get());
    after.synchronize();
    EXPECT_TRUE(written.query());
  }
}

/// An owner that `make` makes by the call `create`, and that goes by the call `destroy`.
template <class Make>
void expect_given_back_once(const char* create, const char* destroy, const Make& make) {
  SCOPED_TRACE(create);
  test::FakeNcclWorld world;
  test::FakeGpu gpu{world};
  {
    auto first = make(gpu.cuda());
    auto second = std::move(first);
    auto third = make(gpu.cuda());
    EXPECT_EQ(gpu.count(destroy), 0);
    third = std::move(second);
    EXPECT_EQ(gpu.count(destroy), 1);
  }
  EXPECT_EQ(gpu.count(destroy), 2);
  gpu.fail(create, 1, cudaErrorUnknown);
  EXPECT_THROW(make(gpu.cuda()), Error);
  EXPECT_EQ(gpu.count(destroy), 2);
  gpu.fail(destroy, 1, cudaErrorUnknown);
  EXPECT_NO_THROW(make(gpu.cuda()));
  EXPECT_EQ(gpu.live(), test::LiveHandles{});
  EXPECT_EQ(gpu.cuda().get_last_error(), cudaSuccess);
  EXPECT_THAT(gpu.violations(), IsEmpty());
}

TEST(Owners, GiveBackOnceWhateverFails) {
  using Cuda = const CudaFunctions&;
  expect_given_back_once("stream_create", "stream_destroy",
                         [](Cuda cuda) { return CudaStream(cuda, 0); });
  expect_given_back_once("event_create", "event_destroy", [](Cuda cuda) { return Event(cuda); });
  expect_given_back_once("host_alloc", "free_host",
                         [](Cuda cuda) { return PinnedMemory(cuda, 1000); });
  expect_given_back_once("malloc", "free", [](Cuda cuda) { return DeviceMemory(cuda, 1000); });
  expect_given_back_once("mem_pool_create", "mem_pool_destroy",
                         [](Cuda cuda) { return MemoryPool(cuda, 0); });
}

TEST_F(EventTest, LackOfMemoryNamesTheBytes) {
  gpu_.fail("malloc", 1, cudaErrorMemoryAllocation);
  gpu_.fail("host_alloc", 1, cudaErrorMemoryAllocation);
  test::expect_error(ErrorCode::out_of_memory, HasSubstr("cudaMalloc of 12345 bytes"),
                     [&] { DeviceMemory(gpu_.cuda(), 12345); });
  test::expect_error(ErrorCode::out_of_memory, HasSubstr("cudaHostAlloc of 54321 bytes"),
                     [&] { PinnedMemory(gpu_.cuda(), 54321); });
}

class StreamHeapTest : public EventTest {
 protected:
  EventPool events_{gpu_.cuda()};
  CudaStream own_{gpu_.cuda(), 0};
  CudaStream users_{gpu_.cuda(), 0};
  StreamHeap heap_{gpu_.cuda(), 0, events_, own_.get()};
};

TEST_F(StreamHeapTest, CopiesWhatIsLongerThanItsBlock) {
  auto random = test::generator();
  std::vector<std::byte> bytes((std::size_t{9} << 20) + 17);
  std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random()); });
  std::byte* const data = heap_.allocate(bytes.size(), users_.get());
  heap_.to_device(data, bytes.data(), bytes.size(), users_.get());
  std::vector<std::byte> back(bytes.size());
  heap_.to_host(back.data(), data, back.size(), users_.get());
  EXPECT_TRUE(back == bytes);
  heap_.release(data, users_.get());
}

// By the table hora has no other pool.
TEST_F(StreamHeapTest, MemoryGoesInTheOrderOfTheStreamToOnePoolThatKeepsAll) {
  std::byte* const of_user = heap_.allocate(100, users_.get());
  std::byte* const own = heap_.allocate(100, std::nullopt);
  gpu_.hold();
  heap_.release(of_user, users_.get());
  heap_.release(own, std::nullopt);
  EXPECT_EQ(gpu_.live().device, 2) << "both streams have not come so far";
  gpu_.resume();
  gpu_.cuda().stream_synchronize(users_.get());
  gpu_.cuda().stream_synchronize(own_.get());
  EXPECT_EQ(gpu_.live().device, 0);
  EXPECT_THAT(gpu_.pools(),
              ElementsAre(testing::Pair(testing::_, std::numeric_limits<std::uint64_t>::max())));
  EXPECT_EQ(gpu_.count("mem_pool_create"), 1);
  EXPECT_EQ(gpu_.count("mem_pool_trim_to"), 0);
}

TEST_F(StreamHeapTest, WhereMemoryIsLackingTheFrameworkGivesBackItsOwn) {
  static int released = 0;
  released = 0;
  heap_.set_cache_release([] { ++released; });
  gpu_.fail("malloc_from_pool_async", 1, cudaErrorMemoryAllocation);
  std::byte* const data = heap_.allocate(64, std::nullopt);
  EXPECT_NE(data, nullptr);
  EXPECT_EQ(released, 1);
  EXPECT_EQ(gpu_.cuda().get_last_error(), cudaSuccess);
  heap_.release(data, std::nullopt);
  gpu_.fail("malloc_from_pool_async", 0, cudaErrorMemoryAllocation);
  test::expect_error(ErrorCode::out_of_memory, [&] { heap_.allocate(64, std::nullopt); });
  EXPECT_EQ(released, 2);
  EXPECT_EQ(gpu_.cuda().get_last_error(), cudaSuccess);
}

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
  test::FakeGpu gpu_{world_, {.peers = 1}};
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

using namespace std::chrono_literals;
TEST(DeviceClock, FollowsADeviceWhoseClockIsFastOrSlow) {
  // 50 ppm, latency 10 us: the estimate stays within the latency of the truth.
  std::chrono::nanoseconds fast = 0ns, slow = 0ns;
  for (int second = 1; second <= 1000; ++second) {
    fast = host_time(second * 1s, fast, 1s + 50us);
    EXPECT_LE(fast, second * 1s + 10us);
    EXPECT_GE(fast, second * 1s);
    slow = host_time(second * 1s, slow, 1s - 50us);
    EXPECT_EQ(slow, second * 1s);
  }
}

using test::Timeline;

constexpr std::string_view kRow = "GPU: collectives";

double microseconds(TraceTime time) {
  return static_cast<double>(time.count()) / 1000.0;
}

class DeviceTraceTest : public EventTest {
 protected:
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
  CudaStream stream_{gpu_.cuda(), 0};
  DeviceTrace device_{Tracer(&trace_), gpu_.cuda(), 0};
  const test::LiveHandles before_ = gpu_.live();
};
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
