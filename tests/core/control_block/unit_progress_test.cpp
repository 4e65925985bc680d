#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <thread>
#include <vector>

#include "core/control_block/node_progress.h"

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
}

TEST(UnitProgress, HoldsTheLongestUnitAndManyOfThem) {
  std::array<UnitProgressCell, 1> cells{};
  UnitProgress root(cells.data(), 0);
  const std::uint64_t unit = std::uint64_t{1} << 38;
  root.leave(unit, std::size_t{1} << 50);
  EXPECT_GT(root.readable(0, unit), std::size_t{64} << 30);
  EXPECT_LT(root.readable(0, unit), kAll);
  EXPECT_EQ(root.readable(0, unit + 1), 0U);
}

TEST(UnitProgress, WhatIsReadableHasBeenWritten) {
  std::array<UnitProgressCell, 2> cells{};
  constexpr std::size_t kSteps = 50;
  constexpr std::uint64_t kUnits = 20;
  std::vector<std::uint64_t> values(kSteps, 0);
  std::array<std::atomic<std::uint64_t>, 1> followed{};
  std::jthread writer([&] {
    UnitProgress root(cells.data(), 0);
    for (std::uint64_t unit = 1; unit <= kUnits; ++unit) {
      for (std::size_t i = 0; i < kSteps; ++i) {
        values[i] = unit;
        root.leave(unit, (i + 1) * kStep);
      }
      root.leave_all(unit);
      while (followed[0].load() < unit) std::this_thread::yield();
    }
  });
  const UnitProgress other(cells.data(), 1);
  for (std::uint64_t unit = 1; unit <= kUnits; ++unit) {
    for (std::size_t next = 0; next < kSteps;) {
      const std::size_t readable = other.readable(0, unit);
      for (; next < kSteps && (next + 1) * kStep <= readable; ++next) {
        ASSERT_EQ(values[next], unit);
      }
      std::this_thread::yield();
    }
    followed[0].store(unit);
  }
}

}  // namespace
}  // namespace hora::internal
