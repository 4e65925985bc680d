#include "core/engine/progress.h"

#include <future>

#include "tests/core/engine/engine_fixture.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using namespace test;

TEST(PauseBetweenPolls, IsAShareOfTheTimeWaited) {
  EXPECT_EQ(pause_between_polls(0ns), 0ns);
  EXPECT_EQ(pause_between_polls(80us), 10us);
  for (const auto waited : {8ms, 200ms}) EXPECT_EQ(pause_between_polls(waited), 1ms);
  EXPECT_EQ(pause_between_polls(600ms), 3ms);
  for (const Duration waited : {Duration(2s), Duration(1h)}) {
    EXPECT_EQ(pause_between_polls(waited), 10ms);
  }
}

/// A rank whose steps the test makes, all on one thread.
class SteppedRank {
 public:
  explicit SteppedRank(EngineParts parts)
      : parts_(std::move(parts)), sets_(parts_), progress_(parts_, sets_) {}
  void submit(const std::string& name) {
    operations().submit(sum_of(values_.emplace_back(1, 1.0F), name), Caller::goes_on);
  }
  bool step() {
    const LockGuard lock(progress_.lock());
    return progress_.step();
  }
  bool is_unfinished() {
    const LockGuard lock(progress_.lock());
    return progress_.is_unfinished();
  }
  /// That of a thread that waits for a result, and has not made progress for long.
  WakeupFlags::SleepLength sleep_length() {
    const LockGuard lock(progress_.lock());
    return progress_.sleep_length(now(), 1s, /*awaited=*/true);
  }
  Operations& operations() { return sets_.world().operations(); }
  const WakeupFlags& flags() const { return parts_.world.control_block->wakeup_flags(); }

 private:
  const EngineParts parts_;
  std::deque<std::vector<float>> values_;
  ProcessSets sets_;
  Progress progress_;
};

class OneNode : public testing::Test {
 protected:
  OneNode() {
    for (int rank = 0; rank < world_.size(); ++rank) ranks_.emplace_back(world_.parts(rank));
  }

  ThreadWorld world_{{.node_sizes = {3}, .settings = {}, .engines = false}};
  std::deque<SteppedRank> ranks_;
};

// No rank says that its mailbox has room again.
TEST_F(OneNode, WhoHasMailForAFullMailboxPolls) {
  SteppedRank& leader = ranks_[0];
  SteppedRank& writer = ranks_[1];
  const auto begin = now();
  // As if it had been asleep.
  writer.flags().sleep(WakeupFlags::Sleeper::engine, [&] {
    for (int names = 0; names < 4000 && !writer.operations().mail_waits(); ++names) {
      writer.submit(std::string(500, 'n') + std::to_string(names));
    }
    return 20s;
  });
  EXPECT_LT(now() - begin, 10s) << "it is woken, to begin to poll";
  ASSERT_TRUE(writer.operations().mail_waits());
  EXPECT_LE(writer.sleep_length(), WakeupFlags::SleepLength(5ms));
  EXPECT_TRUE(writer.is_unfinished());
  while (leader.step()) continue;
  EXPECT_TRUE(writer.step());
  EXPECT_FALSE(writer.operations().mail_waits());
  EXPECT_GT(writer.sleep_length(), WakeupFlags::SleepLength(100ms));
  EXPECT_FALSE(writer.is_unfinished());
}

// A caller sleeps until then, and the engine, which has gone to sleep before, may outlast it.
TEST_F(OneNode, AShortLimitWakesTheEngineBesideACaller) {
  SteppedRank& rank = ranks_[1];
  std::vector<float> values(8, 1.0F);
  const auto begin = now();
  rank.flags().set_caller(true);
  rank.flags().sleep(WakeupFlags::Sleeper::engine, [&] {
    rank.operations().submit(sum_of(values, "g", 300ms), Caller::goes_on);
    return 20s;
  });
  EXPECT_LT(now() - begin, 10s);
  EXPECT_LE(rank.sleep_length(), WakeupFlags::SleepLength(300ms));
}

