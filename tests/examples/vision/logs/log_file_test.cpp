#include "examples/vision/logs/log_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <system_error>

#include "tests/examples/vision/logs/event_reader.h"
#include "tests/examples/vision/temporary_folder.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_folder.h"

namespace vision {
namespace {

using hora::internal::test::read_file;
using hora::internal::test::TemporaryFolder;
using testing::HasSubstr;

TEST(LogFile, CollectsUntilItIsFlushed) {
  const TemporaryFolder folder;
  LogFile file(folder.file("log"), LogFile::Existing::refused);
  file.append("one");
  EXPECT_EQ(read_file(folder.file("log")), "");
  file.append("two");
  file.flush();
  file.flush();
  EXPECT_EQ(read_file(folder.file("log")), "onetwo");
  file.append(std::string(100'000, 'x'));
  EXPECT_EQ(read_file(folder.file("log")).size(), 100'006U);
}

TEST(LogFile, WritesTheRestAtItsEndOnce) {
  const TemporaryFolder folder;
  {
    LogFile file(folder.file("log"), LogFile::Existing::refused);
    file.append("rest");
    const LogFile moved(std::move(file));
  }
  EXPECT_EQ(read_file(folder.file("log")), "rest");
}

TEST(LogFile, ReplacesOrRefusesWhatExists) {
  const TemporaryFolder folder;
  LogFile(folder.file("log"), LogFile::Existing::refused).append("a longer text");
  LogFile(folder.file("log"), LogFile::Existing::replaced).append("short");
  EXPECT_EQ(read_file(folder.file("log")), "short");
  try {
    const LogFile file(folder.file("log"), LogFile::Existing::refused);
    ADD_FAILURE() << "was opened";
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code(), std::errc::file_exists);
    EXPECT_THAT(error.what(), HasSubstr(folder.file("log")));
  }
}

TEST(LogFile, LeavesAloneWhatALinkPointsTo) {
  namespace fs = std::filesystem;
  const TemporaryFolder folder;
  std::ofstream(folder.file("other")) << "kept";
  fs::create_symlink("other", folder.file("link"));
  for (const auto existing : {LogFile::Existing::replaced, LogFile::Existing::continued}) {
    EXPECT_THAT(test::message_of([&] { LogFile(folder.file("link"), existing).append("log"); }),
                HasSubstr("Links are not followed: cannot open " + folder.file("link")));
  }
  fs::create_hard_link(folder.file("other"), folder.file("log"));
  LogFile(folder.file("log"), LogFile::Existing::replaced).append("log");
  EXPECT_EQ(read_file(folder.file("log")), "log");
  EXPECT_EQ(read_file(folder.file("other")), "kept");
}

TEST(LogFile, DoesNotWaitForTheReaderOfAFifo) {
  const TemporaryFolder folder;
  ASSERT_EQ(mkfifo(folder.file("fifo").c_str(), 0600), 0);
  EXPECT_THROW(LogFile(folder.file("fifo"), LogFile::Existing::replaced), std::system_error);
}

TEST(LogFile, GoesOnBehindTheLastWholeLine) {
  const TemporaryFolder folder;
  const auto go_on_after = [&](const std::string& before) {
    LogFile(folder.file("log"), LogFile::Existing::replaced).append(before);
    LogFile(folder.file("log"), LogFile::Existing::continued).append("new\n");
    return read_file(folder.file("log"));
  };
  EXPECT_EQ(go_on_after(""), "new\n");
  EXPECT_EQ(go_on_after("half"), "new\n");
  EXPECT_EQ(go_on_after("one\ntwo\n"), "one\ntwo\nnew\n");
  EXPECT_EQ(go_on_after("one\n" + std::string(10'000, 'x')), "one\nnew\n");
  EXPECT_EQ(go_on_after(std::string(10'000, 'x') + "\n"), std::string(10'000, 'x') + "\nnew\n");
  LogFile(folder.file("first"), LogFile::Existing::continued).append("new\n");
  EXPECT_EQ(read_file(folder.file("first")), "new\n");
}

TEST(LogFile, NamesAFolderThatIsNotThere) {
  const TemporaryFolder folder;
  try {
    const LogFile file(folder.file("absent/log"), LogFile::Existing::replaced);
    ADD_FAILURE() << "was opened";
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code(), std::errc::no_such_file_or_directory);
    EXPECT_THAT(error.what(), HasSubstr("Cannot open " + folder.file("absent/log")));
  }
}

TEST(LogFile, NamesAFullDisk) {
  LogFile file("/dev/full", LogFile::Existing::replaced);
  file.append("bytes");
  try {
    file.flush();
    ADD_FAILURE() << "was written";
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code(), std::errc::no_space_on_device);
    EXPECT_THAT(error.what(), HasSubstr("Cannot write to /dev/full"));
  }
}

}  // namespace
}  // namespace vision
