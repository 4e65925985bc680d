/// The control block's protocols in every order of every access: ready words, the log, tickets of
/// launches, sleeping and waking; and each word that must have its order without it: then the
/// explorer has to find what goes wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/control_block/shared_control_block.h"
#include "tests/support/model/explorer.h"

namespace hora::internal {
namespace {

using model::Program;

constexpr ControlBlockShape kShape{.local_size = 2,
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

using Body = std::function<void(NodeControlBlock&)>;

/// Two ranks of one control block, each with its view.
Program two_ranks(const Body& first, const Body& second, const std::function<void()>& at_end = {},
                  const Body& at_begin = {}, const ControlBlockShape& shape = kShape) {
  auto blocks = std::make_shared<test::SharedControlBlock>(shape, Memory::fresh());
  EXPECT_LE(blocks->memory().size(), Memory::kBytes);
  Program program{.threads = {[=] { first((*blocks)[0]); }, [=] { second((*blocks)[1]); }},
                  .at_begin = {},
                  .at_end = at_end};
  if (at_begin) program.at_begin = [=] { at_begin((*blocks)[0]), at_begin((*blocks)[1]); };
  return program;
}

/// Expects that no order fails, and that there are more than so many.
model::Outcome expect_right(const std::function<Program()>& program, std::size_t executions = 1) {
  auto outcome = model::explore(program);
  EXPECT_EQ(outcome.failure, std::nullopt);
  EXPECT_GT(outcome.executions, executions);
  return outcome;
}

/// Gives the failures of the program, each time with one word that has no place in that order.
std::vector<std::string> failures_without(std::set<const void*> model::Options::*order,
                                          const std::set<const void*>& words,
                                          const std::function<Program()>& program) {
  std::vector<std::string> failures;
  for (const void* word : words) {
    model::Options options;
    (options.*order).insert(word);
    if (auto failure = model::explore(program, options).failure) failures.push_back(*failure);
  }
  return failures;
}

// A leader gives an id up while its ranks arrive: it runs on both ranks, or on none.
TEST(ControlBlockModel, AnIdThatIsGivenUpHasRunOrIsStale) {
  expect_right([] {
    using enum ReadyWords::Arrival;
    auto arrivals = std::make_shared<std::array<NodeControlBlock::Arrival, 2>>();
    auto given_up = std::make_shared<bool>(false);
    return two_ranks(
        [=](NodeControlBlock& own) {
          (*arrivals)[0] = own.arrive(0, {});
          *given_up = own.retire(0, false);
          if (*given_up && own.ready_ranks(0).any()) model::fail("ready after it was given up");
        },
        [=](NodeControlBlock& own) { (*arrivals)[1] = own.arrive(0, {}); },
        [=] {
          const bool ran = (*arrivals)[0] == complete || (*arrivals)[1] == complete;
          const bool is_stale = (*arrivals)[1] == stale;
          if (ran && is_stale) model::fail("it ran without a rank");
          if (!ran && !is_stale) model::fail("both came, and it did not run");
          if (is_stale && !*given_up) model::fail("stale, but not given up");
        });
  });
}

/// Reads until a rank has seen so many ids; its batches.
using Batches = std::vector<std::vector<Id>>;
Batches read_ids(NodeControlBlock& control_block, std::size_t count) {
  Batches batches;
  for (std::size_t ids = 0; ids < count;) {
    if (auto batch = test::next_batch(control_block)) {
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
  auto read = std::make_shared<std::array<Batches, 2>>();
  const auto rank = [=](std::size_t r) {
    return [=](NodeControlBlock& own) {
      own.arrive(static_cast<Id>(1 - r), {});
      (*read)[r] = read_ids(own, 2);
    };
  };
  return two_ranks(
      rank(0), rank(1),
      [=] {
        const auto& [first, second] = *read;
        if (first != second) model::fail("batches differ");
        if (first.front().front() == first.back().back()) model::fail("one id twice");
      },
      [](NodeControlBlock& own) { own.arrive(static_cast<Id>(own.local_rank()), {}); });
}

TEST(ControlBlockModel, TwoIdsAtOnceComeInOneOrderAndInTheSameBatches) {
  const auto words = expect_right(two_ids_at_once, 100).words;
  EXPECT_THAT(failures_without(&model::Options::relaxed, words, two_ids_at_once),
              testing::Contains("plain data is read while it may be written"));
}

// A reader that sees the first entry of a leader's batch finds all of it.
TEST(ControlBlockModel, ALeadersBatchIsReadWhole) {
  ControlBlockShape shape = kShape;
  shape.single_node = false;
  expect_right([=] {
    const auto read = [](NodeControlBlock& own) {
      if (read_ids(own, 2) != Batches{{1, 0}}) model::fail("in parts");
    };
    return two_ranks(
        [=](NodeControlBlock& own) {
          own.push_run(std::vector<Id>{1, 0});
          read(own);
        },
        read, {}, {}, shape);
  });
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
    SCOPED_TRACE(capacity);
    expect_right([=] { return ring_that_wraps(capacity, 4); });
  }
}

// Two sets on both devices, whose ranks ask in different orders.
TEST(ControlBlockModel, LaunchesOfTwoSetsComeInOneOrderOnBothDevices) {
  const auto two_sets = [] {
    auto& memory = *new (Memory::fresh()) std::array<LaunchTicketLockMemory, 2>();
    auto order = std::make_shared<std::array<std::string, 2>>();  // by device: sets
    const auto rank = [=, &memory](int r) {
      return [=, &memory] {
        LaunchTicketLock lock[] = {LaunchTicketLock(memory[0], memory[0], r == 0, 2),
                                   LaunchTicketLock(memory[0], memory[1], r == 1, 2)};
        std::string launched;
        while (launched.size() < 2) {
          const std::size_t before = launched.size();
          for (const int set : {r, 1 - r}) {
            const char name = set == 0 ? 'a' : 'b';
            if (launched.find(name) != launched.npos || !lock[set].has_turn()) continue;
            launched += name;
            lock[set].done();
          }
          if (launched.size() == before) model::spin();
        }
        (*order)[static_cast<std::size_t>(r)] = launched;
      };
    };
    return Program{.threads = {rank(0), rank(1)}, .at_end = [=] {
                     if ((*order)[0] != (*order)[1]) model::fail("devices in two orders");
                   }};
  };
  expect_right(two_sets, 10);
}

using Arrival = ReadyWords::Arrival;

/// A word for each of up to three ranks; the last arriver alone writes `ran`.
struct Words {
  std::array<Atomic<std::uint64_t>, 3> words;
  Plain<int> ran;

  static Words* fresh() {
    static_assert(sizeof(Words) <= Memory::kBytes);
    return reinterpret_cast<Words*>(Memory::fresh());
  }
  ReadyWords of(std::uint32_t generation, int local_size) {
    return {words.data(), generation, local_size, 1};
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
  const auto words = expect_right(three, 10).words;
  // Each fills its word, and then must see those of the others.
  EXPECT_THAT(failures_without(&model::Options::without_total_order, words, three),
              testing::Not(testing::IsEmpty()));
}

// Who saw all words full, and was overtaken by another claim and a whole round, claims nothing.
TEST(ReadyWordsModel, RoundsThatFollowEachOtherCompleteOnceEach) {
  expect_right([] { return arrivals(2, 2); }, 10);
}

TEST(ReadyWordsModel, ALookWhileTheRoundEndsSeesAllOrNobody) {
  expect_right([] {
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
}

// A rank that arrives in the second word, while the leader gives the id up: complete, or given up.
TEST(ReadyWordsModel, AnIdIsCompleteOrGivenUp) {
  const auto program = [] {
    auto* const words = Words::fresh();
    auto complete = std::make_shared<int>(0);
    auto given_up = std::make_shared<bool>(false);
    const auto arrive = [=](int rank) {
      if (words->of(0, 2).arrive(rank) == Arrival::complete) {
        ++*complete;
        words->of(0, 2).end_round();
      }
    };
    const auto expect_none_ready = [=] {
      if (words->of(1, 2).ranks().any()) model::fail("ready for the next id");
    };
    return Program{.threads = {[=] { arrive(0); }, [=] { arrive(1); },
                               [=] {
                                 *given_up = words->of(0, 2).retire(false);
                                 if (*given_up) expect_none_ready();
                               }},
                   .at_end = [=] {
                     const bool is_next = words->of(1, 2).is_current();
                     if (*given_up != is_next) model::fail("given up, and not the next id");
                     if (!*given_up && *complete != 1) model::fail("neither");
                     expect_none_ready();
                   }};
  };
  expect_right(program, 10);
}

using Condition = std::function<bool(NodeControlBlock&)>;
using Sleeper = NodeControlBlock::Sleeper;

/// As an engine, or a caller in its place: sleeps until there is pending work.
void sleep_until(NodeControlBlock& own, const Condition& has_pending_work, Sleeper who) {
  if (who == Sleeper::caller) own.wakeup_flags().set_caller(true);
  while (!has_pending_work(own)) {
    own.wakeup_flags().sleep(who, [&]() -> WakeupFlags::SleepLength {
      return has_pending_work(own) ? WakeupFlags::kNoSleep : std::nullopt;
    });
  }
  if (who == Sleeper::caller) own.wakeup_flags().set_caller(false);
}

constexpr const char* kAsleep = "no thread can proceed: thread 0 sleeps, thread 1 has ended";

void nothing(NodeControlBlock&) {}

struct Wakeup {
  const char* by;
  Body prepare;
  Condition has_pending_work;
  Body wake;
  std::size_t words;  ///< so many at least must have their places in the total order
  Body then = nothing;
};

// The words: RankCell::done of the peer, SequenceRingEntry::sequence, and the one that says who
// sleeps. A rank joins, and then checks; an arriver marks itself ready, and then checks whom to
// wake.
TEST(WakeupFlagsModel, EverySleeperIsWokenByWhatItAwaits) {
  const Wakeup wakeups[] = {
      {"the unit that it awaits", [](NodeControlBlock& own) { own.set_done(1), own.await_done(1); },
       [](NodeControlBlock& own) { return own.done_by_all() >= 1; },
       [](NodeControlBlock& own) { own.set_done(1); }, 2},
      {"an entry of the log", nothing,
       [](NodeControlBlock& own) { return own.log_has_pending_work(); },
       [](NodeControlBlock& own) { own.push_run(std::vector<Id>{0}), own.signal_others(); }, 2},
      {"mail", nothing, [](NodeControlBlock& own) { return own.leader_has_pending_work(); },
       [](NodeControlBlock& own) { own.push_mail(std::vector<std::byte>(3)), own.signal(0); }, 2,
       [](NodeControlBlock& own) {
         if (!own.pop_mail(1)) model::fail("the mail is not there");
       }},
      {"an arrival once it has joined", [](NodeControlBlock& own) { own.set_joined(true); },
       [](NodeControlBlock& own) { return own.ready_ranks(0).any(); },
       [](NodeControlBlock& own) {
         own.arrive(0, {});
         if (own.any_joined()) own.signal(0);
       },
       3}};
  for (const Sleeper who : {Sleeper::engine, Sleeper::caller}) {
    for (const Wakeup& wakeup : wakeups) {
      SCOPED_TRACE(wakeup.by);
      const auto program = [&] {
        return two_ranks(
            [=](NodeControlBlock& own) {
              wakeup.prepare(own);
              sleep_until(own, wakeup.has_pending_work, who);
              wakeup.then(own);
            },
            wakeup.wake);
      };
      const auto failures = failures_without(&model::Options::without_total_order,
                                             expect_right(program).words, program);
      EXPECT_GE(failures.size(), wakeup.words);
      EXPECT_THAT(failures, testing::Each(kAsleep));
    }
  }
}

// The explorer finds a thread that checks before it announces that it sleeps.
TEST(WakeupFlagsModel, WhoLooksBeforeItAnnouncesItselfIsLost) {
  const auto outcome = model::explore([] {
    return two_ranks(
        [](NodeControlBlock& own) {
          own.set_done(1);
          own.await_done(1);
          while (own.done_by_all() < 1) {
            own.wakeup_flags().sleep(Sleeper::engine, [] { return std::nullopt; });
          }
        },
        [](NodeControlBlock& own) { own.set_done(1); });
  });
  EXPECT_EQ(outcome.failure, kAsleep);
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
  auto progress = std::make_shared<GuardedProgress>();
  const auto engine = [=](NodeControlBlock& own) {
    for (bool complete = false;;) {
      const auto look = [&] { complete = progress->started == 1 && own.done_by_all() >= 1; };
      progress->locked([&] {
        look();
        if (early) own.await_done(progress->started);
      });
      if (complete) return;
      own.wakeup_flags().sleep(Sleeper::engine, [&]() -> WakeupFlags::SleepLength {
        progress->locked([&] {
          if (!early) own.await_done(progress->started);
          look();
        });
        return complete ? WakeupFlags::kNoSleep : std::nullopt;
      });
    }
  };
  auto first = std::make_shared<NodeControlBlock*>(nullptr);
  Program program = two_ranks(
      engine, [](NodeControlBlock& own) { own.set_done(1); }, {},
      [=](NodeControlBlock& own) {
        if (own.local_rank() == 0) *first = &own;
      });
  program.threads.emplace_back([=] {
    progress->locked([&] {
      (*first)->wakeup_flags().set_caller(true);
      progress->started = 1;
      (*first)->set_done(1);
      (*first)->wakeup_flags().set_caller(false);
    });
    (*first)->signal(0);
  });
  return program;
}

TEST(WakeupFlagsModel, TheEngineFinishesWhatACallerHasBegunUnlessItChoosesBeforeItAnnouncesItself) {
  expect_right([] { return a_turn_that_ends(false); }, 100);
  EXPECT_EQ(model::explore([] { return a_turn_that_ends(true); }).failure,
            std::string(kAsleep) + ", thread 2 has ended");
}

}  // namespace
}  // namespace hora::internal
