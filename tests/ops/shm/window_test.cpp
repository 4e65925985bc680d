#include "ops/shm/window.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "tests/ops/shm/child_process.h"
#include "tests/support/expect_error.h"

namespace hora::internal {
namespace {

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
