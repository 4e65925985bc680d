#include "core/control_block/node_progress.h"

#include <gtest/gtest.h>

#include <thread>

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

TEST(UnitProgress, WhatIsReadableHasBeenWritten) {
  std::array<UnitProgressCell, 2> cells{};
  constexpr std::size_t kSteps = 50;
  constexpr std::uint64_t kUnits = 20;
  std::vector<std::uint64_t> values(kSteps, 0);
  std::atomic<std::uint64_t> followed{};
  std::jthread writer([&] {
    UnitProgress root(cells.data(), 0);
    for (std::uint64_t unit = 1; unit <= kUnits; ++unit) {
      for (std::size_t i = 0; i < kSteps; ++i) {
        values[i] = unit;
        root.leave(unit, (i + 1) * kStep);
      }
      root.leave_all(unit);
      while (followed.load() < unit) std::this_thread::yield();
    }
  });
  const UnitProgress other(cells.data(), 1);
  for (std::uint64_t unit = 1; unit <= kUnits; ++unit) {
    for (std::size_t next = 0; next < kSteps;) {
      const std::size_t readable = other.readable(0, unit);
      for (; next < kSteps && (next + 1) * kStep <= readable; ++next) ASSERT_EQ(values[next], unit);
      std::this_thread::yield();
    }
    followed.store(unit);
  }
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
  {
    std::vector<std::jthread> threads;
    for (std::size_t f = 0; f < followed.size(); ++f) {
      threads.emplace_back([&, f] {
        StartOrder follower(*memory, false);
        while (seen[f].size() < kSteps) {
          for (const char c : {'r', 'g'}) {
            if (!follower.allows(step_of(c))) continue;
            follower.start(step_of(c));
            seen[f] += c;
            followed[f].fetch_add(1);
          }
          std::this_thread::yield();
        }
      });
    }
    StartOrder leader(*memory, true);
    for (std::size_t i = 0; i < kSteps; ++i) {
      for (const auto& position : followed) {
        while (position.load() + kAhead < i) std::this_thread::yield();
      }
      leader.start(step_of(order[i]));
    }
  }
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
  std::vector<std::uint64_t> wrong(kRanks, 0);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        ExchangeRounds rounds = control_block[rank].exchange_rounds();
        const auto own_rank = static_cast<std::size_t>(rank);
        std::uint64_t filled = 0;
        for (std::uint64_t copied = 0; copied < kRounds;) {
          if (rank < kOwners && filled < kRounds && rounds.may_fill(filled)) {
            staging[own_rank][ExchangeRounds::slot(filled)] = filled;
            rounds.publish(filled, place(filled));
            ++filled;
          } else if (rounds.published(copied, kOwners)) {
            for (int owner = 0; owner < kOwners; ++owner) {
              const std::uint64_t value =
                  staging[static_cast<std::size_t>(owner)][ExchangeRounds::slot(copied)];
              if (value != copied || rounds.staging(owner, copied) != place(copied))
                ++wrong[own_rank];
            }
            rounds.copied(copied++);
          } else {
            std::this_thread::yield();
          }
        }
      });
    }
  }
  EXPECT_EQ(wrong, std::vector<std::uint64_t>(kRanks, 0));
}

}  // namespace
}  // namespace hora::internal
