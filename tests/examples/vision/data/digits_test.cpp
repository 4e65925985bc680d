#include "examples/vision/data/digits.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "tests/examples/vision/temporary_folder.h"

namespace vision {
namespace {

namespace fs = std::filesystem;
using test::message_of;
using test::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;

constexpr int side = cifar_size.width;
constexpr std::size_t plane_bytes = std::size_t{side} * side;

std::string line(int pixel, int label) {
  std::string text;
  for (int i = 0; i < 64; ++i) {
    text += std::to_string(pixel) + ",";
  }
  return text + std::to_string(label) + "\n";
}

std::string parse_error(const std::string& csv) {
  std::istringstream stream(csv);
  return message_of([&] { parse_digits(stream); });
}

// As many as there are; each is identified by its pixels.
std::vector<Digit> numbered_digits(std::size_t count) {
  std::vector<Digit> digits(count);
  for (std::size_t i = 0; i < count; ++i) {
    digits[i].label = static_cast<std::uint8_t>(i % 10);
    digits[i].pixels[0] = static_cast<std::uint8_t>(i % 13);
    digits[i].pixels[7] = static_cast<std::uint8_t>(i / 13 % 13);
    digits[i].pixels[63] = static_cast<std::uint8_t>(i / 169);
  }
  return digits;
}

TEST(ParseDigits, ReadsPixelsAndLabel) {
  std::istringstream csv("16,0,3" + line(5, 9).substr(5) + line(0, 0));
  const std::vector<Digit> digits = parse_digits(csv);
  ASSERT_EQ(digits.size(), 2U);
  EXPECT_EQ(digits[0].label, 9);
  EXPECT_EQ(digits[0].pixels[0], 16);
  EXPECT_EQ(digits[0].pixels[2], 3);
  EXPECT_EQ(digits[0].pixels[63], 5);
  EXPECT_EQ(digits[1].label, 0);
}

TEST(ParseDigits, NamesLineAndFieldOfWhatIsWrong) {
  EXPECT_THAT(parse_error(line(1, 1) + line(17, 1)), AllOf(HasSubstr("line 2"), HasSubstr("'17'")));
  EXPECT_THAT(parse_error(line(1, 10)), AllOf(HasSubstr("field 65"), HasSubstr("'10'")));
  EXPECT_THAT(parse_error(line(-1, 1)), HasSubstr("field 1 is '-1'"));
  EXPECT_THAT(parse_error("1,2,3\n"), HasSubstr("3 fields"));
  EXPECT_THAT(parse_error("1," + line(1, 1)), HasSubstr("field 66"));
  EXPECT_THAT(parse_error("\n"), HasSubstr("line 1"));
  EXPECT_THAT(parse_error("1,,2"), HasSubstr("field 2 is ''"));
  EXPECT_THAT(parse_error("4 4"), HasSubstr("'4 4'"));
}

TEST(ParseDigits, EndsWithTextThatDoesNot) {
  EXPECT_THAT(parse_error(line(1, 1) + std::string(1 << 20, '0')),
              AllOf(HasSubstr("line 2"), HasSubstr("more than 1024 characters")));
  std::string lines;
  for (int i = 0; i < 100001; ++i) lines += line(1, 1);
  EXPECT_THAT(parse_error(lines), AllOf(HasSubstr("line 100001"), HasSubstr("no more than")));
}

TEST(ToRecord, ScalesTheRangeOfInk) {
  Digit digit{};
  digit.pixels.fill(digit_maximum);
  digit.label = 7;
  const auto record = to_record(digit);
  EXPECT_EQ(record[0], 7);
  EXPECT_TRUE(
      std::all_of(record.begin() + 1, record.end(), [](int value) { return value == 255; }));
  digit.pixels.fill(8);
  EXPECT_EQ(to_record(digit)[1], 128);
}

TEST(ToRecord, InterpolatesBetweenPixelCentres) {
  Digit digit{};
  digit.pixels[8 * 2 + 3] = 16;  // row 2, column 3: rows 8 .. 11, columns 12 .. 15 of the image
  const auto record = to_record(digit);
  const auto at = [&](int channel, int row, int column) {
    return int{record[1 + static_cast<std::size_t>(channel) * plane_bytes +
                      static_cast<std::size_t>(row * side + column)]};
  };
  for (int channel = 0; channel < 3; ++channel) {
    // An output pixel's centre is 1/8 or 3/8 of a digit's pixel away from the nearest one's.
    EXPECT_EQ(at(channel, 9, 13), 195);  // 255 * (7/8)^2
    EXPECT_EQ(at(channel, 8, 13), 139);  // 255 * 5/8 * 7/8
    EXPECT_EQ(at(channel, 8, 12), 100);  // 255 * (5/8)^2
    EXPECT_EQ(at(channel, 7, 13), 84);   // 255 * 3/8 * 7/8
    EXPECT_EQ(at(channel, 6, 13), 28);   // 255 * 1/8 * 7/8
    EXPECT_EQ(at(channel, 5, 13), 0);
    EXPECT_EQ(at(channel, 9, 18), 0);
  }
  digit.pixels.fill(0);
  digit.pixels[0] = 16;
  EXPECT_EQ(to_record(digit)[1], 255) << "beyond the outermost centres the edge goes on";
}

TEST(WriteDigits, SplitsIntoFoldersThatLoad) {
  const TemporaryFolder folder;
  const fs::path target = folder.path() / "new" / "digits";
  const std::vector<Digit> digits = numbered_digits(1797);
  write_digits(digits, 1, target);

  EXPECT_EQ(fs::file_size(target / "data_batch_1.bin"), 1437U * 3073U);
  EXPECT_EQ(fs::file_size(target / "test_batch.bin"), 360U * 3073U);
  const DataSets data = open_cifar(target);
  EXPECT_EQ(data.id(), "digits");

  // Every digit is in one of the two files, once.
  std::map<std::string, int> expected;
  for (const Digit& digit : digits) {
    const auto record = to_record(digit);
    ++expected[std::string(record.begin(), record.end())];
  }
  ASSERT_EQ(expected.size(), digits.size());
  std::vector<std::uint8_t> memory;
  for (const Dataset* part : {data.training.get(), data.validation.get()}) {
    for (std::size_t image = 0; image < part->size(); ++image) {
      std::string record(1, static_cast<char>(part->label(image)));
      const auto pixels = part->encoded(image, memory).bytes;
      record.append(pixels.begin(), pixels.end());
      EXPECT_EQ(expected[record]--, 1);
    }
  }
}

TEST(WriteDigits, TheSeedDrawsTheSplit) {
  const TemporaryFolder folder;
  const std::vector<Digit> digits = numbered_digits(1797);
  const auto validation = [&](std::uint64_t seed, const char* name) {
    write_digits(digits, seed, folder.path() / name);
    std::ifstream file(folder.path() / name / "test_batch.bin", std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string first = validation(1, "a");
  EXPECT_EQ(first.size(), 360U * 3073U);
  EXPECT_EQ(first, validation(1, "b"));
  EXPECT_NE(first, validation(2, "c"));
}

TEST(WriteDigits, RefusesAnotherNumberAndAFolderThatExists) {
  const TemporaryFolder folder;
  const fs::path target = folder.path() / "digits";
  EXPECT_THAT(message_of([&] { write_digits(numbered_digits(1796), 1, target); }),
              AllOf(HasSubstr("Found 1796"), HasSubstr("expected 1797")));
  EXPECT_FALSE(fs::exists(target));
  fs::create_directory(target);
  EXPECT_THAT(message_of([&] { write_digits(numbered_digits(1797), 1, target); }),
              AllOf(HasSubstr(target.string()), HasSubstr("exists already")));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1)
      << "a draft was left behind";
}

}  // namespace
}  // namespace vision
