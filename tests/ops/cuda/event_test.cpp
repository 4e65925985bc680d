#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <set>
#include <thread>
#include <vector>

#include "ops/cuda/stream.h"
#include "tests/support/fake_gpu/fake_gpu.h"

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
      for (int step = 0; step < 200; ++step) {
        pool.take()->record(nullptr);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_LE(gpu_.count("event_create"), 4);
  EXPECT_THAT(gpu_.violations(), testing::IsEmpty());
}

}  // namespace
}  // namespace hora::internal
