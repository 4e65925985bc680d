/// The control block's protocols in every order of every access: ready words, the log, tickets of
/// launches, sleeping and waking; and each word that must have its order without it: then the
/// explorer has to find what goes wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/core/control_block/shared_control_block.h"
#include "tests/support/model/explorer.h"

namespace hora::internal::test {

inline constexpr ControlBlockShape kShape{.local_size = 2,
                                          .id_capacity = 2,
                                          .single_node = true,
                                          .mailbox_bytes = 64,
                                          .control_bytes = 64};

/// At the same addresses in all executions.
struct Memory {
  static std::byte* fresh() {
    static Memory memory;
    std::memset(memory.bytes, 0, sizeof memory.bytes);
    return memory.bytes;
  }
  static constexpr std::size_t kBytes = std::size_t{1} << 18;
  alignas(64) std::byte bytes[kBytes];
};

/// Two ranks' views of one control block.
struct ControlBlocks : SharedControlBlock {
  explicit ControlBlocks(const ControlBlockShape& shape = kShape)
      : SharedControlBlock(shape, Memory::fresh()) {
    EXPECT_LE(memory().size(), Memory::kBytes);
  }
};

}  // namespace hora::internal::test

namespace hora::internal {
namespace {

using model::Program;
using test::ControlBlocks;
using test::kShape;
using test::Memory;

// A leader gives an id up while its ranks arrive: it runs on both ranks, or on none.
TEST(ControlBlockModel, AnIdThatIsGivenUpHasRunOrIsStale) {
  const auto outcome = model::explore([] {
    auto control_blocks = std::make_shared<ControlBlocks>();
    auto arrivals = std::make_shared<std::array<NodeControlBlock::Arrival, 2>>();
    auto given_up = std::make_shared<bool>(false);
    const auto arrive = [=](int r) {
      (*arrivals)[static_cast<std::size_t>(r)] = (*control_blocks)[r].arrive(0, {});
    };
    return Program{.threads = {[=] {
                                 arrive(0);
                                 *given_up = (*control_blocks)[0].retire(0, false);
                                 if (*given_up && (*control_blocks)[0].ready_ranks(0).any()) {
                                   model::fail("ready after it was given up");
                                 }
                               },
                               [=] { arrive(1); }},
                   .at_end = [=] {
                     using Arrival = NodeControlBlock::Arrival;
                     const bool ran =
                         (*arrivals)[0] == Arrival::complete || (*arrivals)[1] == Arrival::complete;
                     const bool stale = (*arrivals)[1] == Arrival::stale;
                     if (ran && stale) model::fail("it ran without a rank");
                     if (!ran && !stale) model::fail("both came, and it did not run");
                     if (stale && !*given_up) model::fail("stale, but not given up");
                   }};
  });
  EXPECT_EQ(outcome.failure, std::nullopt);
}

/// Reads until a rank has seen so many ids; its batches.
using Batches = std::vector<std::vector<Id>>;
Batches read_ids(NodeControlBlock& control_block, std::size_t count) {
  Batches batches;
  for (std::size_t ids = 0; ids < count;) {
    if (auto batch = control_block.next_batch()) {
      ids += batch->ids.size();
      batches.push_back(std::move(batch->ids));
    } else {
      model::spin();
    }
  }
  return batches;
}

/// Each rank's arrival completes one id, which it appends while the other appends its own; both
/// read then, and the first reader closes a batch.
Program two_ids_at_once() {
  auto control_blocks = std::make_shared<ControlBlocks>();
  auto read = std::make_shared<std::array<Batches, 2>>();
  const auto rank = [=](int r) {
    return [=] {
      NodeControlBlock& own = (*control_blocks)[r];
      own.arrive(static_cast<Id>(1 - r), {});
      (*read)[static_cast<std::size_t>(r)] = read_ids(own, 2);
    };
  };
  return {.threads = {rank(0), rank(1)},
          .at_begin =
              [=] {
                for (const int r : {0, 1}) (*control_blocks)[r].arrive(static_cast<Id>(r), {});
              },
          .at_end =
              [=] {
                const auto& [first, second] = *read;
                if (first != second) model::fail("batches differ");
                if (first.front().front() == first.back().back()) model::fail("one id twice");
              }};
}

TEST(ControlBlockModel, TwoIdsAtOnceComeInOneOrderAndInTheSameBatches) {
  const auto outcome = model::explore(two_ids_at_once);
  EXPECT_EQ(outcome.failure, std::nullopt);
  EXPECT_GT(outcome.executions, 100u);
  std::set<std::string> failures;
  for (const void* word : outcome.words) {
    const auto without = model::explore(two_ids_at_once, {.relaxed = {word}});
    if (without.failure) failures.insert(*without.failure);
  }
  EXPECT_THAT(failures, testing::Contains("plain data is read while it may be written"));
}

// A reader that sees the first entry of a leader's batch finds all of it.
TEST(ControlBlockModel, ALeadersBatchIsReadWhole) {
  ControlBlockShape shape = kShape;
  shape.single_node = false;
  const auto outcome = model::explore([=] {
    auto control_blocks = std::make_shared<ControlBlocks>(shape);
    auto read = std::make_shared<std::array<Batches, 2>>();
    const auto reads = [=](int r) {
      (*read)[static_cast<std::size_t>(r)] = read_ids((*control_blocks)[r], 2);
    };
    return Program{.threads = {[=] {
                                 const Id ids[] = {1, 0};
                                 (*control_blocks)[0].push_run(ids);
                                 reads(0);
                               },
                               [=] { reads(1); }},
                   .at_end = [=] {
                     const Batches whole = {{1, 0}};
                     if ((*read)[0] != whole || (*read)[1] != whole) model::fail("in parts");
                   }};
  });
  EXPECT_EQ(outcome.failure, std::nullopt);
}

/// A ring that is used again and again: the writer is never more than the ring ahead.
Program ring_that_wraps(std::uint64_t capacity, std::uint64_t count) {
  struct Shared {
    SequenceRingHead head;
    SequenceRingEntry entries[2];
    Atomic<std::uint64_t> read;
  };
  static_assert(sizeof(Shared) <= Memory::kBytes);
  auto* const shared = reinterpret_cast<Shared*>(Memory::fresh());
  const auto ring = [=] { return SequenceRing(&shared->head, shared->entries, capacity); };
  return {.threads = {[=] {
                        for (std::uint64_t t = 0; t < count; ++t) {
                          while (shared->read.load(std::memory_order_acquire) + capacity <= t) {
                            model::spin();
                          }
                          const std::uint64_t ticket = ring().take_ticket();
                          ring().publish(ticket, 0, 100 + ticket, 0, 0);
                        }
                      },
                      [=] {
                        for (std::uint64_t t = 0; t < count; ++t) {
                          const SequenceRingEntry* entry = nullptr;
                          while (!(entry = ring().find(t))) model::spin();
                          if (entry->value != 100 + t) model::fail("another entry");
                          shared->read.store(t + 1, std::memory_order_release);
                        }
                      }}};
}

TEST(ControlBlockModel, ARingThatWrapsGivesEveryEntryOnce) {
  for (const std::uint64_t capacity : {1, 2}) {
    const auto outcome = model::explore([=] { return ring_that_wraps(capacity, 4); });
    EXPECT_EQ(outcome.failure, std::nullopt) << "of " << capacity << " entries";
    EXPECT_GT(outcome.executions, 1u);
  }
}

/// Sets of members that each launch once; whose launch is under way is plain data.
struct Devices {
  Devices() : memory(*new (Memory::fresh()) std::array<LaunchTicketLockMemory, 2>()) {}
  std::array<LaunchTicketLockMemory, 2>& memory;
  Plain<std::uint32_t> order[2];  ///< by device: the sets that have launched
};

Program two_sets() {
  auto devices = std::make_shared<Devices>();
  // Set 0 is on both devices, set 1 on both as well; the ranks ask in different orders.
  const auto rank = [=](int r) {
    return [=] {
      auto& memory = devices->memory;
      LaunchTicketLock lock[] = {LaunchTicketLock(memory[0], memory[0], r == 0, 2),
                                 LaunchTicketLock(memory[0], memory[1], r == 1, 2)};
      std::uint32_t order = 0;
      bool launched[2] = {};
      while (!launched[0] || !launched[1]) {
        bool any = false;
        for (const int set : {r, 1 - r}) {
          if (launched[set] || !lock[set].has_turn()) continue;
          order = order * 10 + static_cast<std::uint32_t>(set) + 1;
          lock[set].done();
          launched[set] = any = true;
        }
        if (!any) model::spin();
      }
      devices->order[r] = order;
    };
  };
  return {.threads = {rank(0), rank(1)}, .at_end = [=] {
            if (devices->order[0] != devices->order[1]) model::fail("devices in two orders");
          }};
}

TEST(ControlBlockModel, LaunchesOfTwoSetsComeInOneOrderOnBothDevices) {
  const auto outcome = model::explore(two_sets);
  EXPECT_EQ(outcome.failure, std::nullopt);
  EXPECT_GT(outcome.executions, 10u);
}

using Arrival = ReadyWords::Arrival;

/// A word for each of up to three ranks; the last arriver alone writes `ran`.
struct Words {
  Atomic<std::uint64_t> first;
  std::array<Atomic<std::uint64_t>, 2> others;
  Plain<int> ran;

