#include "ops/cuda/functions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <array>
#include <random>
#include <utility>
#include <vector>

#include "ops/cuda/kernels.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_gpu/fake_gpu.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

TEST(CudaCheck, NamesTheCallAndClearsTheLastError) {
  test::FakeNcclWorld world;
  test::FakeGpu gpu(world);
  const CudaFunctions& cuda = gpu.cuda();
  test::expect_error(ErrorCode::transport, "cudaEventRecord failed: invalid argument (error 1)",
                     [&] { cuda_check(cuda, cudaErrorInvalidValue, "cudaEventRecord"); });
  test::expect_error(ErrorCode::out_of_memory, testing::HasSubstr("out of memory (error 2)"),
                     [&] { cuda_check(cuda, cudaErrorMemoryAllocation, "cudaMalloc"); });
  gpu.fail("set_device", 1, cudaErrorInvalidDevice);
  EXPECT_THROW(cuda_check(cuda, cuda.set_device(0), "cudaSetDevice"), Error);
  EXPECT_EQ(cuda.get_last_error(), cudaSuccess);
  gpu.fail("set_device", 1, cudaErrorInvalidDevice);
  cuda_check_release(cuda, cuda.set_device(0), "cudaSetDevice");
  EXPECT_EQ(cuda.get_last_error(), cudaSuccess);
}

TEST(LoadedLibraries, TwoCopiesAreRefusedByBothNames) {
  EXPECT_EQ(only_copy({}, "NCCL"), "");
  EXPECT_EQ(only_copy({"/opt/nccl/lib/libnccl.so.2"}, "NCCL"), "/opt/nccl/lib/libnccl.so.2");
  test::expect_error(
      ErrorCode::invalid_use,
      testing::AllOf(
          testing::HasSubstr("two copies of NCCL: /opt/libnccl.so.2 and /torch/libnccl.so.2"),
          testing::HasSubstr("LD_LIBRARY_PATH")),
      [] {
        only_copy({"/opt/libnccl.so.2", "/torch/libnccl.so.2"}, "NCCL");
      });
}

TEST(LoadedLibraries, NamesOfOneLibraryAndOfOthers) {
  for (const char* path : {"/l/libcudart.so", "/my project/of 2/libcudart.so.13.0.96",
                           "/l/libcudart-9335f6a2.so.11.0"}) {
    EXPECT_TRUE(is_library(path, "libcudart")) << path;
  }
  for (const char* path : {"", "/l/libcudart_static.so", "/l/libcudart-tools.so",
                           "/l/libcudart.sock", "/l/libcudart.so/train"}) {
    EXPECT_FALSE(is_library(path, "libcudart")) << path;
  }
}

// Addresses are only calculated with.
void* address(std::uintptr_t value) {
  return reinterpret_cast<void*>(value);
}

