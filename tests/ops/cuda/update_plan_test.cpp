#include <gtest/gtest.h>

#include <vector>

#include "ops/cuda/batched_update.h"

namespace hora::internal {
namespace {

/// Addresses are only calculated with.
UpdatePiece piece_at(std::uintptr_t address, std::int64_t elements) {
  const auto at = [&](std::uintptr_t array) {
    return reinterpret_cast<void*>(address + (array << 40));
  };
  return {at(0), at(1), {at(2), at(3), at(4)}, elements};
}

constexpr std::int64_t kTile = 4096;

TEST(UpdatePlan, ManyPiecesTakeSeveralLaunchesInTheirOrder) {
  std::vector<UpdatePiece> pieces;
  for (std::uintptr_t i = 0; i < 2 * UpdateLaunch::kCapacity + 1; ++i) {
    pieces.push_back(piece_at(0x1000 * (i + 1), 2 * kTile + 5));
    pieces.push_back({});
  }
  std::span<const UpdatePiece> rest = pieces;
  std::uintptr_t seen = 0;
  int launches = 0;
  while (!rest.empty()) {
    UpdateLaunch launch;
    rest = fill_launch(rest, 4, launch);
    if (grid_size(launch) == 0) continue;
    ++launches;
    for (std::uint32_t block = 0; block < grid_size(launch); ++block) {
      const Tile tile = tile_in(launch, block, kTile);
      if (block % 3 == 0) ++seen;
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(launch.parameter[tile.piece]), 0x1000 * seen);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(launch.state[2][tile.piece]),
                0x1000 * seen + (std::uintptr_t{4} << 40));
      EXPECT_EQ(tile.first, block % 3 * kTile);
      EXPECT_EQ(tile.elements, block % 3 == 2 ? 5 : kTile);
    }
  }
  EXPECT_EQ(launches, 3);
  EXPECT_EQ(seen, 2 * UpdateLaunch::kCapacity + 1);
}

TEST(UpdatePlan, WhatAStepNeedsMustBeThereAndAligned) {
  const auto can = [](UpdatePiece piece, int states, std::size_t element = 4) {
    return can_be_updated({&piece, 1}, element, states);
  };
  EXPECT_TRUE(can(piece_at(0x1000, 10), 3));
  EXPECT_TRUE(can({}, 3)) << "empty";
  EXPECT_FALSE(can(piece_at(0x1000, -1), 0));
  EXPECT_FALSE(can(piece_at(0x1002, 1), 0));
  EXPECT_FALSE(can(piece_at(0x1004, 1), 0, 8));
  EXPECT_FALSE(can(piece_at(0x1000, kMaximumTiles * kTile + 1), 0));
  UpdatePiece piece = piece_at(0x1000, 10);
  piece.state[1] = nullptr;
  EXPECT_TRUE(can(piece, states_of(SgdStep{.momentum = 0.9})));
  EXPECT_FALSE(can(piece, states_of(AdamStep{})));
  piece.gradient = nullptr;
  EXPECT_FALSE(can(piece, states_of(SgdStep{})));
}

}  // namespace
}  // namespace hora::internal
