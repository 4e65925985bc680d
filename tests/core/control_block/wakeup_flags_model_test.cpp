// Sleeping and waking in every order of every access. And each word that must have its order
// without it: then the explorer has to find what goes wrong.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/core/control_block/model_control_blocks.h"
#include "tests/support/model/explorer.h"

namespace hora::internal {
namespace {

using model::Program;
using test::ControlBlocks;

/// As an engine, or a caller in its place: sleeps until there is pending work.
template <class HasNews>
void sleep_until(NodeControlBlock& control_block, HasNews&& has_pending_work,
                 NodeControlBlock::Sleeper who = NodeControlBlock::Sleeper::engine) {
  if (who == NodeControlBlock::Sleeper::caller) control_block.wakeup_flags().set_caller(true);
  while (!has_pending_work()) {
    control_block.wakeup_flags().sleep(who, [&]() -> WakeupFlags::SleepLength {
      return has_pending_work() ? WakeupFlags::kNoSleep : std::nullopt;
    });
  }
  if (who == NodeControlBlock::Sleeper::caller) control_block.wakeup_flags().set_caller(false);
}

/// Every word that an access of the program went to, without its place in the total order, one
/// after the other: how many of them the program fails without.
struct Needed {
  std::optional<std::string> failure;  ///< as it is
  std::size_t words = 0;
  std::vector<std::string> failures;
};
Needed needed_words(const std::function<Program()>& program) {
  Needed needed;
  const auto outcome = model::explore(program);
  needed.failure = outcome.failure;
  needed.words = outcome.words.size();
  for (const void* word : outcome.words) {
    const auto without = model::explore(program, {.without_total_order = {word}});
    if (without.failure) needed.failures.push_back(*without.failure);
  }
  return needed;
}

class EverySleeper : public testing::TestWithParam<NodeControlBlock::Sleeper> {};
INSTANTIATE_TEST_SUITE_P(
    Who, EverySleeper,
    testing::Values(NodeControlBlock::Sleeper::engine, NodeControlBlock::Sleeper::caller),
    [](const auto& who) {
      return std::string(who.param == NodeControlBlock::Sleeper::engine ? "Engine" : "Driver");
    });

Program finished_unit(NodeControlBlock::Sleeper who) {
  auto control_blocks = std::make_shared<ControlBlocks>();
  return {.threads = {[=] {
                        NodeControlBlock& own = (*control_blocks)[0];
                        own.set_done(1);
                        own.await_done(1);
                        sleep_until(
                            own, [&] { return own.done_by_all() >= 1; }, who);
                      },
                      [=] { (*control_blocks)[1].set_done(1); }}};
}

// RankCell::done of the peer, and the word that says who sleeps.
TEST_P(EverySleeper, IsWokenByTheUnitThatItAwaits) {
  const Needed needed = needed_words([] { return finished_unit(GetParam()); });
  EXPECT_EQ(needed.failure, std::nullopt);
  EXPECT_GE(needed.failures.size(), 2u) << "of " << needed.words << " words";
  for (const std::string& failure : needed.failures) {
    EXPECT_EQ(failure, "no thread can proceed: thread 0 sleeps, thread 1 has ended");
  }
}

Program new_entry(NodeControlBlock::Sleeper who) {
  auto control_blocks = std::make_shared<ControlBlocks>();
  return {.threads = {[=] {
                        NodeControlBlock& own = (*control_blocks)[0];
                        sleep_until(
                            own, [&] { return own.log_has_pending_work(); }, who);
                      },
                      [=] {
                        NodeControlBlock& own = (*control_blocks)[1];
                        const Id ids[] = {0};
                        own.push_run(ids);
                        own.signal_others();
                      }}};
}

// SequenceRingEntry::sequence, and the word that says who sleeps.
TEST_P(EverySleeper, IsWokenByAnEntryOfTheLog) {
  const Needed needed = needed_words([] { return new_entry(GetParam()); });
  EXPECT_EQ(needed.failure, std::nullopt);
  EXPECT_GE(needed.failures.size(), 2u) << "of " << needed.words << " words";
}

TEST_P(EverySleeper, IsWokenByMail) {
  const Needed needed = needed_words([] {
    auto control_blocks = std::make_shared<ControlBlocks>();
    return Program{.threads = {[=] {
                                 NodeControlBlock& own = (*control_blocks)[0];
                                 sleep_until(
                                     own, [&] { return own.leader_has_pending_work(); },
                                     GetParam());
                                 if (!own.pop_mail(1)) model::fail("the mail is not there");
                               },
                               [=] {
                                 NodeControlBlock& own = (*control_blocks)[1];
                                 const std::byte letter[3] = {};
                                 own.push_mail(letter);
                                 own.signal(0);
                               }}};
  });
  EXPECT_EQ(needed.failure, std::nullopt);
  EXPECT_GE(needed.failures.size(), 2u) << "of " << needed.words << " words";
}

// The leader asks to be woken, and then checks; an arriver marks itself ready, and then checks whom
// to wake.
TEST_P(EverySleeper, IsWokenByAnArrivalThatItWatches) {
  const Needed needed = needed_words([] {
    auto control_blocks = std::make_shared<ControlBlocks>();
    return Program{.threads = {[=] {
                                 NodeControlBlock& own = (*control_blocks)[0];
                                 own.watch(0, true);
                                 sleep_until(
                                     own, [&] { return own.ready_ranks(0).any(); }, GetParam());
                               },
                               [=] {
                                 NodeControlBlock& own = (*control_blocks)[1];
                                 own.arrive(0, {});
                                 if (own.watched(0)) own.signal(0);
                               }}};
  });
  EXPECT_EQ(needed.failure, std::nullopt);
  EXPECT_GE(needed.failures.size(), 3u) << "of " << needed.words << " words";
}

// The explorer finds a thread that checks before it announces that it sleeps.
TEST(WakeupFlagsModel, WhoLooksBeforeItAnnouncesItselfIsLost) {
  const auto outcome = model::explore([] {
    auto control_blocks = std::make_shared<ControlBlocks>();
    return Program{.threads = {[=] {
                                 NodeControlBlock& own = (*control_blocks)[0];
                                 own.set_done(1);
                                 own.await_done(1);
                                 while (own.done_by_all() < 1) {
                                   own.wakeup_flags().sleep(NodeControlBlock::Sleeper::engine,
                                                            [] { return std::nullopt; });
                                 }
                               },
                               [=] { (*control_blocks)[1].set_done(1); }}};
  });
  EXPECT_EQ(outcome.failure, "no thread can proceed: thread 0 sleeps, thread 1 has ended");
}

/// Rank 0's progress lock, and what it guards.
struct GuardedProgress {
  /// Unlocks in no destructor, which may not throw: the explorer ends threads by exceptions.
  template <class Body>
  void locked(Body&& body) {
    for (std::uint32_t free = 0; !taken.compare_exchange_strong(free, 1, std::memory_order_acquire);
         free = 0) {
      model::spin();
    }
    body();
    taken.store(0, std::memory_order_release);
  }

