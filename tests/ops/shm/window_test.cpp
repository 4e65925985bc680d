#include "ops/shm/window.h"

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
#include <map>
#include <utility>
#include <vector>

#include "tests/ops/shm/child_process.h"
#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

TEST(BlockAllocator, GivesNothingWithoutASegment) {
  BlockAllocator allocator;
  EXPECT_FALSE(allocator.allocate(1).has_value());
}

TEST(BlockAllocator, ZeroBytesAreABlockOfTheirOwn) {
  BlockAllocator allocator;
  allocator.add_segment(0, 128);
  const auto first = allocator.allocate(0);
  const auto second = allocator.allocate(0);
  ASSERT_TRUE(first && second);
  EXPECT_NE(*first, *second);
  EXPECT_FALSE(allocator.allocate(0).has_value());
}

TEST(BlockAllocator, TakesTheSmallestBlockThatFits) {
  BlockAllocator allocator;
  allocator.add_segment(4096, 1024);
  allocator.add_segment(0, 256);
  EXPECT_EQ(allocator.allocate(200), (BlockAllocator::SegmentBlock{1, 0}));
  EXPECT_EQ(allocator.allocate(200), (BlockAllocator::SegmentBlock{0, 4096}));
}

TEST(BlockAllocator, ReleasingWhatIsNotInUseChangesNothing) {
  BlockAllocator allocator;
  allocator.add_segment(0, 128);
  const auto block = allocator.allocate(128);
  ASSERT_TRUE(block.has_value());
  allocator.release({0, 64});
  allocator.release({3, 0});
  EXPECT_EQ(allocator.blocks_in_use(), 1u);
  EXPECT_FALSE(allocator.allocate(1).has_value());
  allocator.release(*block);
  allocator.release(*block);
  EXPECT_TRUE(allocator.allocate(128).has_value());
  EXPECT_FALSE(allocator.allocate(1).has_value()) << "released twice, but there once";
}

TEST(BlockAllocator, SegmentsSideBySideDoNotMerge) {
  BlockAllocator allocator;
  allocator.add_segment(0, 64);
  allocator.add_segment(64, 64);
  const auto a = allocator.allocate(64);
  const auto b = allocator.allocate(64);
  allocator.release(*a);
  allocator.release(*b);
  EXPECT_FALSE(allocator.allocate(128).has_value());
}

class Model {
 public:
  /// False where [offset, offset + bytes) touches a block.
  bool take(const BlockAllocator::SegmentBlock& block, std::uint64_t bytes) {
    auto& blocks = segments_[block.segment];
    const auto after = blocks.lower_bound(block.offset);
    if (after != blocks.end() && block.offset + bytes > after->first) return false;
    if (after != blocks.begin()) {
      const auto before = std::prev(after);
      if (before->first + before->second > block.offset) return false;
    }
    blocks.emplace(block.offset, bytes);
    return true;
  }
  void give_back(const BlockAllocator::SegmentBlock& block) {
    segments_[block.segment].erase(block.offset);
  }

 private:
  std::map<std::uint32_t, std::map<std::uint64_t, std::uint64_t>> segments_;
};

TEST(BlockAllocator, RandomUseAgainstAModel) {
  auto random = test::generator();
  for (int run = 0; run < 20; ++run) {
    BlockAllocator allocator;
    constexpr std::uint64_t kBegin = 8192;
    constexpr std::uint64_t kBytes = 64 * 500;
    const auto segments = static_cast<std::uint32_t>(1 + random() % 3);
    for (std::uint32_t s = 0; s < segments; ++s) allocator.add_segment(kBegin, kBytes);
    Model model;
    std::vector<BlockAllocator::SegmentBlock> open;
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
        ASSERT_TRUE(model.take(*block, std::max<std::size_t>(bytes, 1))) << "blocks overlap";
        open.push_back(*block);
      } else if (!open.empty()) {
        std::swap(open[random() % open.size()], open.back());
        model.give_back(open.back());
        allocator.release(open.back());
        open.pop_back();
      }
      ASSERT_EQ(allocator.blocks_in_use(), open.size());
    }
    EXPECT_GT(refused, 0) << "the run never filled the segments";
    for (const auto& block : open) allocator.release(block);
    for (std::uint32_t s = 0; s < segments; ++s) {
      EXPECT_TRUE(allocator.allocate(kBytes).has_value()) << "the free blocks are whole again";
    }
    EXPECT_FALSE(allocator.allocate(1).has_value());
  }
}

using testing::HasSubstr;

constexpr std::size_t kBytes = Window::kHeaderBytes + 100000;

