#include "examples/cifar10/data_source.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>

#include "tests/examples/cifar10/temporary_folder.h"

namespace cifar10 {
namespace {

using test::message_of;
using test::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;

void write_names(const std::filesystem::path& folder, const std::string& text) {
  std::ofstream(folder / class_names_file) << text;
}

TEST(Identify, KnowsCifar10ByItsNames) {
  const TemporaryFolder folder;
  // CIFAR-10's own file ends with an empty line.
  write_names(folder.path(),
              "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n");
  EXPECT_EQ(identify(folder.path()).id, "cifar10");
}

TEST(Identify, KnowsTheDigitsByTheirNames) {
  const TemporaryFolder folder;
  write_names(folder.path(), "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n");
  EXPECT_EQ(identify(folder.path()).id, "digits");
}

TEST(Identify, TakesDataWithoutNamesForCifar10) {
  const TemporaryFolder folder;
  EXPECT_EQ(identify(folder.path()).id, "cifar10");
}

TEST(Identify, RefusesOtherClasses) {
  const TemporaryFolder folder;
  write_names(folder.path(), "0\n1\n2\n3\n4\n5\n6\n7\n8\n");
  EXPECT_THAT(
      message_of([&] { identify(folder.path()); }),
      AllOf(HasSubstr((folder.path() / class_names_file).string()), HasSubstr("9 class names")));
}

TEST(Identify, ReadsNamesFromASmallRegularFileAlone) {
  const TemporaryFolder folder;
  const auto names = folder.path() / class_names_file;
  const auto message = [&] { return message_of([&] { identify(folder.path()); }); };
  ASSERT_EQ(mkfifo(names.c_str(), 0600), 0);
  EXPECT_THAT(message(), AllOf(HasSubstr(names.string()), HasSubstr("not a regular file")));
  std::filesystem::remove(names);
  std::filesystem::create_symlink("/dev/zero", names);
  EXPECT_THAT(message(), AllOf(HasSubstr(names.string()), HasSubstr("not a regular file")));
  std::filesystem::remove(names);
  write_names(folder.path(), std::string(class_names_bytes + 1, '\n'));
  EXPECT_THAT(message(), AllOf(HasSubstr(names.string()), HasSubstr("found 4097 bytes"),
                               HasSubstr("at most 4096")));
  write_names(folder.path(), std::string(class_names_bytes, '\n'));
  EXPECT_THAT(message(), HasSubstr("0 class names"));
}

TEST(Identify, NamesAMissingFolderAndOneThatIsAFile) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of([&] { identify(folder.path() / "absent"); }),
              AllOf(HasSubstr((folder.path() / "absent").string()), HasSubstr("does not exist")));
  std::ofstream(folder.path() / "file") << "x";
  EXPECT_THAT(message_of([&] { identify(folder.path() / "file"); }), HasSubstr("is not a folder"));
}

TEST(DataFolder, LooksIntoTheUnpackedArchive) {
  const TemporaryFolder folder;
  EXPECT_EQ(data_folder(folder.path()), folder.path());
  const auto unpacked = folder.path() / "cifar-10-batches-bin";
  std::filesystem::create_directory(unpacked);
  EXPECT_EQ(data_folder(folder.path()), unpacked);
  EXPECT_EQ(data_folder(unpacked), unpacked);
  std::ofstream(folder.path() / "data_batch_1.bin") << "x";
  EXPECT_EQ(data_folder(folder.path()), folder.path());
}

TEST(DataSource, OnlyCifar10IsFlipped) {
  EXPECT_TRUE(cifar10_source().flip);
  EXPECT_FALSE(digits_source().flip);
}

}  // namespace
}  // namespace cifar10