  Atomic<std::uint32_t> taken;
  Plain<std::uint32_t> started;  ///< units
};

/// A caller of rank 0 leaves while its unit is under way, which the engine thread is to finish when
/// the peer has: ProgressThreads::pause, Turn::leave. `early`: the engine chooses what it awaits
/// before it announces that it sleeps.
Program a_turn_that_ends(bool early) {
  auto control_blocks = std::make_shared<ControlBlocks>();
  auto progress = std::make_shared<GuardedProgress>();
  const auto engine = [=] {
    NodeControlBlock& own = (*control_blocks)[0];
    const auto await_unit = [&] { own.await_done(progress->started); };
    for (bool complete = false;;) {
      const auto look = [&] { complete = progress->started == 1 && own.done_by_all() >= 1; };
      progress->locked([&] {
        look();
        if (early) await_unit();
      });
      if (complete) return;
      own.wakeup_flags().sleep(WakeupFlags::Sleeper::engine, [&]() -> WakeupFlags::SleepLength {
        progress->locked([&] {
          if (!early) await_unit();
          look();
        });
        return complete ? WakeupFlags::kNoSleep : std::nullopt;
      });
    }
  };
  const auto caller = [=] {
    NodeControlBlock& own = (*control_blocks)[0];
    progress->locked([&] {
      own.wakeup_flags().set_caller(true);
      progress->started = 1;
      own.set_done(1);
      own.wakeup_flags().set_caller(false);
    });
    own.signal(0);
  };
  return {.threads = {engine, caller, [=] { (*control_blocks)[1].set_done(1); }}};
}

TEST(WakeupFlagsModel, TheEngineFinishesWhatACallerHasBegun) {
  const auto outcome = model::explore([] { return a_turn_that_ends(false); });
  EXPECT_EQ(outcome.failure, std::nullopt);
  EXPECT_GT(outcome.executions, 100u);
}

TEST(WakeupFlagsModel, WhoChoosesWhatItAwaitsBeforeItAnnouncesItselfIsLost) {
  const auto outcome = model::explore([] { return a_turn_that_ends(true); });
  EXPECT_EQ(outcome.failure,
            "no thread can proceed: thread 0 sleeps, thread 1 has ended, thread 2 has ended");
}

}  // namespace
}  // namespace hora::internal
