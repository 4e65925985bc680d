#include "examples/cifar10/dataset.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/examples/cifar10/temporary_folder.h"

namespace cifar10 {
namespace {

using test::message_of;
using testing::AllOf;
using testing::HasSubstr;

// Two files of 3 and 2 records; pixel p of record r of file f is f * 100 + r * 10 + p % 10.
class DatasetTest : public testing::Test {
 protected:
  DatasetTest() {
    write("a.bin", bytes(0, 3));
    write("b.bin", bytes(1, 2));
  }

  static std::string bytes(int file, int records) {
    std::string text;
    for (int record = 0; record < records; ++record) {
      text += static_cast<char>(file * 3 + record);
      for (std::size_t pixel = 0; pixel < image_bytes; ++pixel) {
        text += static_cast<char>(file * 100 + record * 10 + static_cast<int>(pixel % 10));
      }
    }
    return text;
  }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_.path() / name, std::ios::binary) << content;
  }
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  Dataset load(std::size_t limit = 0) const { return {folder_.path(), files_, limit}; }
  std::string error(std::size_t limit = 0) const {
    return message_of([&] { load(limit); });
  }

  test::TemporaryFolder folder_;
  std::vector<DataFile> files_{{"a.bin", 3}, {"b.bin", 2}};
};

TEST_F(DatasetTest, ReadsRecordsOfAllFilesInOrder) {
  const Dataset dataset = load();
  ASSERT_EQ(dataset.size(), 5U);
  for (std::size_t image = 0; image < 5; ++image) {
    EXPECT_EQ(dataset.label(image), image);
  }
  EXPECT_EQ(dataset.pixels(0)[0], 0);
  EXPECT_EQ(dataset.pixels(2)[image_bytes - 1], 20 + 3071 % 10);
  EXPECT_EQ(dataset.pixels(4)[13], 113);
}

TEST_F(DatasetTest, LimitTakesTheFirstRecords) {
  EXPECT_EQ(load(4).size(), 4U);
  EXPECT_EQ(load(4).label(3), 3);
  EXPECT_EQ(load(2).size(), 2U);
  EXPECT_EQ(load(100).size(), 5U);
}

TEST_F(DatasetTest, MissingFile) {
  std::filesystem::remove(path("b.bin"));
  EXPECT_THAT(error(), AllOf(HasSubstr(path("b.bin")), HasSubstr("is missing"),
                             HasSubstr("found 0 bytes"), HasSubstr("expected 6146 bytes")));
  // A limit within the first file hides nothing.
  EXPECT_THAT(error(1), HasSubstr("is missing"));
}

TEST_F(DatasetTest, EmptyFile) {
  write("a.bin", "");
  EXPECT_THAT(error(), AllOf(HasSubstr(path("a.bin")), HasSubstr("is empty"),
                             HasSubstr("found 0 bytes"), HasSubstr("expected 9219 bytes")));
}

TEST_F(DatasetTest, TruncatedWithinARecord) {
  for (const std::size_t left :
       {std::size_t{1}, record_bytes - 1, record_bytes + 1, 3 * record_bytes - 1}) {
    write("a.bin", bytes(0, 3).substr(0, left));
    EXPECT_THAT(error(),
                AllOf(HasSubstr(path("a.bin")), HasSubstr("is truncated"),
                      HasSubstr("found " + std::to_string(left) + " bytes"),
                      HasSubstr("expected 9219 bytes (3 records of 3073) or fewer whole records")));
  }
}

TEST_F(DatasetTest, FewerWholeRecordsAreASubset) {
  EXPECT_FALSE(load().is_subset());
  EXPECT_FALSE(load(1).is_subset()) << "a limit makes none";
  write("a.bin", bytes(0, 2));
  const Dataset dataset = load();
  EXPECT_TRUE(dataset.is_subset());
  ASSERT_EQ(dataset.size(), 4U);
  EXPECT_EQ(dataset.label(1), 1);
  EXPECT_EQ(dataset.label(2), 3) << "the second file's first record";
  EXPECT_EQ(load(3).label(2), 3);
}

TEST_F(DatasetTest, TooLongByAByteAndByARecord) {
  write("b.bin", bytes(1, 2) + "x");
  EXPECT_THAT(error(), AllOf(HasSubstr(path("b.bin")), HasSubstr("is too long"),
                             HasSubstr("found 6147 bytes"), HasSubstr("expected 6146 bytes")));
  write("b.bin", bytes(1, 3));
  EXPECT_THAT(error(), AllOf(HasSubstr("is too long"), HasSubstr("found 9219 bytes")));
}

TEST_F(DatasetTest, LabelAboveNine) {
  std::string content = bytes(1, 2);
  content[record_bytes] = 10;
  write("b.bin", content);
  EXPECT_THAT(error(), AllOf(HasSubstr(path("b.bin")), HasSubstr("record 1 (byte 3073)"),
                             HasSubstr("label 10"), HasSubstr("0 to 9")));
  content[record_bytes] = 9;
  write("b.bin", content);
  EXPECT_EQ(error(), "");
}

TEST_F(DatasetTest, AFolderInTheFilesPlace) {
  std::filesystem::remove(path("a.bin"));
  std::filesystem::create_directory(path("a.bin"));
  EXPECT_THAT(error(), AllOf(HasSubstr(path("a.bin")), HasSubstr("not a regular file")));
}

TEST_F(DatasetTest, AFifoInTheFilesPlace) {
  std::filesystem::remove(path("a.bin"));
  ASSERT_EQ(mkfifo(path("a.bin").c_str(), 0600), 0);
  EXPECT_THAT(error(), AllOf(HasSubstr(path("a.bin")), HasSubstr("not a regular file")));
}

TEST_F(DatasetTest, AnEndlessDeviceInTheFilesPlace) {
  std::filesystem::remove(path("a.bin"));
  std::filesystem::create_symlink("/dev/zero", path("a.bin"));
  EXPECT_THAT(error(), AllOf(HasSubstr(path("a.bin")), HasSubstr("not a regular file")));
}

TEST(LoadData, CallsASubsetOne) {
  const test::TemporaryFolder folder;
  for (int file = 1; file <= 5; ++file) {
    std::ofstream(folder.path() / ("data_batch_" + std::to_string(file) + ".bin"))
        << std::string(record_bytes, '\0');
  }
  std::ofstream(folder.path() / "test_batch.bin") << std::string(2 * record_bytes, '\0');
  const Data data = load_data(folder.path(), 0);
  EXPECT_EQ(data.training.size(), 5U);
  EXPECT_EQ(data.validation.size(), 2U);
  EXPECT_EQ(data.id(), "cifar10-subset");
  EXPECT_EQ(data.title(), "a subset of CIFAR-10");
}

TEST(LoadData, NamesWhatIsMissingOfCifar10) {
  const test::TemporaryFolder folder;
  EXPECT_THAT(message_of([&] { load_data(folder.path(), 0); }),
              AllOf(HasSubstr((folder.path() / "data_batch_1.bin").string()),
                    HasSubstr("expected 30730000 bytes")));
}

}  // namespace
}  // namespace cifar10
