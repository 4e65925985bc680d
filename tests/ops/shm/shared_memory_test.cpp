#include "ops/shm/shared_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

TEST(BlockAllocator, TakesTheSmallestBlockThatFits) {
  BlockAllocator allocator;
  allocator.add_segment(4096, 1024);
  allocator.add_segment(0, 256);
  EXPECT_EQ(allocator.allocate(200), (BlockAllocator::SegmentBlock{1, 0}));
  EXPECT_EQ(allocator.allocate(200), (BlockAllocator::SegmentBlock{0, 4096}));
}

TEST(BlockAllocator, RandomUseAgainstAModel) {
  auto random = test::generator();
  for (int run = 0; run < 20; ++run) {
    BlockAllocator allocator;
    constexpr std::uint64_t kBegin = 8192;
    constexpr std::uint64_t kBytes = 64 * 500;
    const auto segments = static_cast<std::uint32_t>(1 + random() % 3);
    for (std::uint32_t s = 0; s < segments; ++s) allocator.add_segment(kBegin, kBytes);
    std::vector<std::vector<bool>> taken(segments, std::vector<bool>(kBytes));
    std::vector<std::pair<BlockAllocator::SegmentBlock, std::size_t>> open;
    /// True where all of it was `before`, and is the opposite from now on.
    const auto turn = [&](const BlockAllocator::SegmentBlock& block, std::size_t bytes,
                          bool before) {
      const auto begin = taken[block.segment].begin() + static_cast<long>(block.offset - kBegin);
      const auto end = begin + static_cast<long>(bytes);
      const bool all = std::count(begin, end, before) == end - begin;
      std::fill(begin, end, !before);
      return all;
    };
    int refused = 0;
    for (int step = 0; step < 5000; ++step) {
      if (random() % 100 < 55) {
        const std::size_t bytes = random() % 3 == 0 ? random() % 5000 : random() % 200;
        const auto block = allocator.allocate(bytes);
        if (!block) {
          ++refused;
          continue;
        }
        ASSERT_EQ(block->offset % 64, 0u);
        ASSERT_LT(block->segment, segments);
        ASSERT_GE(block->offset, kBegin);
        ASSERT_LE(block->offset + bytes, kBegin + kBytes);
        open.emplace_back(*block, std::max<std::size_t>(bytes, 1));
        ASSERT_TRUE(turn(*block, open.back().second, false)) << "blocks overlap";
      } else if (!open.empty()) {
        std::swap(open[random() % open.size()], open.back());
        turn(open.back().first, open.back().second, true);
        allocator.release(open.back().first);
        open.pop_back();
      }
      ASSERT_EQ(allocator.blocks_in_use(), open.size());
    }
    EXPECT_GT(refused, 0) << "the run never filled the segments";
    for (const auto& [block, bytes] : open) allocator.release(block);
    for (std::uint32_t s = 0; s < segments; ++s) {
      EXPECT_TRUE(allocator.allocate(kBytes).has_value()) << "the free blocks are whole again";
    }
    EXPECT_FALSE(allocator.allocate(1).has_value());
  }
}

using testing::HasSubstr;

constexpr std::size_t kBytes = Window::kHeaderBytes + 100000;

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator begin("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin, {}));
}

