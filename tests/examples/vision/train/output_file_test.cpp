#include "examples/vision/train/output_file.h"

#include <gmock/gmock.h>

#include <string>

#include "tests/examples/vision/temporary_folder.h"
#include "tests/support/read_file.h"

namespace vision {
namespace {

namespace fs = std::filesystem;
using hora::internal::test::read_file;
using test::message_of;
using test::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;

std::ptrdiff_t files_in(const fs::path& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

TEST(WriteFile, WritesAndReplaces) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "file";
  const std::string bytes("a\0b", 3);
  write_file(path, bytes);
  EXPECT_EQ(read_file(path), bytes);
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  const std::string large(3'000'000, 'x');
  write_file(path, large);
  EXPECT_EQ(read_file(path), large);
  EXPECT_EQ(files_in(folder.path()), 1) << "a draft was left behind";
}

TEST(WriteFile, FailsWithThePathAndWithoutADraft) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of([&] { write_file(folder.path() / "absent" / "file", "x"); }),
              HasSubstr((folder.path() / "absent" / "file").string()));
  fs::create_directories(folder.path() / "taken" / "inside");
  EXPECT_NE(message_of([&] { write_file(folder.path() / "taken", "x"); }), "");
  EXPECT_EQ(files_in(folder.path()), 1);
}

TEST(CheckWritable, SaysWhatIsWrongBeforeTheWork) {
  const TemporaryFolder folder;
  EXPECT_EQ(message_of([&] { check_writable(folder.path() / "new"); }), "");
  EXPECT_EQ(message_of([] { check_writable("a-name-without-folder"); }), "");
  EXPECT_THAT(message_of([&] { check_writable(folder.path() / "absent" / "file"); }),
              AllOf(HasSubstr("no folder"), HasSubstr((folder.path() / "absent").string())));
  EXPECT_THAT(message_of([&] { check_writable(folder.path()); }), HasSubstr("not a regular file"));
  EXPECT_EQ(files_in(folder.path()), 0);
}

TEST(MakeFolder, SaysWhereItCannot) {
  const TemporaryFolder folder;
  EXPECT_EQ(message_of([&] { make_folder(folder.path() / "a" / "b"); }), "");
  EXPECT_EQ(message_of([&] { make_folder(folder.path() / "a" / "b"); }), "") << "it is there";
  write_file(folder.path() / "file", "x");
  const std::string taken = folder.path() / "file" / "models";
  EXPECT_EQ(message_of([&] { make_folder(taken); }),
            "Cannot make folder " + taken + ": Not a directory");
}

}  // namespace
}  // namespace vision
