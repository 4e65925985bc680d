#include "examples/vision/data/transform.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/examples/vision/data/files.h"
#include "tests/support/seed.h"

namespace vision {
namespace {

TEST(Random, RepeatsAndDependsOnEveryPartOfTheKey) {
  const std::uint64_t seed = hora::internal::test::seed();
  EXPECT_EQ(Random({seed, 1, 2}).next(), Random({seed, 1, 2}).next());
  EXPECT_NE(Random({seed, 1, 2}).next(), Random({seed, 2, 1}).next());
  EXPECT_NE(Random({seed, 1, 2}).next(), Random({seed, 1, 3}).next());
  EXPECT_NE(Random({seed, 1, 2}).next(), Random({seed + 1, 1, 2}).next());
}

Random random_of(std::uint64_t number) {
  return Random{hora::internal::test::seed(), number};
}

TEST(Place, RandomResizedCropDrawsAreaRatioAndPlaceUniformly) {
  const ImageSize image{500, 375};
  constexpr int draws = 20'000;
  double area = 0;
  double log_ratio = 0;
  double left = 0;
  for (int i = 0; i < draws; ++i) {
    Random random = random_of(static_cast<std::uint64_t>(i));
    const Placement placement = place(RandomResizedCrop{}, false, image, random);
    const Box& crop = placement.crop;
    ASSERT_TRUE(crop.left >= 0 && crop.left + crop.width <= image.width);
    ASSERT_TRUE(crop.top >= 0 && crop.top + crop.height <= image.height);
    ASSERT_EQ(placement, (Placement{crop, {224, 224}, {0, 0, 224, 224}}));
    const double share = static_cast<double>(crop.width) * crop.height / (500.0 * 375.0);
    ASSERT_GT(share, 0.08 - 0.01);
    area += share / draws;
    log_ratio += std::log(static_cast<double>(crop.width) / crop.height) / draws;
    if (crop.width < image.width) {
      left += static_cast<double>(crop.left) / (image.width - crop.width) / draws;
    }
  }
  // torchvision 0.14's RandomResizedCrop.get_params on the same size, 100,000 draws. Deviations of
  // these means: 0.0015, 0.0012 and 0.0021; the bounds are six of them.
  EXPECT_NEAR(area, 0.4339, 0.0095);
  EXPECT_NEAR(log_ratio, 0.0308, 0.0075);
  EXPECT_NEAR(left, 0.4995, 0.013);
}

TEST(Place, RandomResizedCropOfAnImageTooLongTakesItsMiddle) {
  Random random = random_of(0);
  EXPECT_EQ(place(RandomResizedCrop{}, false, {1000, 10}, random).crop, (Box{493, 0, 13, 10}));
  EXPECT_EQ(place(RandomResizedCrop{}, false, {10, 1000}, random).crop, (Box{0, 493, 10, 13}));
  EXPECT_EQ(place(RandomResizedCrop{}, false, {1, 1}, random).crop, (Box{0, 0, 1, 1}));
}

TEST(Place, RandomCropReachesEveryPlaceAndBothFlips) {
  std::set<std::pair<int, int>> places;
  int flips = 0;
  constexpr int draws = 4000;
  for (int i = 0; i < draws; ++i) {
    Random random = random_of(static_cast<std::uint64_t>(i));
    const Placement placement = place(RandomCrop{{32, 32}, 4}, true, {32, 32}, random);
    const auto [left, top, width, height] = placement.window;
    ASSERT_EQ(placement,
              (Placement{whole({32, 32}), {32, 32}, {left, top, 32, 32}, placement.flip}));
    ASSERT_LE(std::max(std::abs(left), std::abs(top)), 4);
    places.insert({left, top});
    flips += placement.flip ? 1 : 0;
  }
  EXPECT_EQ(places.size(), 81U);
  // The deviation of the count is 32; six of them are 190.
  EXPECT_NEAR(flips, draws / 2, 190);
}

TEST(Place, RandomCropOfOtherSizes) {
  for (int i = 0; i < 200; ++i) {
    Random random = random_of(static_cast<std::uint64_t>(i));
    const Box larger = place(RandomCrop{{20, 10}, 2}, false, {40, 11}, random).window;
    EXPECT_TRUE(larger.left >= -2 && larger.left <= 22);
    EXPECT_TRUE(larger.top >= -2 && larger.top <= 3);
    EXPECT_EQ(place(RandomCrop{{32, 32}, 0}, false, {32, 32}, random).window, (Box{0, 0, 32, 32}));
    EXPECT_EQ(place(RandomCrop{{32, 32}, 1}, false, {20, 32}, random).window.left, -6);
  }
}

// Sizes and places of torchvision 0.14's Resize(256) and CenterCrop(224).
TEST(Place, CentreCropRoundsAsTorchvision) {
  struct Row {
    ImageSize image, resized;
    int left, top;  ///< of the window
  };
  Random random = random_of(0);
  for (const auto& [image, resized, left, top] :
       {Row{{500, 375}, {341, 256}, 58, 16}, Row{{375, 500}, {256, 341}, 16, 58},
        Row{{256, 257}, {256, 257}, 16, 16}, Row{{256, 259}, {256, 259}, 16, 18},
        Row{{10, 10}, {256, 256}, 16, 16}}) {
    const Placement placed = place(CentreCrop{}, false, image, random);
    EXPECT_EQ(placed.resized, resized);
    EXPECT_EQ(placed.window, (Box{left, top, 224, 224}));
  }
  EXPECT_EQ(place(CentreCrop{41, 64}, false, {480, 360}, random).window, (Box{-5, -11, 64, 64}));
}

TEST(LargestDenominator, KeepsTheResizedSize) {
  using Row = std::array<int, 3>;  // width, height, denominator
  for (const auto& [width, height, denominator] :
       {Row{100, 100, 1}, Row{671, 3000, 1}, Row{672, 672, 2}, Row{1344, 1343, 2},
        Row{1344, 1344, 4}, Row{2688, 9000, 8}}) {
    EXPECT_EQ(largest_denominator({{5, 5, width, height}, {224, 224}, {0, 0, 224, 224}}),
              denominator);
  }
}

constexpr int side = 64;  // of a tile

Image decode(const std::string& name, ImageFormat format, int denominator = 1) {
  const std::vector<std::uint8_t> bytes = test::read_bytes(REFERENCE "/" + name);
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

/// The values' differences: their mean and the largest.
std::pair<double, double> difference(const std::vector<float>& values, const auto& expected) {
  EXPECT_EQ(values.size(), expected.size());
  double sum = 0;
  double most = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double one = std::abs(static_cast<double>(values[i]) - expected[i]);
    sum += one;
    most = std::max(most, one);
  }
  return {sum / static_cast<double>(values.size()), most};
}

struct Case {
  Image source;
  Placement placement;
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
    return {photograph(), {box(json["crop"]), tile, whole_tile, json.value("flip", false)}};
  }
  if (kind == "centre_crop") {
    return {photograph(), place(CentreCrop{json["shorter_side"], side}, false, size, random)};
  }
  if (kind == "resize") {
    return {photograph(), place(Resize{tile}, false, size, random)};
  }
  EXPECT_EQ(kind, "padded_crop");
  return {part(photograph(), box(json["of"])),
          {whole_tile, tile, {json["place"][0], json["place"][1], side, side}}};
}

// Pillow rounds to 8 bits what here is computed in float: a tie may fall to the other side.
TEST(Transform, GivesTorchvisionsPixels) {
  const auto cases = nlohmann::json::parse(test::read_bytes(REFERENCE "/cases.json"));
  const Image tiles = decode("tiles.png", ImageFormat::png);
  ASSERT_EQ(tiles.size.height, side * static_cast<int>(cases.size()));
  for (std::size_t number = 0; number < cases.size(); ++number) {
    SCOPED_TRACE(cases[number].dump());
    const Case made = case_of(cases[number]);
    Transform transform({.geometry = Resize{{side, side}},
                         .normalisation = to_pixels,
                         .layout = Layout::channels_last});
    std::vector<float> pixels(transform.output_floats(), -1);
    transform.apply(made.source, 1, made.placement, pixels.data());
    const Image tile = part(tiles, {0, side * static_cast<int>(number), side, side});
    const auto [mean, most] = difference(pixels, tile.pixels);
    EXPECT_LT(mean, 0.01);
    EXPECT_LT(most, 1.01);
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
    transform.apply(photograph(), 1, placement, exact.data());
    std::vector<float> scaled(transform.output_floats());
    transform.apply(decode("photograph.jpg", ImageFormat::jpeg, denominator), denominator,
                    placement, scaled.data());
    const double mean = difference(exact, scaled).first;
    EXPECT_LT(mean, 2) << "1/" << denominator << " of " << crop.width << " x " << crop.height
                       << " to " << to;
    EXPECT_GT(mean, 0);
  }
}

TEST(Transform, DecodesPlacesAndNormalisesInOneCallAndNamesABadImage) {
  const std::vector<std::uint8_t> bytes = test::read_bytes(REFERENCE "/photograph.jpg");
  const EncodedImage encoded{ImageFormat::jpeg, bytes, {}};
  const TransformOptions options{.geometry = RandomResizedCrop{.size = side},
                                 .flip = true,
                                 .normalisation = imagenet_normalisation};
  Transform transform(options);
  TransformOptions last_options = options;
  last_options.layout = Layout::channels_last;
  Transform channels_last(last_options);
  std::vector<float> out(transform.output_floats());
  for (std::uint64_t image = 0; image < 10; ++image) {
    const Random random{hora::internal::test::seed(), image};
    transform.apply(encoded, "a", random, out.data());
    std::vector<float> last(transform.output_floats());
    channels_last.apply(encoded, "a", random, last.data());

    Random again = random;
    const Placement placement = place(options.geometry, true, photograph().size, again);
    Transform plain({.geometry = options.geometry, .normalisation = to_pixels});
    std::vector<float> pixels(transform.output_floats());
    const int denominator = largest_denominator(placement);
    plain.apply(decode("photograph.jpg", ImageFormat::jpeg, denominator), denominator, placement,
                pixels.data());
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::size_t channel = i / (side * side);
      const float expected = (pixels[i] / 255.0F - imagenet_normalisation.mean[channel]) /
                             imagenet_normalisation.deviation[channel];
      ASSERT_NEAR(out[i], expected, 1e-5);
      ASSERT_EQ(last[i % (side * side) * 3 + channel], out[i]);
    }
  }
  const EncodedImage half{ImageFormat::jpeg, encoded.bytes.first(bytes.size() / 2), {}};
  EXPECT_THAT([&] { transform.apply(half, "folder/half.jpg", Random{0}, out.data()); },
              testing::ThrowsMessage<BadImage>(testing::StartsWith("folder/half.jpg: ")));
}

}  // namespace
}  // namespace vision