  static Words* fresh() {
    static_assert(sizeof(Words) <= Memory::kBytes);
    return reinterpret_cast<Words*>(Memory::fresh());
  }
  ReadyWords of(std::uint32_t generation, int local_size) {
    return {{first, others.data()}, generation, local_size, 1};
  }
};

/// Every rank arrives, round by round; whoever is told so ends the round.
Program arrivals(int ranks, int rounds) {
  auto* const words = Words::fresh();
  const auto of_id = [=] { return words->of(0, ranks); };
  Program program;
  for (int rank = 0; rank < ranks; ++rank) {
    program.threads.emplace_back([=] {
      for (int round = 0; round < rounds; ++round) {
        if (of_id().arrive(rank) == Arrival::complete) {
          words->ran = words->ran + 1;
          of_id().end_round();
        }
        const bool is_last = round + 1 == rounds;
        while (!is_last && of_id().ranks()[static_cast<std::size_t>(rank)]) model::spin();
      }
    });
  }
  program.at_end = [=] {
    if (words->ran != rounds) model::fail("not one completion a round");
    if (of_id().ranks().any()) model::fail("ready after the last round");
  };
  return program;
}

TEST(ReadyWordsModel, OneOfThoseThatArriveAtOnceCompletesIt) {
  const auto three = [] { return arrivals(3, 1); };
  const auto outcome = model::explore(three);
  EXPECT_EQ(outcome.failure, std::nullopt);
  EXPECT_GT(outcome.executions, 10u);
  // Each fills its word, and then must see those of the others.
  bool any = false;
  for (const void* word : outcome.words) {
    any |= model::explore(three, {.without_total_order = {word}}).failure.has_value();
  }
  EXPECT_TRUE(any) << "of " << outcome.words.size() << " words";
}

// Who saw all words full, and was overtaken by another claim and a whole round, claims nothing.
TEST(ReadyWordsModel, RoundsThatFollowEachOtherCompleteOnceEach) {
  const auto outcome = model::explore([] { return arrivals(2, 2); });
  EXPECT_EQ(outcome.failure, std::nullopt);
  EXPECT_GT(outcome.executions, 10u);
}

TEST(ReadyWordsModel, ALookWhileTheRoundEndsSeesAllOrNobody) {
  const auto outcome = model::explore([] {
    auto* const words = Words::fresh();
    return Program{.threads = {[=] { words->of(0, 3).end_round(); },
                               [=] {
                                 const std::size_t seen = words->of(0, 3).ranks().count();
                                 if (seen != 0 && seen != 3) model::fail("a part of all");
                               }},
                   .at_begin =
                       [=] {
                         for (const int rank : {0, 1, 2}) words->of(0, 3).arrive(rank);
                       },
                   .at_end = {}};
  });
  EXPECT_EQ(outcome.failure, std::nullopt);
  EXPECT_GT(outcome.executions, 1u);
}

// A rank that arrives in the second word, while the leader gives the id up: complete, or given up.
TEST(ReadyWordsModel, AnIdIsCompleteOrGivenUp) {
  const auto outcome = model::explore([] {
    auto* const words = Words::fresh();
    auto complete = std::make_shared<int>(0);
    auto given_up = std::make_shared<bool>(false);
    const auto arrive = [=](int rank) {
      if (words->of(0, 2).arrive(rank) == Arrival::complete) {
        ++*complete;
        words->of(0, 2).end_round();
      }
    };
    return Program{.threads = {[=] { arrive(0); }, [=] { arrive(1); },
                               [=] {
                                 *given_up = words->of(0, 2).retire(false);
                                 if (*given_up && words->of(1, 2).ranks().any()) {
                                   model::fail("ready for the next id");
                                 }
                               }},
                   .at_end = [=] {
                     const bool is_next = words->of(1, 2).is_current();
                     if (*given_up != is_next) model::fail("given up, and not the next id");
                     if (!*given_up && *complete != 1) model::fail("neither");
                     if (words->of(1, 2).ranks().any()) model::fail("ready for the next id");
                   }};
  });
  EXPECT_EQ(outcome.failure, std::nullopt);
  EXPECT_GT(outcome.executions, 10u);
}

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

// A rank joins, and then checks; an arriver marks itself ready, and then checks whom to wake.
TEST_P(EverySleeper, IsWokenByAnArrivalOnceItHasJoined) {
  const Needed needed = needed_words([] {
    auto control_blocks = std::make_shared<ControlBlocks>();
    return Program{.threads = {[=] {
                                 NodeControlBlock& own = (*control_blocks)[0];
                                 own.set_joined(true);
                                 sleep_until(
                                     own, [&] { return own.ready_ranks(0).any(); }, GetParam());
                               },
                               [=] {
                                 NodeControlBlock& own = (*control_blocks)[1];
                                 own.arrive(0, {});
                                 if (own.any_joined()) own.signal(0);
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
