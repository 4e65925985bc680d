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
#include <set>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/fake_gpu/fake_gpu.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

class EventTest : public testing::Test {
 protected:
  test::FakeNcclWorld world_;
  test::FakeGpu gpu_{world_};
};

TEST_F(EventTest, AnEventThatWasNeverRecordedIsDone) {
  const Event event(gpu_.cuda());
  EXPECT_TRUE(event.query());
  event.synchronize();
}

TEST_F(EventTest, IsDoneWhenTheStreamGetsThere) {
  const CudaStream stream(gpu_.cuda(), 0);
  Event event(gpu_.cuda());
  gpu_.hold();
  event.record(stream.get());
  EXPECT_FALSE(event.query());
  EXPECT_EQ(gpu_.cuda().get_last_error(), cudaSuccess) << "not ready is not left as an error";
  gpu_.resume();
  event.synchronize();
  EXPECT_TRUE(event.query());
}

TEST_F(EventTest, AnotherStreamWaitsWithoutTheHost) {
  const CudaStream first(gpu_.cuda(), 0);
  const CudaStream second(gpu_.cuda(), 0);
  Event before(gpu_.cuda());
  Event after(gpu_.cuda());
  gpu_.delay("event_record", std::chrono::milliseconds(20));
  before.record(first.get());
  wait(second.get(), before);
  after.record(second.get());
  EXPECT_FALSE(after.query());
  after.synchronize();
  EXPECT_TRUE(before.query());
  EXPECT_EQ(gpu_.count("stream_synchronize"), 0);
}

TEST_F(EventTest, MemoryIsReadyWhenTheStreamsOfInputAndOutputAre) {
  const CudaStream input(gpu_.cuda(), 0);
  const CudaStream output(gpu_.cuda(), 0);
  const CudaStream slow(gpu_.cuda(), 0);
  const CudaStream own(gpu_.cuda(), 0);
  Event written(gpu_.cuda());
  EventPool events(gpu_.cuda());
  for (const CudaStream* const late : {&input, &output}) {
    gpu_.delay("event_record", std::chrono::milliseconds(50));
    written.record(slow.get());
    gpu_.delay("event_record", std::chrono::microseconds(0));
    wait(late->get(), written);
    StreamOrder order(events, gpu_.index(), input.get(), output.get());
    order.wait_ready(own.get());
    Event after(gpu_.cuda());
    after.record(own.get());
    after.synchronize();
    EXPECT_TRUE(written.query());
  }
}

TEST_F(EventTest, EveryCallIsChecked) {
  const CudaStream stream(gpu_.cuda(), 0);
  Event event(gpu_.cuda());
  for (const char* call :
       {"event_record", "event_query", "event_synchronize", "stream_wait_event"}) {
    gpu_.fail(call, 1, cudaErrorUnknown);
  }
  EXPECT_THROW(event.record(stream.get()), Error);
  EXPECT_THROW(event.query(), Error);
  EXPECT_THROW(event.synchronize(), Error);
  EXPECT_THROW(wait(stream.get(), event), Error);
}

TEST_F(EventTest, TimeBetweenTwoStamps) {
  const CudaStream stream(gpu_.cuda(), 0);
  Event first(gpu_.cuda(), TimeStamp::on);
  Event second(gpu_.cuda(), TimeStamp::on);
  first.record(stream.get());
  gpu_.delay("event_record", std::chrono::milliseconds(20));
  second.record(stream.get());
  EXPECT_THROW(elapsed(first, second), Error) << "not done yet";
  second.synchronize();
  EXPECT_GE(elapsed(first, second), std::chrono::milliseconds(19));
  EXPECT_EQ(elapsed(second, first), -elapsed(first, second));
  EXPECT_EQ(elapsed(first, first).count(), 0);
}

TEST_F(EventTest, WithoutAStampThereIsNoTime) {
  const CudaStream stream(gpu_.cuda(), 0);
  Event without(gpu_.cuda());
  Event with(gpu_.cuda(), TimeStamp::on);
  EXPECT_EQ(gpu_.timing_events(), 1);
  EXPECT_THROW(elapsed(with, with), Error) << "never recorded";
  without.record(stream.get());
  with.record(stream.get());
  with.synchronize();
  EXPECT_THROW(elapsed(without, with), Error);
  EXPECT_THROW(elapsed(with, without), Error);
}

TEST_F(EventTest, PoolCreatesNoneInTheSteadyState) {
  EventPool pool(gpu_.cuda());
  for (int step = 0; step < 10; ++step) {
    std::vector<std::shared_ptr<Event>> events;
    std::set<cudaEvent_t> different;
    for (int i = 0; i < 5; ++i) {
      events.push_back(pool.take());
      different.insert(events.back()->get());
    }
    EXPECT_EQ(different.size(), 5U);
  }
  EXPECT_EQ(gpu_.count("event_create"), 5);
  EXPECT_EQ(gpu_.live().events, 5);
}

