#include "core/control_block/node_progress.h"

#include <gtest/gtest.h>

#include "tests/core/control_block/shared_control_block.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

constexpr std::size_t kStep = UnitProgress::kStep;
constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

TEST(UnitProgress, TellsWholeStepsOfTheUnitUnderWay) {
  std::array<UnitProgressCell, 2> cells{};
  UnitProgress root(cells.data(), 1);
  const UnitProgress other(cells.data(), 0);
  EXPECT_EQ(other.readable(1, 1), 0U);
  root.leave(7, 3 * kStep + 5);
  EXPECT_EQ(other.readable(1, 7), 3 * kStep);
  EXPECT_EQ(other.readable(1, 6), kAll);
  EXPECT_EQ(other.readable(1, 8), 0U);
  EXPECT_EQ(other.readable(0, 7), 0U);
  root.leave_all(7);
  EXPECT_EQ(other.readable(1, 7), kAll);
  EXPECT_EQ(other.readable(1, 8), 0U);
  // The longest unit, and many of them.
  const std::uint64_t unit = std::uint64_t{1} << 38;
  root.leave(unit, std::size_t{1} << 50);
  EXPECT_GT(root.readable(1, unit), std::size_t{64} << 30);
  EXPECT_LT(root.readable(1, unit), kAll);
  EXPECT_EQ(root.readable(1, unit + 1), 0U);
}

using Step = StartOrder::Step;

// The leader stays within what the pipeline's slots allow, and goes round the ring several times.
TEST(StartOrder, IsTheSameOnAllThreads) {
  constexpr std::size_t kSteps = 2 * StartOrderMemory::kCapacity + 100;
  constexpr std::uint64_t kAhead = 64;
  const auto memory = std::make_unique<StartOrderMemory>();
  std::string order;
  auto random = test::generator();
  for (std::size_t i = 0; i < kSteps; ++i) order += random() % 2 == 0 ? 'r' : 'g';
  const auto step_of = [](char c) { return c == 'r' ? Step::reduce_scatter : Step::all_gather; };

  std::vector<std::atomic<std::uint64_t>> followed(2);
  std::vector<std::string> seen(followed.size());
  test::on_threads(3, [&](int number) {
    StartOrder mine(*memory, number == 2);
    for (std::size_t i = 0; number == 2 && i < kSteps; ++i) {
      for (const auto& position : followed) {
        while (position.load() + kAhead < i) std::this_thread::yield();
      }
      mine.start(step_of(order[i]));
    }
    if (number == 2) return;
    const auto own = static_cast<std::size_t>(number);
    while (seen[own].size() < kSteps) {
      for (const char c : {'r', 'g'}) {
        if (!mine.allows(step_of(c))) continue;
        mine.start(step_of(c));
        seen[own] += c;
        followed[own].fetch_add(1);
      }
      std::this_thread::yield();
    }
  });
  for (const std::string& sequence : seen) EXPECT_EQ(sequence, order);
}

Location place(std::uint64_t offset) {
  return {.window = 0, .reserved = 0, .offset = offset};
}

// Every copier reads what an owner has written before it published, however far apart they are.
TEST(ExchangeRounds, OrdersWhatOwnersWriteAndOthersRead) {
  constexpr int kRanks = 3;
  constexpr int kOwners = 2;
  constexpr std::uint64_t kRounds = 20000;
  test::SharedControlBlock control_block({.local_size = kRanks, .id_capacity = 8});
  std::array<std::array<std::uint64_t, ExchangeRoundsCell::kSlots>, kOwners> staging{};
  std::atomic<std::uint64_t> wrong{0};
  test::on_threads(kRanks, [&](int rank) {
    ExchangeRounds rounds = control_block[rank].exchange_rounds();
    std::uint64_t filled = 0;
    for (std::uint64_t copied = 0; copied < kRounds;) {
      if (rank < kOwners && filled < kRounds && rounds.may_fill(filled)) {
        staging[static_cast<std::size_t>(rank)][ExchangeRounds::slot(filled)] = filled;
        rounds.publish(filled, place(filled));
        ++filled;
      } else if (rounds.published(copied, kOwners)) {
        for (int owner = 0; owner < kOwners; ++owner) {
          const auto& of_owner = staging[static_cast<std::size_t>(owner)];
          wrong += of_owner[ExchangeRounds::slot(copied)] != copied;
          wrong += rounds.staging(owner, copied) != place(copied);
        }
        rounds.copied(copied++);
      } else {
        std::this_thread::yield();
      }
    }
  });
  EXPECT_EQ(wrong, 0U);
}

// Overlapping sets of four ranks: whatever two of them have in common gets the sets' launches in
// one order. The ranks poll their sets in random order.
TEST(LaunchTicketLock, GiveEveryDeviceTheSameOrder) {
  constexpr int kRanks = 4;
  constexpr int kLaunches = 400;
  const std::vector<std::vector<int>> sets = {{0, 1, 2, 3}, {0, 1}, {1, 2}, {2, 3}, {0, 2, 3}, {3}};
  std::deque<LaunchTicketLockMemory> memory(sets.size());
  std::vector<std::vector<std::size_t>> got(kRanks);  // sets by rank, in the order of launches
  test::on_threads(kRanks, [&](int rank) {
    struct SetLock {
      std::size_t set;
      LaunchTicketLock lock;
      int left = kLaunches;
    };
    std::vector<std::unique_ptr<SetLock>> locks;
    for (std::size_t s = 0; s < sets.size(); ++s) {
      if (std::ranges::find(sets[s], rank) == sets[s].end()) continue;
      locks.emplace_back(
          new SetLock{s, LaunchTicketLock(memory[0], memory[s], rank == sets[s].front(),
                                          static_cast<int>(sets[s].size()))});
    }
    auto random = test::generator(static_cast<std::uint64_t>(rank));
    while (!locks.empty()) {
      std::ranges::shuffle(locks, random);
      for (const auto& each : locks) {
        if (!each->lock.has_turn()) continue;
        got[static_cast<std::size_t>(rank)].push_back(each->set);
        each->lock.done();
        --each->left;
      }
      std::erase_if(locks, [](const auto& each) { return each->left == 0; });
      std::this_thread::yield();
    }
  });
  for (std::size_t a = 0; a < kRanks; ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      const auto has = [&](std::size_t set, std::size_t rank) {
        return std::ranges::find(sets[set], static_cast<int>(rank)) != sets[set].end();
      };
      std::vector<std::size_t> of_a = got[a], of_b = got[b];
      std::erase_if(of_a, [&](std::size_t set) { return !has(set, b); });
      std::erase_if(of_b, [&](std::size_t set) { return !has(set, a); });
      EXPECT_EQ(of_a, of_b) << "ranks " << a << " and " << b;
      EXPECT_GE(of_a.size(), std::size_t{kLaunches});
    }
  }
}

}  // namespace
}  // namespace hora::internal