/// The error of opening `ticket`; fails where there is none.
Error error_of(const WindowTicket& ticket) {
  try {
    const Window window(ticket);
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "the window opened";
  return {ErrorCode::invalid_use, ""};
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator begin("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin, {}));
}

TEST(Window, IsZeroBehindItsHeader) {
  const Window window(kBytes);
  ASSERT_EQ(window.size(), kBytes);
  EXPECT_EQ(window.ticket().bytes, kBytes);
  EXPECT_EQ(window.ticket().pid, ::getpid());
  for (std::size_t i = Window::kHeaderBytes; i < kBytes; ++i) {
    ASSERT_EQ(window.data()[i], std::byte{0});
  }
}

TEST(Window, IsForItsUserAloneAndKeepsItsLength) {
  const Window window(kBytes);
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

TEST(Window, AFileWhoseLengthMayChangeIsRefused) {
  const int descriptor = ::memfd_create("test", MFD_CLOEXEC);
  ASSERT_GE(descriptor, 0);
  ASSERT_EQ(::ftruncate(descriptor, kBytes), 0);
  const Error error =
      error_of({.pid = ::getpid(), .descriptor = descriptor, .bytes = kBytes, .nonce = 1});
  EXPECT_THAT(error.what(), HasSubstr("is not the peer's window"));
  ::close(descriptor);
}

TEST(Window, TwoProcessesSeeEachOthersBytes) {
  const Window own(kBytes);
  std::memset(own.data() + Window::kHeaderBytes, 17, 1000);
  test::ChildProcess child([&] {
    // By the ticket alone, not by what fork has left mapped.
    const Window theirs(own.ticket());
    for (int i = 0; i < 1000; ++i) {
      if (theirs.data()[Window::kHeaderBytes + static_cast<std::size_t>(i)] != std::byte{17}) {
        return 1;
      }
    }
    std::memset(theirs.data() + kBytes - 500, 42, 500);
    return theirs.data() != own.data() && theirs.size() == kBytes ? 0 : 2;
  });
  ASSERT_EQ(child.wait(), 0);
  for (std::size_t i = kBytes - 500; i < kBytes; ++i) ASSERT_EQ(own.data()[i], std::byte{42});
}

TEST(Window, AWrongNonceIsRefused) {
  const Window window(kBytes);
  WindowTicket ticket = window.ticket();
  ticket.nonce ^= 1;
  const Error error = error_of(ticket);
  EXPECT_EQ(error.code(), ErrorCode::transport);
  EXPECT_THAT(error.what(), HasSubstr("nonce differs"));
}

TEST(Window, NoncesDiffer) {
  const Window a(kBytes);
  const Window b(kBytes);
  EXPECT_NE(a.ticket().nonce, b.ticket().nonce);
}

TEST(Window, AProcessThatIsNotThereIsRefused) {
  const Window window(kBytes);
  test::ChildProcess child([] { return 0; });
  WindowTicket ticket = window.ticket();
  ticket.pid = child.pid();
  ASSERT_EQ(child.wait(), 0);
  const Error error = error_of(ticket);
  EXPECT_EQ(error.code(), ErrorCode::transport);
  EXPECT_THAT(error.what(), HasSubstr("/proc/" + std::to_string(ticket.pid) + "/fd/"));
}

TEST(Window, AnotherFileBehindTheTicketIsRefused) {
  const Window window(kBytes);
  const Window other(kBytes);
  WindowTicket ticket = window.ticket();
  ticket.bytes += 64;
  EXPECT_THAT(error_of(ticket).what(), HasSubstr("not the peer's window"));
  ticket.bytes = 16;
  EXPECT_THAT(error_of(ticket).what(), HasSubstr("not the peer's window"));
  ticket = window.ticket();
  ticket.descriptor = other.ticket().descriptor;
  EXPECT_THAT(error_of(ticket).what(), HasSubstr("nonce differs"));

  const int null_device = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  ticket.descriptor = null_device;
  EXPECT_THAT(error_of(ticket).what(), HasSubstr("not the peer's window"));
  ::close(null_device);
}

TEST(Window, RefusalsLeaveNoDescriptorBehind) {
  const Window window(kBytes);
  const std::size_t before = open_descriptors();
  WindowTicket ticket = window.ticket();
  ticket.nonce ^= 1;
  for (int i = 0; i < 5; ++i) error_of(ticket);
  ticket.bytes = 16;
  for (int i = 0; i < 5; ++i) error_of(ticket);
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Window, MoreMemoryThanThereIsIsAnErrorAndNotAKill) {
  const std::uint64_t available = available_memory();
  ASSERT_GT(available, 0u);
  test::expect_error(ErrorCode::out_of_memory,
                     testing::AllOf(HasSubstr("MiB wanted"), HasSubstr("fewer ranks per node")),
                     [&] { const Window window(available + (std::size_t{1} << 30)); });
}

TEST(Window, MovingHandsOverTheMapping) {
  const std::size_t before = open_descriptors();
  {
    Window first(kBytes);
    std::byte* const data = first.data();
    Window second(std::move(first));
    EXPECT_EQ(second.data(), data);
    EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move)
    Window third(kBytes);
    third = std::move(second);
    EXPECT_EQ(third.data(), data);
    EXPECT_EQ(Window(third.ticket()).size(), kBytes) << "its descriptor is still open";
  }
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace

}  // namespace hora::internal
