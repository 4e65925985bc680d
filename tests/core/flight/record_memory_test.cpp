#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/flight/record_writer.h"
#include "tests/support/temporary_folder.h"

namespace hora::internal {
namespace {

using testing::HasSubstr;

std::string refusal(const std::string& path) {
  const auto memory = RecordMemory::open(path);
  return memory ? std::string() : memory.error();
}

TEST(RecordMemory, IsSharedByThoseWhoOpenIt) {
  const RecordMemory guard = RecordMemory::create().value();
  const RecordMemory rank = RecordMemory::open(guard.path()).value();
  EXPECT_NE(&guard.layout(), &rank.layout());
  rank.layout().header.next.store(17);
  EXPECT_EQ(guard.layout().header.next.load(), 17u);
  EXPECT_EQ(rank.layout().header.guard.load(), ::getpid());
  EXPECT_EQ(rank.path(), "");
}

TEST(RecordMemory, CannotBeCut) {
  const RecordMemory guard = RecordMemory::create().value();
  EXPECT_NE(::truncate(guard.path().c_str(), 0), 0);
  const int descriptor = ::open(guard.path().c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(descriptor, 0);
  EXPECT_NE(::ftruncate(descriptor, 4096), 0);
  ::close(descriptor);
}

TEST(RecordMemory, RefusesWhatItHasNotMade) {
  const test::TemporaryFolder folder;
  EXPECT_THAT(refusal(folder.file("missing")), HasSubstr("No such file"));
  EXPECT_THAT(refusal(folder.path()), HasSubstr("Is a directory"));
  const std::string pipe = folder.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), S_IRWXU), 0);
  EXPECT_THAT(refusal(pipe), HasSubstr("it is no file"));
  const std::string file = folder.file("file");
  std::ofstream(file) << "mine";
  EXPECT_THAT(refusal(file), HasSubstr("it has 4 bytes instead of"));
  std::filesystem::resize_file(file, kRecordBytes);
  EXPECT_THAT(refusal(file), HasSubstr("it is no record"));
  std::ifstream kept(file);
  std::string text(4, ' ');
  kept.read(text.data(), 4);
  EXPECT_EQ(text, "mine");
}

TEST(RecordMemory, RefusesAnotherLayout) {
  const RecordMemory guard = RecordMemory::create().value();
  guard.layout().header.version.store(kRecordVersion + 1);
  EXPECT_THAT(refusal(guard.path()), HasSubstr("different versions of hora"));
}

TEST(RecordMemory, BelongsToOneLivingProcess) {
  const RecordMemory guard = RecordMemory::create().value();
  const pid_t other = ::fork();
  ASSERT_GE(other, 0);
  if (other == 0) {
    ::pause();
    ::_exit(0);
  }
  guard.layout().header.pid.store(other);
  EXPECT_THAT(refusal(guard.path()),
              HasSubstr("process " + std::to_string(other) + " writes there"));
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
  EXPECT_EQ(refusal(guard.path()), "");
}

}  // namespace
}  // namespace hora::internal
