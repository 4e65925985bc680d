#include "examples/vision/data/stl10.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "examples/vision/data/open_data.h"
#include "tests/examples/vision/data/files.h"
#include "tests/examples/vision/temporary_folder.h"

namespace vision {
namespace {

namespace fs = std::filesystem;
using test::Bytes;
using test::message_of;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr std::size_t image = image_bytes(stl10_size);

// Of pixel (row, column) and channel of an image.
std::uint8_t value(std::size_t record, std::size_t channel, std::size_t row, std::size_t column) {
  return static_cast<std::uint8_t>(record * 50 + channel * 100 + row * 2 + column * 3);
}

// As the file has it: planes, by columns.
Bytes images(std::size_t count) {
  Bytes bytes;
  for (std::size_t record = 0; record < count; ++record) {
    for (std::size_t channel = 0; channel < 3; ++channel) {
      for (std::size_t column = 0; column < 96; ++column) {
        for (std::size_t row = 0; row < 96; ++row) {
          bytes.push_back(value(record, channel, row, column));
        }
      }
    }
  }
  return bytes;
}

class Stl10Test : public testing::Test {
 protected:
  Stl10Test() {
    write("train_X.bin", images(3));
    write("train_y.bin", {1, 10, 3});
    write("test_X.bin", images(2));
    write("test_y.bin", {2, 5});
    std::ofstream(folder() / "class_names.txt")
        << "airplane\nbird\ncar\ncat\ndeer\ndog\nhorse\nmonkey\nship\ntruck\n";
  }
  void write(const std::string& name, const Bytes& bytes) const {
    test::write_bytes(folder() / name, bytes);
  }
  std::string error() const {
    return message_of([&] { open_data(folder()); });
  }
  const fs::path& folder() const { return folder_.path(); }

 private:
  test::TemporaryFolder folder_;
};

TEST_F(Stl10Test, ReadsPlanesByColumnsAndLabelsFromOne) {
  const DataSets data = open_data(folder());
  EXPECT_EQ(data.id(), "stl10-subset");
  EXPECT_EQ(data.training->title(), "a subset of STL-10");
  ASSERT_EQ(data.training->size(), 3U);
  ASSERT_EQ(data.validation->size(), 2U);
  EXPECT_EQ(data.training->label(0), 0);
  EXPECT_EQ(data.training->label(1), 9);
  EXPECT_EQ(data.validation->label(1), 4);
  EXPECT_EQ(data.training->classes().at(7), "monkey");
  EXPECT_EQ(data.training->where(2), (folder() / "train_X.bin").string() + ", record 2");
  std::vector<std::uint8_t> memory;
  for (const std::size_t record : {2U, 0U}) {
    const EncodedImage encoded = data.training->encoded(record, memory);
    ASSERT_EQ(encoded.format, ImageFormat::planar_rgb);
    ASSERT_EQ(encoded.size, stl10_size);
    ASSERT_EQ(encoded.bytes.size(), image);
    for (std::size_t i = 0; i < image; ++i) {
      ASSERT_EQ(encoded.bytes[i], value(record, i / 9216, i / 96 % 96, i % 96));
    }
  }
}

TEST_F(Stl10Test, NamesAFileOfAWrongLength) {
  Bytes bytes = images(3);
  bytes.pop_back();
  write("train_X.bin", bytes);
  EXPECT_THAT(error(), AllOf(HasSubstr((folder() / "train_X.bin").string()),
                             HasSubstr("is truncated: found 82943 bytes"),
                             HasSubstr("5000 records of 27648")));
  write("train_X.bin", images(2));
  EXPECT_THAT(error(), AllOf(HasSubstr("train_X.bin holds 2 images"), HasSubstr("3 labels")));
  write("train_X.bin", {});
  EXPECT_THAT(error(), HasSubstr("train_X.bin is empty"));
  write("train_X.bin", images(3));
  fs::remove(folder() / "test_y.bin");
  EXPECT_THAT(error(), StartsWith((folder() / "test_y.bin").string() + ": cannot be opened"));
}

TEST_F(Stl10Test, NamesALabelThatIsNoClass) {
  for (const std::uint8_t label : Bytes{0, 11}) {
    write("test_y.bin", {2, label});
    EXPECT_THAT(error(), AllOf(HasSubstr((folder() / "test_y.bin").string()), HasSubstr("byte 1"),
                               HasSubstr("label " + std::to_string(label)), HasSubstr("1 to 10")));
  }
}

TEST_F(Stl10Test, NeedsTenNames) {
  std::ofstream(folder() / "class_names.txt") << "airplane\n";
  EXPECT_THAT(error(), AllOf(HasSubstr("class_names.txt lists 1"), HasSubstr("expected 10")));
}

TEST_F(Stl10Test, AFileThatIsCutLaterGivesABadImage) {
  const DataSets data = open_data(folder());
  fs::resize_file(folder() / "train_X.bin", image + 5);
  std::vector<std::uint8_t> memory;
  data.training->encoded(0, memory);
  const auto read = [&] { data.training->encoded(1, memory); };
  EXPECT_THROW(read(), BadImage);
  EXPECT_THAT(message_of(read),
              AllOf(StartsWith(data.training->where(1) + ": "),
                    HasSubstr("read 5 bytes from byte 27648 on, expected 27648")));
}

}  // namespace
}  // namespace vision
