// The control block's protocols in every order of every access: ready words, the log and tickets of
// launches. Sleeping and waking: wakeup_flags_model_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/control_block/node_control_block.h"
#include "tests/core/control_block/model_control_blocks.h"
#include "tests/support/model/explorer.h"

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

/// What a rank reads until it has seen so many ids, batch by batch.
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

}  // namespace
}  // namespace hora::internal
