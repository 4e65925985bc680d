#include "examples/vision/data/record_files.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/examples/vision/temporary_folder.h"

namespace vision {
namespace {

using test::message_of;
using testing::AllOf;
using testing::HasSubstr;

// Two files of 3 and 2 records of 2 x 1 pixels, two labels each, of which the first is not used.
class RecordFiles : public testing::Test {
 protected:
  static constexpr RecordLayout layout{{2, 1}, 2, 10};
  static constexpr std::size_t record = layout.bytes();  // 8

  RecordFiles() {
    write("a.bin", bytes(0, 3));
    write("b.bin", bytes(1, 2));
  }

  static std::string bytes(int file, int records) {
    std::string text;
    for (int r = 0; r < records; ++r) {
      text += '\x63';
      text += static_cast<char>(file * 3 + r);
      for (int pixel = 0; pixel < 6; ++pixel) {
        text += static_cast<char>(file * 100 + r * 10 + pixel);
      }
    }
    return text;
  }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_.path() / name, std::ios::binary) << content;
  }
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  PlanarRecords read() const { return read_records(folder_.path(), files_, layout); }
  std::string error() const {
    return message_of([&] { read(); });
  }

  test::TemporaryFolder folder_;
  std::vector<RecordFile> files_{{"a.bin", 3}, {"b.bin", 2}};
};

TEST_F(RecordFiles, ReadsAllFilesInOrder) {
  const PlanarRecords records = read();
  EXPECT_EQ(records.labels, (std::vector<std::uint8_t>{0, 1, 2, 3, 4}));
  ASSERT_EQ(records.pixels.size(), 5U * 6U);
  EXPECT_EQ(records.pixels[0], 0);
  EXPECT_EQ(records.pixels[2 * 6 + 5], 25);
  EXPECT_EQ(records.pixels[4 * 6 + 3], 113);
  EXPECT_FALSE(is_subset(records, files_));

  const PlanarImages images("title", {"x"}, layout.size, read());
  EXPECT_EQ(images.title(), "title");
  EXPECT_EQ(images.size(), 5U);
  EXPECT_EQ(images.label(3), 3);
  EXPECT_EQ(images.where(2), path("a.bin") + ", record 2");
  EXPECT_EQ(images.where(3), path("b.bin") + ", record 0");
  std::vector<std::uint8_t> memory;
  const EncodedImage image = images.encoded(3, memory);
  EXPECT_EQ(image.format, ImageFormat::planar_rgb);
  EXPECT_EQ(image.size, layout.size);
  EXPECT_THAT(image.bytes, testing::ElementsAre(100, 101, 102, 103, 104, 105));
}

TEST_F(RecordFiles, MissingFile) {
  std::filesystem::remove(path("b.bin"));
  EXPECT_THAT(error(), AllOf(HasSubstr(path("b.bin")), HasSubstr("is missing"),
                             HasSubstr("found 0 bytes"), HasSubstr("expected 16 bytes")));
}

TEST_F(RecordFiles, EmptyFile) {
  write("a.bin", "");
  EXPECT_THAT(error(), AllOf(HasSubstr(path("a.bin")), HasSubstr("is empty"),
                             HasSubstr("found 0 bytes"), HasSubstr("expected 24 bytes")));
}

TEST_F(RecordFiles, EveryLengthWithinARecordIsATruncation) {
  for (std::size_t left = 1; left < 3 * record; ++left) {
    write("a.bin", bytes(0, 3).substr(0, left));
    if (left % record == 0) {
      EXPECT_EQ(error(), "");
      continue;
    }
    EXPECT_THAT(error(),
                AllOf(HasSubstr(path("a.bin")), HasSubstr("is truncated"),
                      HasSubstr("found " + std::to_string(left) + " bytes"),
                      HasSubstr("expected 24 bytes (3 records of 8) or fewer whole records")));
  }
}

TEST_F(RecordFiles, FewerWholeRecordsAreASubset) {
  write("a.bin", bytes(0, 2));
  const PlanarRecords records = read();
  EXPECT_EQ(records.labels, (std::vector<std::uint8_t>{0, 1, 3, 4}));
  EXPECT_TRUE(is_subset(records, files_));
}

TEST_F(RecordFiles, TooLongByAByteAndByARecord) {
  write("b.bin", bytes(1, 2) + "x");
  EXPECT_THAT(error(), AllOf(HasSubstr(path("b.bin")), HasSubstr("is too long"),
                             HasSubstr("found 17 bytes"), HasSubstr("expected 16 bytes")));
  write("b.bin", bytes(1, 3));
  EXPECT_THAT(error(), AllOf(HasSubstr("is too long"), HasSubstr("found 24 bytes")));
}

TEST_F(RecordFiles, LabelThatIsNoClass) {
  std::string content = bytes(1, 2);
  content[record + 1] = 10;
  write("b.bin", content);
  EXPECT_THAT(error(), AllOf(HasSubstr(path("b.bin")), HasSubstr("record 1 (byte 9)"),
                             HasSubstr("label 10"), HasSubstr("0 to 9")));
  content[record + 1] = 9;
  write("b.bin", content);
  EXPECT_EQ(error(), "");
}

TEST_F(RecordFiles, WhatIsNoRegularFileInAFilesPlace) {
  const auto expect_refused = [&] {
    EXPECT_THAT(error(), AllOf(HasSubstr(path("a.bin")), HasSubstr("not a regular file")));
    std::filesystem::remove(path("a.bin"));
  };
  std::filesystem::remove(path("a.bin"));
  std::filesystem::create_directory(path("a.bin"));
  expect_refused();
  ASSERT_EQ(mkfifo(path("a.bin").c_str(), 0600), 0);
  expect_refused();
  std::filesystem::create_symlink("/dev/zero", path("a.bin"));
  expect_refused();
}

TEST(PlanarImages, RefusesCountsThatDiffer) {
  const auto error = [](std::size_t in_file, std::size_t labels, std::size_t bytes) {
    return message_of([&] {
      PlanarImages(
          "t", {"x"}, {1, 1},
          {{{"f", in_file}}, std::vector<std::uint8_t>(bytes), std::vector<std::uint8_t>(labels)});
    });
  };
  EXPECT_EQ(error(2, 2, 6), "");
  EXPECT_THAT(error(1, 2, 6), HasSubstr("1 records"));
  EXPECT_THAT(error(2, 2, 5), HasSubstr("5 bytes"));
}

}  // namespace
}  // namespace vision
