#include "examples/vision/data/transform.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/seed.h"

namespace vision {
namespace {

constexpr int side = 64;  // of a tile

std::vector<std::uint8_t> read(const std::string& name) {
  std::ifstream file(REFERENCE "/" + name, std::ios::binary);
  std::vector<std::uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
  EXPECT_FALSE(bytes.empty()) << name;
  return bytes;
}

Image decode(const std::string& name, ImageFormat format, int denominator = 1) {
  const std::vector<std::uint8_t> bytes = read(name);
  Decoder decoder;
  decoder.open({format, bytes, {}}, name);
  Image image;
  decoder.decode(denominator, image);
  return image;
}

const Image& photograph() {
  static const Image image = decode("photograph.jpg", ImageFormat::jpeg);
  return image;
}

Image part(const Image& image, const Box& box) {
  Image out{{box.width, box.height}, {}};
  for (int row = 0; row < box.height; ++row) {
    const auto begin =
        image.pixels.begin() +
        3 * ((box.top + row) * static_cast<std::ptrdiff_t>(image.size.width) + box.left);
    out.pixels.insert(out.pixels.end(), begin, begin + 3 * box.width);
  }
  return out;
}

// Values as pixels' 0 to 255.
constexpr float whole_value = 1.0F / 255.0F;
constexpr Normalisation to_pixels{{0, 0, 0}, {whole_value, whole_value, whole_value}};

struct Difference {
  double mean = 0;
  double most = 0;
};

Difference difference(const std::vector<float>& values, const Image& expected) {
  EXPECT_EQ(values.size(), expected.pixels.size());
  Difference found;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double one = std::abs(static_cast<double>(values[i]) - expected.pixels[i]);
    found.mean += one / static_cast<double>(values.size());
    found.most = std::max(found.most, one);
  }
  return found;
}

struct Case {
  Image source;
  Placement placement;
  ColourChanges changes;
  bool colour = false;
};

Box box(const nlohmann::json& json) {
  return {json[0], json[1], json[2], json[3]};
}

constexpr Box whole_tile{0, 0, side, side};

Case case_of(const nlohmann::json& json) {
  const std::string kind = json["kind"];
  const ImageSize tile{side, side};
  const ImageSize size = photograph().size;
  Random random{0};
  if (kind == "resized_crop") {
    return {photograph(), {box(json["crop"]), tile, whole_tile, json.value("flip", false)}, {}};
  }
  if (kind == "centre_crop") {
    return {photograph(), place(CentreCrop{json["shorter_side"], side}, false, size, random), {}};
  }
  if (kind == "resize") {
    return {photograph(), place(Resize{tile}, false, size, random), {}};
  }
  Case made{part(photograph(), box(json["of"])), {whole_tile, tile, whole_tile}, {}};
  if (kind == "padded_crop") {
    made.placement.window = {json["place"][0], json["place"][1], side, side};
    return made;
  }
  made.colour = true;
  std::vector<ColourChange> order;
  for (const auto& change : json["changes"]) {
    const double value = change[1];
    if (change[0] == "brightness") {
      order.push_back(ColourChange::brightness);
      made.changes.brightness = value;
    } else if (change[0] == "contrast") {
      order.push_back(ColourChange::contrast);
      made.changes.contrast = value;
    } else if (change[0] == "saturation") {
      order.push_back(ColourChange::saturation);
      made.changes.saturation = value;
    } else {
      order.push_back(ColourChange::hue);
      made.changes.hue = value;
    }
  }
  // The others change nothing, but each is there once.
  for (const ColourChange change : ColourChanges{}.order) {
    if (std::find(order.begin(), order.end(), change) == order.end()) {
      order.push_back(change);
    }
  }
  std::copy(order.begin(), order.end(), made.changes.order.begin());
  return made;
}

// Pillow rounds to 8 bits what here is computed in float: a tie may fall to the other side.
TEST(Transform, GivesTorchvisionsPixels) {
  const auto cases = nlohmann::json::parse(read("cases.json"));
  const Image tiles = decode("tiles.png", ImageFormat::png);
  ASSERT_EQ(tiles.size.height, side * static_cast<int>(cases.size()));
  for (std::size_t number = 0; number < cases.size(); ++number) {
    SCOPED_TRACE(cases[number].dump());
    const Case made = case_of(cases[number]);
    TransformOptions options{.geometry = Resize{{side, side}}, .normalisation = to_pixels};
    options.jitter.brightness = made.colour ? 1 : 0;
    Transform transform(options);
    std::vector<float> out(transform.output_floats(), -1);
    transform.apply(made.source, 1, made.placement, made.changes, out.data());
    // Planes to pixels.
    std::vector<float> pixels;
    for (std::size_t i = 0; i < side * side; ++i) {
      for (std::size_t channel = 0; channel < 3; ++channel) {
        pixels.push_back(out[channel * side * side + i]);
      }
    }
    const Difference found =
        difference(pixels, part(tiles, {0, side * static_cast<int>(number), side, side}));
    EXPECT_LT(found.mean, 0.01);
    EXPECT_LT(found.most, 1.01);
  }
}

// The bound that the transforms promise for photographs: 2 of 255 on average.
TEST(Transform, ScaledDecodingStaysNearTheExactPixels) {
  const std::vector<std::pair<Box, int>> crops{
      {{0, 0, 480, 360}, 32},    {{0, 0, 480, 360}, 29}, {{30, 20, 301, 257}, 42},
      {{101, 53, 192, 201}, 64}, {{7, 9, 256, 260}, 42}, {{224, 104, 256, 256}, 20},
      {{224, 104, 256, 256}, 64}};
  for (const auto& [crop, to] : crops) {
    const Placement placement{crop, {to, to}, {0, 0, to, to}};
    const int denominator = largest_denominator(placement);
    ASSERT_GT(denominator, 1);
    Transform transform({.geometry = Resize{{to, to}}, .normalisation = to_pixels});
    std::vector<float> exact(transform.output_floats());
    transform.apply(photograph(), 1, placement, {}, exact.data());
    std::vector<float> scaled(transform.output_floats());
    transform.apply(decode("photograph.jpg", ImageFormat::jpeg, denominator), denominator,
                    placement, {}, scaled.data());
    double mean = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      mean += std::abs(exact[i] - scaled[i]) / static_cast<double>(exact.size());
    }
    EXPECT_LT(mean, 2) << "1/" << denominator << " of " << crop.width << " x " << crop.height
                       << " to " << to;
    EXPECT_GT(mean, 0);
  }
}

