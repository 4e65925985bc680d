#include "core/base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/support/expect_error.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_folder.h"

namespace hora::internal {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

/// The message with which making `path` is refused.
std::string refusal(const std::string& path) {
  SCOPED_TRACE(path);
  return test::expect_error(ErrorCode::invalid_argument, HasSubstr("cannot be made"),
                            [&] { const NewFile file(path); })
      .what();
}

TEST(NewFile, IsForItsUserAloneWhateverTheMask) {
  const test::TemporaryFolder folder;
  const mode_t mask = ::umask(0);
  const NewFile file(folder.file("f"));
  ::umask(mask);
  ASSERT_EQ(::write(file.descriptor(), "some ", 5), 5);
  std::ofstream(file.descriptor_path(), std::ios::app) << "bytes";
  EXPECT_EQ(test::read_file(folder.file("f")), "some bytes");
  EXPECT_EQ(fs::status(folder.file("f")).permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
}

TEST(NewFile, TakesThePlaceOfARegularFileAndNothingElse) {
  const test::TemporaryFolder folder;
  const std::string path = folder.file("f");
  std::ofstream(folder.file("kept")) << "kept";
  fs::permissions(folder.file("kept"), fs::perms::all);
  fs::create_hard_link(folder.file("kept"), path);
  { const NewFile file(path); }
  EXPECT_EQ(test::read_file(path), "");
  EXPECT_EQ(test::read_file(folder.file("kept")), "kept") << "another name of the old file";
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST(NewFile, LinksAreNotFollowed) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.file("kept")) << "kept";
  fs::create_symlink(folder.file("kept"), folder.file("link"));
  EXPECT_THAT(refusal(folder.file("link")), HasSubstr("a link, which is not followed,"));
  EXPECT_EQ(test::read_file(folder.file("kept")), "kept");
  fs::create_symlink(folder.file("nothing"), folder.file("dangling"));
  EXPECT_THAT(refusal(folder.file("dangling")), HasSubstr("a link"));
  EXPECT_FALSE(fs::exists(folder.file("nothing")));
}

TEST(NewFile, WhatIsNoFileIsRefusedAtOnce) {
  const test::TemporaryFolder folder;
  ASSERT_EQ(::mkfifo(folder.file("fifo").c_str(), 0600), 0);
  EXPECT_THAT(refusal(folder.file("fifo")), HasSubstr("a FIFO has this name already"));
  EXPECT_TRUE(fs::is_fifo(folder.file("fifo")));
  EXPECT_THAT(refusal(folder.path().string()), HasSubstr("a folder has this name"));
  EXPECT_THAT(refusal("/dev/null"), HasSubstr("a device has this name"));
  EXPECT_TRUE(fs::exists("/dev/null"));
}

TEST(NewFile, SaysWhyAPathCannotBe) {
  const test::TemporaryFolder folder;
  EXPECT_THAT(refusal(folder.file("no/such/folder")), HasSubstr("No such file or directory"));
  EXPECT_THAT(refusal(std::string("a\0b", 3)), AllOf(HasSubstr("a\\x00b"), HasSubstr("zero byte")));
  EXPECT_THAT(refusal(""), HasSubstr("No such file"));
}

}  // namespace
}  // namespace hora::internal