std::uintptr_t number(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

constexpr std::int64_t kFloats = tile_elements(4, 4);
TEST(CopyPlan, PiecesOfMoreThanTwoToThe31Elements) {
  const std::int64_t elements = (std::int64_t{1} << 36) + 3;
  const std::vector<CopyPiece> pieces = {{address(16), address(32), elements},
                                         {address(64), address(64), 1}};
  CopyLaunch launch;
  EXPECT_TRUE(fill_launch(pieces, kFloats, launch).empty());
  ASSERT_EQ(grid_size(launch), (1u << 24) + 2);
  const CopyTile tile = tile_of<4, 4>(launch, 1u << 24);
  EXPECT_EQ(number(tile.source), 16 + (std::uintptr_t{4} << 36));
  EXPECT_EQ(number(tile.target), 32 + (std::uintptr_t{4} << 36));
  EXPECT_EQ(tile.elements, 3);
}

TEST(CopyPlan, WhatCannotBeCopied) {
  const auto can = [](CopyPiece piece) { return can_be_copied(std::array{piece}, 4, 2); };
  EXPECT_TRUE(can({address(4), address(2), 1}));
  EXPECT_TRUE(can({nullptr, address(2), 1}));
  EXPECT_TRUE(can({nullptr, nullptr, 0}));
  EXPECT_TRUE(can({address(4), address(2), kMaximumTiles * kFloats}));
  EXPECT_FALSE(can({address(4), address(2), kMaximumTiles * kFloats + 1}));
  EXPECT_FALSE(can({address(4), address(2), -1}));
  EXPECT_FALSE(can({address(4), nullptr, 1}));
  EXPECT_FALSE(can({address(2), address(2), 1}));
  EXPECT_FALSE(can({address(4), address(1), 1}));
}

template <std::size_t kSource, std::size_t kTarget>
void check_vector_heads() {
  constexpr int kVector = vector_elements(kSource, kTarget);
  for (std::uintptr_t source = 64; source < 96; source += kSource) {
    for (std::uintptr_t target = 64; target < 96; target += kTarget) {
      int expected = -1;
      for (int head = kVector - 1; head >= 0; --head) {
        if ((source + head * kSource) % (kVector * kSource) == 0 &&
            (target + head * kTarget) % (kVector * kTarget) == 0) {
          expected = head;
        }
      }
      EXPECT_EQ((vector_head<kSource, kTarget>(source, target)), expected)
          << source << " to " << target;
      EXPECT_GE((vector_head<kSource, kTarget>(0, target)), 0) << "zeros to " << target;
    }
  }
}

TEST(CopyPlan, VectorsBeginWhereBothSidesAreAligned) {
  check_vector_heads<1, 1>();
  check_vector_heads<2, 2>();
  check_vector_heads<4, 4>();
  check_vector_heads<8, 8>();
  check_vector_heads<2, 4>();
  check_vector_heads<4, 2>();
  check_vector_heads<2, 8>();
  check_vector_heads<8, 4>();
}

TEST(CopyPlan, TilesCoverEachElementOnceInTheirOrderInFullLaunches) {
  auto generator = test::generator();
  for (int round = 0; round < 50; ++round) {
    constexpr std::uintptr_t kApart = 4096;
    std::vector<CopyPiece> pieces(std::uniform_int_distribution<std::size_t>(0, 400)(generator));
    std::vector<std::pair<std::uintptr_t, std::int64_t>> expected;
    for (std::uintptr_t at = 0; CopyPiece & piece : pieces) {
      at += std::uintptr_t{1} << 32;
      piece = {address(at + kApart), address(at),
               std::uniform_int_distribution<std::int64_t>(0, 20000)(generator)};
      if (piece.elements > 0) expected.emplace_back(at, piece.elements);
    }
    std::vector<std::pair<std::uintptr_t, std::int64_t>> covered;
    std::size_t launches = 0;
    for (std::span<const CopyPiece> rest = pieces; !rest.empty(); ++launches) {
      CopyLaunch launch;
      rest = fill_launch(rest, kFloats, launch);
      for (std::uint32_t block = 0; block < grid_size(launch); ++block) {
        const CopyTile tile = tile_of<4, 4>(launch, block);
        const std::uintptr_t target = number(tile.target);
        ASSERT_EQ(number(tile.source), target + kApart);
        if (covered.empty() || target != covered.back().first + 4 * static_cast<std::uintptr_t>(
                                                                        covered.back().second)) {
          covered.emplace_back(target, 0);
        }
        covered.back().second += tile.elements;
      }
    }
    EXPECT_EQ(covered, expected);
    EXPECT_LE(launches, expected.size() / CopyLaunch::kCapacity + 1);
  }
}

UpdatePiece piece_at(std::uintptr_t begin, std::int64_t elements) {
  const auto at = [&](std::uintptr_t array) { return address(begin + (array << 40)); };
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
      EXPECT_EQ(number(launch.parameter[tile.piece]), 0x1000 * seen);
      EXPECT_EQ(number(launch.state[2][tile.piece]), 0x1000 * seen + (std::uintptr_t{4} << 40));
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
