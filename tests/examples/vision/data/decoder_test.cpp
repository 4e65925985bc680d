#include "examples/vision/data/decoder.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/examples/vision/data/files.h"
#include "tests/examples/vision/temporary_folder.h"

namespace vision {
namespace {

using test::Bytes;
using test::fixture;
using test::message_of;
using test::read_bytes;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

const nlohmann::json& pillows() {
  static const auto json = nlohmann::json::parse(std::ifstream(fixture("images.json")));
  return json;
}

std::vector<std::string> files() {
  std::vector<std::string> names;
  for (const auto& expected : pillows()) {
    if (expected["denominator"] == 1) names.push_back(expected["file"]);
  }
  return names;
}

Bytes image_file(const std::string& name) {
  return read_bytes(fixture("images/" + name));
}

ImageFormat format_of(const std::string& name) {
  return name.ends_with(".png") ? ImageFormat::png : ImageFormat::jpeg;
}

// Decodes: an empty text, or the error.
std::string outcome(Decoder& decoder, ImageFormat format, const Bytes& bytes) {
  Image image;
  try {
    decoder.open({format, bytes, {}}, "the image");
    decoder.decode(1, image);
  } catch (const BadImage& error) {
    return error.what();
  }
  EXPECT_EQ(image.pixels.size(), image_bytes(image.size));
  return {};
}

TEST(Decoder, GivesPillowsPixels) {
  const Bytes all = read_bytes(fixture("images.rgb"));
  std::size_t start = 0;
  Decoder decoder;
  Image image;
  for (const auto& expected : pillows()) {
    const std::string name = expected["file"];
    const int denominator = expected["denominator"];
    SCOPED_TRACE(name + " / " + std::to_string(denominator));
    const Bytes bytes = image_file(name);
    const ImageSize whole = decoder.open({format_of(name), bytes, {}}, name);
    EXPECT_EQ(whole, (ImageSize{29, 21}));
    EXPECT_EQ(decoder.supported(denominator), denominator);
    decoder.decode(denominator, image);
    ASSERT_EQ(image.size, (ImageSize{expected["width"], expected["height"]}));
    ASSERT_LE(start + image.pixels.size(), all.size());
    int largest = 0;
    for (std::size_t i = 0; i < image.pixels.size(); ++i) {
      largest = std::max(largest, std::abs(image.pixels[i] - all[start + i]));
    }
    // One step of rounding where another version of libjpeg-turbo computes; PNG is exact.
    EXPECT_LE(largest, format_of(name) == ImageFormat::jpeg ? 1 : 0);
    start += image.pixels.size();
  }
  EXPECT_EQ(start, all.size());
}

TEST(Decoder, InterleavesPlanes) {
  const Bytes planes{1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16, 21, 22, 23, 24, 25, 26};
  Decoder decoder;
  Image image;
  EXPECT_EQ(decoder.open({ImageFormat::planar_rgb, planes, {3, 2}}, "x"), (ImageSize{3, 2}));
  EXPECT_EQ(decoder.supported(8), 1);
  decoder.decode(8, image);
  EXPECT_EQ(image.size, (ImageSize{3, 2}));
  EXPECT_EQ(image.pixels,
            (Bytes{1, 11, 21, 2, 12, 22, 3, 13, 23, 4, 14, 24, 5, 15, 25, 6, 16, 26}));
  EXPECT_THAT(
      message_of([&] {
        decoder.open({ImageFormat::planar_rgb, planes, {3, 3}}, "x");
      }),
      AllOf(StartsWith("x: "), HasSubstr("found 18 bytes"), HasSubstr("each of 3 x 3 pixels")));
}

TEST(Decoder, EveryTruncationIsABadImageAndADamagedPng) {
  Decoder decoder;
  for (const std::string& name : files()) {
    const Bytes whole = image_file(name);
    for (std::size_t left = 0; left < whole.size(); ++left) {
      const Bytes part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(left));
      ASSERT_THAT(outcome(decoder, format_of(name), part), StartsWith("the image: "))
          << name << ", " << left << " bytes of " << whole.size();
    }
    // The same decoder then takes the whole image. Every byte of a PNG counts.
    EXPECT_EQ(outcome(decoder, format_of(name), whole), "") << name;
    if (format_of(name) != ImageFormat::png) continue;
    Bytes damaged = whole;
    damaged[whole.size() / 2] ^= 1;
    EXPECT_THAT(outcome(decoder, ImageFormat::png, damaged), StartsWith("the image: ")) << name;
  }
}

TEST(Decoder, RefusesTooManyPixelsBeforeItTakesMemoryForThemAndOtherFormats) {
  Decoder decoder;
  const Bytes png = image_file("huge.png");
  EXPECT_THAT(
      outcome(decoder, ImageFormat::png, png),
      AllOf(HasSubstr("50000 x 50000 pixels are too many"), HasSubstr("at most 178956970")));
  // The sides in the frame header of a JPEG (ITU-T T.81, B.2.2), behind marker, length, precision.
  Bytes jpeg = image_file("rgb_420.jpg");
  const Bytes start_of_frame{0xff, 0xc0};
  const auto frame =
      std::search(jpeg.begin(), jpeg.end(), start_of_frame.begin(), start_of_frame.end());
  ASSERT_NE(frame, jpeg.end());
  for (const int side : {0, 2}) {
    frame[5 + side] = 50'000 / 256;
    frame[6 + side] = 50'000 % 256;
  }
  EXPECT_THAT(outcome(decoder, ImageFormat::jpeg, jpeg),
              HasSubstr("50000 x 50000 pixels are too many"));

  Decoder small(29 * 21 - 1);
  EXPECT_THAT(outcome(small, ImageFormat::png, image_file("rgb.png")), HasSubstr("at most 608"));
  Decoder just(29 * 21);
  EXPECT_EQ(outcome(just, ImageFormat::png, image_file("rgb.png")), "");
  EXPECT_THAT(outcome(just, ImageFormat::jpeg, image_file("rgb.png")),
              HasSubstr("Not a JPEG file"));
  EXPECT_THAT(outcome(just, ImageFormat::png, image_file("grey.jpg")), HasSubstr("Not a PNG file"));
}

}  // namespace
}  // namespace vision