TEST_F(EventTest, EventsMayOutliveThePool) {
  std::shared_ptr<Event> event;
  {
    EventPool pool(gpu_.cuda());
    event = pool.take();
    pool.take();
    EXPECT_EQ(gpu_.live().events, 2);
  }
  EXPECT_TRUE(event->query());
  event.reset();
  EXPECT_EQ(gpu_.live().events, 0);
}

TEST_F(EventTest, PoolWorksOnAfterAFailure) {
  EventPool pool(gpu_.cuda());
  gpu_.fail("event_create", 1, cudaErrorUnknown);
  EXPECT_THROW(pool.take(), Error);
  EXPECT_NE(pool.take(), nullptr);
  EXPECT_EQ(gpu_.live().events, 1);
}

TEST_F(EventTest, PoolServesManyThreads) {
  EventPool pool(gpu_.cuda());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int step = 0; step < 200; ++step) pool.take()->record(nullptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(gpu_.count("event_create"), 4);
  EXPECT_THAT(gpu_.violations(), testing::IsEmpty());
}

/// How to make each owner, and what it calls.
struct MakesStream {
  using Owner = CudaStream;
  static constexpr auto kCreate = "stream_create";
  static constexpr auto kDestroy = "stream_destroy";
  static Owner make(const CudaFunctions& cuda) { return Owner(cuda, 0); }
  static int live(const test::LiveHandles& handles) { return handles.streams; }
};
struct MakesEvent {
  using Owner = Event;
  static constexpr auto kCreate = "event_create";
  static constexpr auto kDestroy = "event_destroy";
  static Owner make(const CudaFunctions& cuda) { return Owner(cuda); }
  static int live(const test::LiveHandles& handles) { return handles.events; }
};
struct MakesPinned {
  using Owner = PinnedMemory;
  static constexpr auto kCreate = "host_alloc";
  static constexpr auto kDestroy = "free_host";
  static Owner make(const CudaFunctions& cuda) { return Owner(cuda, 1000); }
  static int live(const test::LiveHandles& handles) { return handles.pinned; }
};
struct MakesDevice {
  using Owner = DeviceMemory;
  static constexpr auto kCreate = "malloc";
  static constexpr auto kDestroy = "free";
  static Owner make(const CudaFunctions& cuda) { return Owner(cuda, 1000); }
  static int live(const test::LiveHandles& handles) { return handles.device; }
};
struct MakesPool {
  using Owner = MemoryPool;
  static constexpr auto kCreate = "mem_pool_create";
  static constexpr auto kDestroy = "mem_pool_destroy";
  static Owner make(const CudaFunctions& cuda) { return Owner(cuda, 0); }
  static int live(const test::LiveHandles& handles) { return handles.pools; }
};

template <class Makes>
class OwnerTest : public testing::Test {
 protected:
  int live() const { return Makes::live(gpu_.live()); }
  typename Makes::Owner make() { return Makes::make(gpu_.cuda()); }

  test::FakeNcclWorld world_;
  test::FakeGpu gpu_{world_};
};
using Owners = testing::Types<MakesStream, MakesEvent, MakesPinned, MakesDevice, MakesPool>;
TYPED_TEST_SUITE(OwnerTest, Owners);

TYPED_TEST(OwnerTest, IsMoveOnlyAndMovesWithoutThrowing) {
  using Owner = typename TypeParam::Owner;
  static_assert(!std::is_copy_constructible_v<Owner> && !std::is_copy_assignable_v<Owner>);
  static_assert(std::is_nothrow_move_constructible_v<Owner>);
  static_assert(std::is_nothrow_move_assignable_v<Owner>);
}

TYPED_TEST(OwnerTest, GivesBackOnce) {
  {
    auto first = this->make();
    EXPECT_EQ(this->live(), 1);
    auto second = std::move(first);
    EXPECT_EQ(this->live(), 1);
    auto third = this->make();
    EXPECT_EQ(this->live(), 2);
    third = std::move(second);
    EXPECT_EQ(this->live(), 1);
  }
  EXPECT_EQ(this->gpu_.live(), test::LiveHandles{});
  EXPECT_EQ(this->gpu_.count(TypeParam::kDestroy), 2);
  EXPECT_THAT(this->gpu_.violations(), testing::IsEmpty());
}

TYPED_TEST(OwnerTest, FailureToMakeLeavesNothing) {
  this->gpu_.fail(TypeParam::kCreate, 1, cudaErrorUnknown);
  EXPECT_THROW(this->make(), Error);
  EXPECT_EQ(this->gpu_.live(), test::LiveHandles{});
  EXPECT_EQ(this->gpu_.count(TypeParam::kDestroy), 0);
  EXPECT_EQ(this->gpu_.cuda().get_last_error(), cudaSuccess);
}

TYPED_TEST(OwnerTest, FailureToDestroyIsNotThrown) {
  this->gpu_.fail(TypeParam::kDestroy, 1, cudaErrorUnknown);
  { auto owner = this->make(); }
  EXPECT_EQ(this->gpu_.live(), test::LiveHandles{});
  EXPECT_EQ(this->gpu_.cuda().get_last_error(), cudaSuccess);
}

TYPED_TEST(OwnerTest, EmptyOwnsNothing) {
  { typename TypeParam::Owner owner; }
  EXPECT_EQ(this->gpu_.count(TypeParam::kDestroy), 0);
}

