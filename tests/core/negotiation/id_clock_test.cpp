#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "core/negotiation/leader.h"
#include "core/negotiation/root_decisions.h"
#include "tests/core/negotiation/leader_under_test.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

/// A full clock over `capacity` ids, and when each has run.
struct Full {
  explicit Full(int capacity) : clock(capacity) {
    while (const auto id = clock.unused()) clock.assign(*id, 0);
  }
  std::optional<Id> next() {
    return clock.next(
        [&](Id id) {
          ++steps;
          return runs[slot_of(id)];
        },
        [&](Id id) { return !busy.contains(id); });
  }
  void run(Id id) { runs[slot_of(id)] = ++time; }

  IdClock clock;
  std::map<int, std::uint64_t> runs;  ///< by slot
  std::set<Id> busy;
  std::uint64_t time = 0;
  std::size_t steps = 0;
};

TEST(IdClock, GoesRoundAndLetsOffWhatHasRun) {
  Full full(4);
  full.run(0);
  full.run(2);
  EXPECT_EQ(full.next(), Id{1});
  EXPECT_EQ(full.next(), Id{3});
  EXPECT_EQ(full.next(), Id{0}) << "it has not run since the hand came by";
  full.run(2);
  EXPECT_EQ(full.next(), Id{1}) << "2 has run again";
}

TEST(IdClock, WhatIsAssignedHasARoundOfTime) {
  Full full(3);
  EXPECT_EQ(full.next(), Id{0});
  full.clock.assign(make_id(0, 1), 7);
  full.runs[0] = 7;
  EXPECT_EQ(full.next(), Id{1});
  EXPECT_EQ(full.next(), Id{2});
  EXPECT_EQ(full.next(), make_id(0, 1));
}

TEST(IdClock, FindsTheOneThatCanBeGivenUpOrNothing) {
  Full full(5);
  for (Id id = 0; id < 5; ++id) full.run(id);
  full.busy = {0, 1, 3, 4};
  EXPECT_EQ(full.next(), Id{2});
  full.busy.insert(2);
  full.steps = 0;
  EXPECT_EQ(full.next(), std::nullopt);
  EXPECT_LE(full.steps, 10u);
}

// What is in use is not given up while there is anything else, whatever the order of the rest.
TEST(IdClock, KeepsAWorkingSetBesideNamesThatComeAndGo) {
  constexpr int kCapacity = 64;
  Full full(kCapacity);
  auto random = test::generator();
  std::set<Id> working;
  while (working.size() < kCapacity / 2) working.insert(static_cast<Id>(random() % kCapacity));
  for (int round = 0; round < 1000; ++round) {
    for (const Id id : working) full.run(id);
    const auto given_up = full.next();
    ASSERT_TRUE(given_up);
    ASSERT_FALSE(working.contains(*given_up));
    const Id again = make_id(slot_of(*given_up), generation_of(*given_up) + 1);
    full.clock.assign(again, full.runs[slot_of(again)]);
  }
}

/// Asks for new names of a leader of one node, and counts its checks of its ids.
class NewNames : public testing::TestWithParam<int> {
 protected:
  NewNames()
      : leader_({{{0}}}, 0, GetParam(),
                {.retire = [this](Id, bool) { return ++questions_ > 0; },
                 .last_run =
                     [this](Id id) {
                       ++questions_;
                       return runs_[slot_of(id)];
                     },
                 .ready_ranks = [](Id) { return LocalRanks(); }}) {
    for (int i = 0; i < GetParam(); ++i) add();
    questions_ = 0;
  }
  Id add() {
    leader_.on_mail(0, test::report("t" + std::to_string(names_++), 8), Duration{});
    return leader_.take(Duration{}).decisions.at(0).assigned.at(0).id;
  }

  int names_ = 0;
  std::size_t questions_ = 0;
  std::map<int, std::uint64_t> runs_;  ///< by slot
  Leader leader_;
};
INSTANTIATE_TEST_SUITE_P(Capacities, NewNames, testing::Values(16, 1024, 16384));

TEST_P(NewNames, CostTheSameHoweverManyIdsThereAre) {
  constexpr std::size_t kNames = 3000;
  for (std::size_t i = 0; i < kNames; ++i) add();
  EXPECT_LE(questions_, 4 * kNames);
}

TEST_P(NewNames, PayForTheRunsBetweenThemAtMost) {
  constexpr std::size_t kNames = 3000;
  std::uint64_t time = 0;
  auto random = test::generator();
  for (std::size_t i = 0; i < kNames; ++i) {
    add();
    for (int run = 0; run < 3; ++run) {
      runs_[static_cast<int>(random() % static_cast<std::size_t>(GetParam()))] = ++time;
    }
  }
  EXPECT_LE(questions_, (4 + 3) * kNames);
}

}  // namespace
}  // namespace hora::internal
