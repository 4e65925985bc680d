#include "ops/shm/shared_memory.h"

#include <gtest/gtest.h>
#include <hora/error.h>

#include <cstring>
#include <set>
#include <thread>

#include "tests/ops/shm/child_process.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

constexpr std::size_t kSmall = 64 << 10;

/// Two ranks of one node in one process.
struct Pair {
  Pair() {
    std::vector<Window> of_a(2);
    std::vector<Window> of_b(2);
    of_a[1] = SharedMemory::open_first(b.ticket());
    of_b[0] = SharedMemory::open_first(a.ticket());
    a.connect(0, std::move(of_a));
    b.connect(1, std::move(of_b));
  }
  SharedMemory a{kSmall};
  SharedMemory b{kSmall};
};

void fill(const NodeMemory::MemoryBlock& block, int value, std::size_t bytes) {
  std::memset(block.data, value, bytes);
}

bool holds(const std::byte* data, int value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) {
    if (data[i] != static_cast<std::byte>(value)) return false;
  }
  return true;
}

TEST(SharedMemory, GrowsByWindowsAndPeersOpenThemWhenAsked) {
  Pair ranks;
  std::set<std::uint32_t> windows;
  std::vector<NodeMemory::MemoryBlock> blocks;
  for (int i = 0; i < 12; ++i) {
    blocks.push_back(ranks.a.allocate(kSmall / 2 + static_cast<std::size_t>(i) * 1000));
    windows.insert(blocks.back().location.window);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(blocks.back().data) % 64, 0u);
    fill(blocks.back(), i + 1, kSmall / 2);
  }
  EXPECT_GE(windows.size(), 3u);
  // The last one first: windows in between are opened later, or never.
  for (std::size_t i = blocks.size(); i-- > 0;) {
    std::byte* const seen = ranks.b.address(0, blocks[i].location, kSmall / 2);
    EXPECT_NE(seen, blocks[i].data) << "a mapping of its own";
    EXPECT_TRUE(holds(seen, static_cast<int>(i) + 1, kSmall / 2));
    seen[7] = std::byte{99};
    EXPECT_EQ(blocks[i].data[7], std::byte{99});
    EXPECT_EQ(ranks.a.address(0, blocks[i].location, kSmall / 2), blocks[i].data);
    EXPECT_EQ(ranks.b.address(0, blocks[i].location, kSmall / 2), seen) << "mapped once";
  }
}

TEST(SharedMemory, ABlockLargerThanEverythingGetsAWindowThatHoldsIt) {
  Pair ranks;
  const std::size_t bytes = 40 * kSmall;
  const auto block = ranks.a.allocate(bytes);
  fill(block, 5, bytes);
  EXPECT_TRUE(holds(ranks.b.address(0, block.location, bytes), 5, bytes));
}

TEST(SharedMemory, AForkedChildHasACopyOfItsOwn) {
  Pair ranks;
  const auto first = ranks.a.allocate(1000);
  const auto later = ranks.a.allocate(3 * kSmall);
  fill(first, 1, 1000);
  fill(later, 2, 3 * kSmall);
  test::ChildProcess child([&] {
    if (!holds(first.data, 1, 1000) || !holds(later.data, 2, 3 * kSmall)) return 1;
    fill(first, 8, 1000);
    fill(later, 9, 3 * kSmall);
    return holds(later.data, 9, 3 * kSmall) ? 0 : 2;
  });
  EXPECT_EQ(child.wait(), 0);
  EXPECT_TRUE(holds(first.data, 1, 1000));
  EXPECT_TRUE(holds(later.data, 2, 3 * kSmall));
  EXPECT_TRUE(holds(ranks.b.address(0, later.location, 3 * kSmall), 2, 3 * kSmall));
}

TEST(SharedMemory, FindsWhatLiesInItsWindows) {
  Pair ranks;
  const auto first = ranks.a.allocate(1000);
  const auto later = ranks.a.allocate(3 * kSmall);
  EXPECT_EQ(ranks.a.find(first.data, 1000), first.location);
  const auto inside = ranks.a.find(later.data + 640, 100);
  ASSERT_TRUE(inside.has_value());
  EXPECT_EQ(inside->window, later.location.window);
  EXPECT_EQ(inside->offset, later.location.offset + 640);
  EXPECT_EQ(ranks.a.address(0, *inside, 100), later.data + 640);

  std::vector<std::byte> elsewhere(100);
  EXPECT_FALSE(ranks.a.find(elsewhere.data(), 100).has_value());
  EXPECT_FALSE(ranks.b.find(first.data, 100).has_value()) << "another rank's";
  EXPECT_FALSE(ranks.a.find(first.data, 100 * kSmall).has_value()) << "it ends outside";
}