/// Longer than anything here lasts: what takes as long was blocked.
constexpr auto kBlocked = 20s;

/// A device with memory alone. Thread rule: as DevicePort; its calls must not overlap.
class FakePort final : public DevicePort {
 public:
  BegunOnDevice begin(const std::byte*, void*, std::optional<void*>) override { return {}; }
  std::byte* allocate(std::size_t bytes) override {
    const std::unique_lock lock = alone();
    return new std::byte[bytes];
  }
  void release(std::byte* data, const WithEngineLock& locked) noexcept override {
    locked([&] {
      const std::unique_lock lock = alone();
      delete[] data;
    });
  }
  bool check() override {
    const std::unique_lock lock = alone();
    ++rounds;
    return false;
  }
  void abort() noexcept override {}

  std::atomic<int> rounds{0};  ///< of the thread that makes progress

 private:
  std::unique_lock<std::mutex> alone() {
    std::unique_lock lock(busy_, std::try_to_lock);
    EXPECT_TRUE(lock.owns_lock());
    return lock;
  }
  std::mutex busy_;
};

/// The parameters: ranks of each node; with engine threads; after which the waiting thread sleeps.
class WhileOneWaits
    : public testing::TestWithParam<std::tuple<std::vector<int>, bool, std::chrono::microseconds>> {
 protected:
  /// Rank 0 waits for "a", which the other submits when `call` has returned on another thread of
  /// rank 0, or seems to be blocked.
  void expect_goes_on(const std::function<void(Engine&)>& call) {
    std::vector<float> values(4, 1.0F);
    Engine& engine = world_.engine(0);
    const auto submission = engine.submit(sum_of(values, "a"));
    std::jthread waiter([&] { engine.wait(*submission); });
    // Without engine threads the thread that makes a round is the waiting one.
    for (const int before = ports_[0].rounds; ports_[0].rounds == before;) {
      std::this_thread::yield();
    }
    auto returns = std::async(std::launch::async, [&] { call(engine); });
    EXPECT_EQ(returns.wait_for(kBlocked), std::future_status::ready)
        << "blocked by a thread that waits for peers";
    EXPECT_EQ(summed(world_.engine(1), "a", 4), 2.0F);
    waiter.join();
    returns.get();
    EXPECT_EQ(values[3], 2.0F);
  }

 private:
  ThreadWorldOptions options() {
    ThreadWorldOptions result{.node_sizes = std::get<0>(GetParam()),
                              .settings = {},
                              .engine_threads = std::get<1>(GetParam())};
    result.settings.spin = std::get<2>(GetParam());
    result.device = [this](int rank, int, int) {
      return RankDevice{.port = &ports_[static_cast<std::size_t>(rank)]};
    };
    return result;
  }

  std::vector<FakePort> ports_{2};
  ThreadWorld world_{options()};
};
INSTANTIATE_TEST_SUITE_P(Layouts, WhileOneWaits,
                         testing::Combine(testing::Values(std::vector{2}, std::vector{1, 1}),
                                          testing::Bool(), testing::Values(100us, 10s)));

TEST_P(WhileOneWaits, WhatDoesNotWaitForPeersReturns) {
  expect_goes_on([](Engine& engine) {
    for (int round = 0; round < 20; ++round) {
      std::byte* const buffer = engine.allocate_on_device(64);
      engine.progress();
      engine.release_on_device(buffer);
      (void)engine.sets().statistics();
      (void)engine.sets().ranks_of(kWorld);
      EXPECT_FALSE(engine.runs_on_device({.name = "a", .signature = floats(4)}, kWorld));
      std::vector<float> again(4, 1.0F);
      EXPECT_THROW(engine.submit(sum_of(again, "a")), Error);
      // Time enough for the waiting thread to fall asleep, in some rounds.
      std::this_thread::sleep_for(std::chrono::microseconds(round * 20));
    }
  });
}

}  // namespace
}  // namespace hora::internal