TEST(Transform, DecodesPlacesAndNormalisesInOneCall) {
  const std::vector<std::uint8_t> bytes = read("photograph.jpg");
  const EncodedImage encoded{ImageFormat::jpeg, bytes, {}};
  const TransformOptions options{.geometry = RandomResizedCrop{.size = side},
                                 .flip = true,
                                 .normalisation = imagenet_normalisation,
                                 .scaled_decoding = false};
  Transform transform(options);
  TransformOptions last_options = options;
  last_options.layout = Layout::channels_last;
  Transform channels_last(last_options);
  for (std::uint64_t image = 0; image < 10; ++image) {
    const Random random{hora::internal::test::seed(), image};
    std::vector<float> out(transform.output_floats());
    transform.apply(encoded, "a", random, out.data());
    std::vector<float> last(transform.output_floats());
    channels_last.apply(encoded, "a", random, last.data());

    Random again = random;
    const Placement placement = place(options.geometry, true, photograph().size, again);
    TransformOptions plain_options{.geometry = options.geometry, .normalisation = to_pixels};
    Transform plain(plain_options);
    std::vector<float> pixels(transform.output_floats());
    plain.apply(photograph(), 1, placement, {}, pixels.data());
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::size_t channel = i / (side * side);
      const float expected = (pixels[i] / 255.0F - imagenet_normalisation.mean[channel]) /
                             imagenet_normalisation.deviation[channel];
      ASSERT_NEAR(out[i], expected, 1e-5);
      ASSERT_EQ(last[i % (side * side) * 3 + channel], out[i]);
    }
  }
}

TEST(Transform, NamesTheBadImage) {
  std::vector<std::uint8_t> bytes = read("photograph.jpg");
  bytes.resize(bytes.size() / 2);
  Transform transform({.geometry = Resize{{side, side}}});
  std::vector<float> out(transform.output_floats());
  try {
    transform.apply({ImageFormat::jpeg, bytes, {}}, "folder/half.jpg", Random{0}, out.data());
    FAIL();
  } catch (const BadImage& error) {
    EXPECT_EQ(std::string(error.what()).find("folder/half.jpg: "), 0U) << error.what();
  }
}

TEST(Transform, RefusesOptionsOutOfTheirRange) {
  const auto refuse = [](const TransformOptions& options, const std::string& text) {
    try {
      const Transform transform(options);
      ADD_FAILURE() << "not refused: " << text;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  refuse({.geometry = RandomResizedCrop{.size = 0}}, "size is 0");
  refuse({.geometry = RandomResizedCrop{.scale = {0, 1}}}, "scale is 0");
  refuse({.geometry = RandomResizedCrop{.ratio = {2, 1}}}, "ratio is 2");
  refuse({.geometry = RandomCrop{{8, 8}, -1}}, "padding is -1");
  refuse({.geometry = CentreCrop{0, 1}}, "shorter_side is 0");
  refuse({.geometry = Resize{{8, 0}}}, "height is 0");
  refuse({.geometry = Resize{{8, 8}}, .jitter = {.hue = 0.6}}, "hue is 0.6");
  refuse({.geometry = Resize{{8, 8}}, .jitter = {.contrast = -1}}, "contrast is -1");
  refuse({.geometry = Resize{{8, 8}}, .normalisation = {{0, 0, 0}, {1, 0, 1}}}, "channel 1");
}

}  // namespace
}  // namespace vision