TEST(SharedMemory, ReleasedMemoryIsUsedAgain) {
  Pair ranks;
  std::set<std::uint32_t> windows;
  for (int i = 0; i < 100; ++i) {
    const auto block = ranks.a.allocate(kSmall / 2);
    windows.insert(block.location.window);
    ranks.a.release(block.data);
  }
  EXPECT_EQ(windows, std::set<std::uint32_t>{0});
  std::byte stranger{};
  ranks.a.release(&stranger);
}

TEST(SharedMemory, AWindowThatAPeerDoesNotHaveIsAnError) {
  Pair ranks;
  for (const std::uint32_t window : {1u, 63u, 64u, 1u << 30}) {
    EXPECT_THROW(ranks.b.address(0, {.window = window, .reserved = 0, .offset = 8192}, 1), Error);
  }
  const auto block = ranks.a.allocate(3 * kSmall);
  EXPECT_NO_THROW(ranks.b.address(0, block.location, 3 * kSmall)) << "now there is one";
}

TEST(SharedMemory, WhatLiesOutsideOfAPeersWindowIsAnError) {
  Pair ranks;
  const std::uint64_t end = ranks.a.ticket().bytes;
  const auto address = [&](SharedMemory& memory, std::uint64_t offset, std::size_t bytes) {
    return memory.address(0, {.window = 0, .reserved = 0, .offset = offset}, bytes);
  };
  for (SharedMemory* memory : {&ranks.a, &ranks.b}) {
    EXPECT_NO_THROW(address(*memory, end - 100, 100));
    EXPECT_THROW(address(*memory, end - 100, 101), Error);
    EXPECT_THROW(address(*memory, end, 1), Error);
    EXPECT_THROW(address(*memory, end + 4096, 0), Error);
    EXPECT_THROW(address(*memory, ~std::uint64_t{0} - 10, 100), Error) << "wraps";
    EXPECT_THROW(address(*memory, end - 100, SIZE_MAX), Error) << "wraps";
    EXPECT_THROW(address(*memory, 0, 100), Error) << "the window's own header";
  }
}

TEST(SharedMemory, MoreThanCanBeAddressedIsOutOfMemory) {
  SharedMemory memory(kSmall);
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 62, SIZE_MAX - 9000, SIZE_MAX / 2}) {
    EXPECT_THROW(memory.allocate(bytes), Error) << bytes;
  }
  EXPECT_NO_THROW(memory.allocate(100));
}

TEST(SharedMemory, AnotherProcessOpensLaterWindowsByItself) {
  SharedMemory parent(kSmall);
  const auto early = parent.allocate(100);
  fill(early, 3, 100);
  int to_child[2];
  ASSERT_EQ(::pipe(to_child), 0);
  test::ChildProcess child([&] {
    SharedMemory own(kSmall);
    std::vector<Window> windows(2);
    windows[0] = SharedMemory::open_first(parent.ticket());
    own.connect(1, std::move(windows));
    if (!holds(own.address(0, early.location, 100), 3, 100)) return 1;
    Location later;  // made after this process began
    if (::read(to_child[0], &later, sizeof later) != sizeof later) return 2;
    std::byte* const data = own.address(0, later, 5 * kSmall);
    if (!holds(data, 4, 5 * kSmall)) return 3;
    std::memset(data, 5, 5 * kSmall);
    return 0;
  });
  const auto later = parent.allocate(5 * kSmall);
  fill(later, 4, 5 * kSmall);
  ASSERT_EQ(::write(to_child[1], &later.location, sizeof later.location),
            static_cast<ssize_t>(sizeof later.location));
  EXPECT_EQ(child.wait(), 0);
  EXPECT_TRUE(holds(later.data, 5, 5 * kSmall));
  for (const int end : to_child) ::close(end);
}

TEST(SharedMemory, ThreadsAllocateFindAndLookAtOnce) {
  Pair ranks;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(test::seed() + static_cast<std::uint64_t>(t));
      for (int i = 0; i < 300; ++i) {
        const std::size_t bytes = 1 + random() % (kSmall / 4);
        const auto block = ranks.a.allocate(bytes);
        fill(block, t + 1, bytes);
        EXPECT_EQ(ranks.a.find(block.data, bytes), block.location);
        EXPECT_TRUE(holds(ranks.b.address(0, block.location, bytes), t + 1, bytes));
        if (random() % 4 != 0) ranks.a.release(block.data);
      }
    });
  }
}

}  // namespace
}  // namespace hora::internal