TEST(Window, IsZeroBehindItsHeaderForItsUserAloneAndKeepsItsLength) {
  const Window window(kBytes);
  ASSERT_EQ(window.size(), kBytes);
  EXPECT_EQ(window.ticket().bytes, kBytes);
  EXPECT_EQ(window.ticket().pid, ::getpid());
  EXPECT_THAT(std::span(window.data() + Window::kHeaderBytes, window.data() + kBytes),
              testing::Each(std::byte{0}));
  const int descriptor = window.ticket().descriptor;
  struct stat status {};
  ASSERT_EQ(::fstat(descriptor, &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  EXPECT_NE(::ftruncate(descriptor, 4096), 0) << "a peer that reads it would get SIGBUS";
  EXPECT_NE(::ftruncate(descriptor, 2 * kBytes), 0);
  EXPECT_NE(::fcntl(descriptor, F_ADD_SEALS, F_SEAL_WRITE), 0);
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  EXPECT_THAT(std::filesystem::read_symlink(link).string(), HasSubstr("hora.window"));
}

TEST(Window, AnotherFileOrProcessBehindTheTicketIsRefused) {
  const Window window(kBytes);
  const Window other(kBytes);
  const int resizable = ::memfd_create("test", MFD_CLOEXEC);  // its length may change
  ASSERT_EQ(::ftruncate(resizable, kBytes), 0);
  const int device = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  test::ChildProcess child([] { return 0; });
  const pid_t gone = child.pid();
  ASSERT_EQ(child.wait(), 0);
  const std::size_t before = open_descriptors();
  const auto expect_refused = [&](auto WindowTicket::*member, auto value, const std::string& text) {
    WindowTicket ticket = window.ticket();
    ticket.*member = value;
    test::expect_error(ErrorCode::transport, HasSubstr(text), [&] { const Window opened(ticket); });
  };
  expect_refused(&WindowTicket::pid, gone, "/proc/" + std::to_string(gone) + "/fd/");
  expect_refused(&WindowTicket::bytes, kBytes + 64, "not the peer's window");
  expect_refused(&WindowTicket::bytes, 16U, "not the peer's window");
  expect_refused(&WindowTicket::descriptor, other.ticket().descriptor, "nonce differs");
  for (const int descriptor : {device, resizable}) {
    expect_refused(&WindowTicket::descriptor, descriptor, "not the peer's window");
  }
  EXPECT_EQ(open_descriptors(), before);
  for (const int descriptor : {device, resizable}) ::close(descriptor);
}

TEST(Window, MoreMemoryThanThereIsIsAnErrorAndNotAKill) {
  const std::uint64_t available = available_memory();
  ASSERT_GT(available, 0u);
  test::expect_error(ErrorCode::out_of_memory,
                     testing::AllOf(HasSubstr("MiB wanted"), HasSubstr("fewer ranks per node")),
                     [&] { const Window window(available + (std::size_t{1} << 30)); });
}

constexpr std::size_t kSmall = 64 << 10;

/// Two ranks of one node in one process.
struct Pair {
  Pair() {
    std::vector<Window> of_a(2);
    std::vector<Window> of_b(2);
    of_a[1] = Window(b.ticket());
    of_b[0] = Window(a.ticket());
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
  return std::all_of(data, data + bytes,
                     [&](std::byte each) { return each == static_cast<std::byte>(value); });
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

TEST(SharedMemory, FindsWhatLiesInItsWindowsAndRefusesWhatLiesOutsideOfAPeers) {
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

  const std::uint64_t end = ranks.a.ticket().bytes;
  constexpr std::uint64_t kLast = ~std::uint64_t{0} - 10;
  for (SharedMemory* memory : {&ranks.a, &ranks.b}) {
    EXPECT_NO_THROW(memory->address(0, {.offset = end - 100}, 100));
    // The last one is the window's own header; those before it wrap.
    for (const auto& [offset, bytes] : {std::pair{end - 100, std::size_t{101}},
                                        {end, 1},
                                        {end + 4096, 0},
                                        {kLast, 100},
                                        {end - 100, SIZE_MAX},
                                        {0, 100}}) {
      EXPECT_THROW(memory->address(0, {.offset = offset}, bytes), Error) << offset;
    }
  }
  for (const std::uint32_t window : {2u, 63u, 64u, 1u << 30, kNowhere.window}) {
    EXPECT_THROW(ranks.b.address(0, {.window = window, .offset = 8192}, 1), Error);
  }
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
    windows[0] = Window(parent.ticket());
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
