#include "core/engine/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/core/engine/engine_fixture.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using test::bytes;
using test::floats;
using test::ThreadWorld;

TEST(PauseBetweenPolls, IsAShareOfTheTimeWaited) {
  EXPECT_EQ(pause_between_polls(0ns), 0ns);
  EXPECT_EQ(pause_between_polls(80us), 10us);
  EXPECT_EQ(pause_between_polls(8ms), 1ms);
  EXPECT_EQ(pause_between_polls(200ms), 1ms);
  EXPECT_EQ(pause_between_polls(600ms), 3ms);
  EXPECT_EQ(pause_between_polls(1s), 5ms);
  EXPECT_EQ(pause_between_polls(2s), 10ms);
  EXPECT_EQ(pause_between_polls(1h), 10ms);
}

/// A rank whose steps the test makes, all on one thread.
class SteppedRank {
 public:
  explicit SteppedRank(EngineParts parts)
      : parts_(std::move(parts)), sets_(parts_), progress_(parts_, sets_) {}
  SteppedRank(const SteppedRank&) = delete;
  SteppedRank& operator=(const SteppedRank&) = delete;

  std::shared_ptr<Operation> submit(const std::string& name, std::int64_t count) {
    auto& values = values_.emplace_back(static_cast<std::size_t>(count), 1.0F);
    return operations().submit({name, floats(count), bytes(values)}, Caller::goes_on);
  }
  bool step() {
    const LockGuard lock(progress_.lock());
    return progress_.step();
  }
  bool is_unfinished() {
    const LockGuard lock(progress_.lock());
    return progress_.is_unfinished();
  }
  /// Of a thread that waits for a result, and has not made progress for long.
  WakeupFlags::SleepLength sleep_length() {
    const LockGuard lock(progress_.lock());
    return progress_.sleep_length(now(), 1s, /*awaited=*/true);
  }
  bool sleeps_long() { return sleep_length() > WakeupFlags::SleepLength(100ms); }
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
  void step_all() {
    for (bool any = true; any;) {
      any = false;
      for (SteppedRank& rank : ranks_) any |= rank.step();
    }
  }

  ThreadWorld world_{{.node_sizes = {3}, .settings = {}, .engines = false}};
  std::deque<SteppedRank> ranks_;
};

// Rank 0, the leader, has another signature than the others, whose ready bits it waits for: they
// signal it, unless it has not fallen asleep yet.
TEST_F(OneNode, AnArrivalThatTheLeaderWatchesIsPendingWork) {
  SteppedRank& leader = ranks_[0];
  std::vector<std::shared_ptr<Operation>> first;
  for (SteppedRank& rank : ranks_) first.push_back(rank.submit("x", 17));
  step_all();
  for (std::size_t r = 0; r < ranks_.size(); ++r) ranks_[r].operations().collect(*first[r]);

  const auto differs = leader.submit("x", 16);
  while (leader.step()) {
  }
  EXPECT_TRUE(leader.sleeps_long());
  EXPECT_FALSE(leader.is_unfinished());
  const auto second = ranks_[1].submit("x", 17);
  EXPECT_EQ(leader.sleep_length(), WakeupFlags::kNoSleep);
  EXPECT_TRUE(leader.is_unfinished()) << "so that a caller that leaves wakes the engine";
  EXPECT_FALSE(leader.step());
  EXPECT_TRUE(leader.sleeps_long()) << "it has seen that";
  const auto third = ranks_[2].submit("x", 17);
  EXPECT_EQ(leader.sleep_length(), WakeupFlags::kNoSleep);
  step_all();
  for (const auto& submission : {differs, second, third}) {
    EXPECT_EQ(submission->state.load(), Operation::kFailed);
  }
}

// No rank says that its mailbox has room again.
TEST_F(OneNode, WhoHasMailForAFullMailboxPolls) {
  SteppedRank& leader = ranks_[0];
  SteppedRank& writer = ranks_[1];
  constexpr int kMostNames = 4000;
  int names = 0;
  const auto fill = [&] {
    for (; names < kMostNames && !writer.operations().mail_waits(); ++names) {
      writer.submit(std::string(500, 'n') + std::to_string(names), 1);
    }
  };
  const auto begin = now();
  // As if it had been asleep.
  writer.flags().sleep(WakeupFlags::Sleeper::engine, [&] {
    fill();
    return 20s;
  });
  EXPECT_LT(now() - begin, 10s) << "it is woken, to begin to poll";
  ASSERT_TRUE(writer.operations().mail_waits());
  EXPECT_LE(writer.sleep_length(), WakeupFlags::SleepLength(5ms));
  EXPECT_TRUE(writer.is_unfinished());
  while (leader.step()) {
  }
  EXPECT_TRUE(writer.step());
  EXPECT_FALSE(writer.operations().mail_waits());
  EXPECT_TRUE(writer.sleeps_long());
  EXPECT_FALSE(writer.is_unfinished());
}

// A caller sleeps until then, and the engine, which has gone to sleep before, may outlast it.
TEST_F(OneNode, AShortLimitWakesTheEngineBesideACaller) {
  SteppedRank& rank = ranks_[1];
  std::vector<float> values(8, 1.0F);
  const auto begin = now();
  rank.flags().set_caller(true);
  rank.flags().sleep(WakeupFlags::Sleeper::engine, [&] {
    Request request{"g", floats(8), bytes(values)};
    request.timeout = 300ms;
    rank.operations().submit(std::move(request), Caller::goes_on);
    return 20s;
  });
  EXPECT_LT(now() - begin, 10s);
  EXPECT_LE(rank.sleep_length(), WakeupFlags::SleepLength(300ms));
}

}  // namespace
}  // namespace hora::internal