class MemoryTest : public testing::Test {
 protected:
  test::FakeNcclWorld world_;
  test::FakeGpu gpu_{world_};
};

TEST_F(MemoryTest, LackOfMemoryNamesTheBytes) {
  gpu_.fail("malloc", 1, cudaErrorMemoryAllocation);
  gpu_.fail("host_alloc", 1, cudaErrorMemoryAllocation);
  const auto expect = [](auto make, const char* text) {
    test::expect_error(ErrorCode::out_of_memory, testing::HasSubstr(text), [&] { make(); });
  };
  expect([&] { DeviceMemory(gpu_.cuda(), 12345); }, "cudaMalloc of 12345 bytes");
  expect([&] { PinnedMemory(gpu_.cuda(), 54321); }, "cudaHostAlloc of 54321 bytes");
}

TEST_F(MemoryTest, NoBytesNeedNoAllocation) {
  const DeviceMemory device(gpu_.cuda(), 0);
  const PinnedMemory pinned(gpu_.cuda(), 0);
  EXPECT_EQ(device.data(), nullptr);
  EXPECT_EQ(pinned.data(), nullptr);
  EXPECT_EQ(gpu_.count("malloc") + gpu_.count("host_alloc"), 0);
}

class StreamHeapTest : public testing::Test {
 protected:
  test::FakeNcclWorld world_;
  test::FakeGpu gpu_{world_, {.seed = test::seed()}};
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
  EXPECT_THAT(gpu_.violations(), testing::IsEmpty());
}

TEST_F(StreamHeapTest, MemoryGoesInTheOrderOfTheStream) {
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
}

TEST_F(StreamHeapTest, NothingForNothing) {
  EXPECT_EQ(heap_.allocate(0, std::nullopt), nullptr);
  heap_.release(nullptr, std::nullopt);
  heap_.to_host(nullptr, nullptr, 0, users_.get());
  EXPECT_EQ(gpu_.count("mem_pool_create") + gpu_.count("malloc_from_pool_async") +
                gpu_.count("free_async") + gpu_.count("host_alloc"),
            0);
}

// By the table hora has no other pool.
TEST_F(StreamHeapTest, MemoryIsOfOnePoolOfItsOwnThatKeepsAll) {
  std::byte* const data = heap_.allocate(100, users_.get());
  heap_.release(data, users_.get());
  heap_.release(heap_.allocate(200, std::nullopt), std::nullopt);
  EXPECT_THAT(gpu_.kept_by_pools(),
              testing::ElementsAre(std::numeric_limits<std::uint64_t>::max()));
  EXPECT_EQ(gpu_.count("mem_pool_create"), 1);
  EXPECT_EQ(gpu_.count("mem_pool_trim_to"), 0);
  EXPECT_THAT(gpu_.violations(), testing::IsEmpty());
}

TEST_F(StreamHeapTest, APoolThatCannotBeMadeIsMadeTheNextTime) {
  for (const char* call : {"mem_pool_create", "mem_pool_set_attribute"}) {
    gpu_.fail(call, 1, cudaErrorNotSupported);
    test::expect_error(ErrorCode::transport, testing::HasSubstr("cudaMemPool"),
                       [&] { heap_.allocate(64, std::nullopt); });
    EXPECT_EQ(gpu_.live().pools, 0) << call;
    EXPECT_EQ(gpu_.cuda().get_last_error(), cudaSuccess);
  }
  heap_.release(heap_.allocate(64, std::nullopt), std::nullopt);
  EXPECT_EQ(gpu_.live().pools, 1);
}

TEST_F(StreamHeapTest, WhereMemoryIsLackingThePoolGivesBackWhatIsFree) {
  gpu_.fail("malloc_from_pool_async", 1, cudaErrorMemoryAllocation);
  gpu_.fail("mem_pool_trim_to", 1, cudaErrorUnknown);
  std::byte* const data = heap_.allocate(64, std::nullopt);
  EXPECT_NE(data, nullptr);
  EXPECT_EQ(gpu_.count("mem_pool_trim_to"), 1);
  EXPECT_EQ(gpu_.cuda().get_last_error(), cudaSuccess);
  heap_.release(data, std::nullopt);
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

TEST_F(StreamHeapTest, FailuresAreNamed) {
  for (const int attempt : {1, 2}) {
    gpu_.fail("malloc_from_pool_async", attempt, cudaErrorMemoryAllocation);
  }
  test::expect_error(ErrorCode::out_of_memory, testing::HasSubstr("12345 bytes"),
                     [&] { heap_.allocate(12345, std::nullopt); });
  std::byte* const data = heap_.allocate(64, users_.get());
  std::vector<std::byte> host(64);
  for (const char* call : {"memcpy_async", "event_record", "event_synchronize", "get_device"}) {
    gpu_.fail(call, 1, cudaErrorLaunchFailure);
    EXPECT_THROW(heap_.to_host(host.data(), data, 64, users_.get()), Error) << call;
  }
  heap_.release(data, users_.get());
}

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
