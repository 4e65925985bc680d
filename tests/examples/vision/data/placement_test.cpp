#include "examples/vision/data/placement.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "examples/vision/data/colour_jitter.h"
#include "tests/support/seed.h"

namespace vision {
namespace {

Random random_of(std::uint64_t number) {
  return Random{hora::internal::test::seed(), number};
}

TEST(Place, RandomResizedCropDrawsAreaRatioAndPlaceUniformly) {
  const ImageSize image{500, 375};
  const RandomResizedCrop geometry{};
  constexpr int draws = 20'000;
  double area = 0;
  double log_ratio = 0;
  double left = 0;
  for (int i = 0; i < draws; ++i) {
    Random random = random_of(static_cast<std::uint64_t>(i));
    const Placement placement = place(geometry, false, image, random);
    const Box& crop = placement.crop;
    ASSERT_GE(crop.left, 0);
    ASSERT_GE(crop.top, 0);
    ASSERT_LE(crop.left + crop.width, image.width);
    ASSERT_LE(crop.top + crop.height, image.height);
    ASSERT_EQ(placement.resized, (ImageSize{224, 224}));
    ASSERT_EQ(placement.window, (Box{0, 0, 224, 224}));
    ASSERT_FALSE(placement.flip);
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
  EXPECT_EQ(place(RandomResizedCrop{.scale = {1, 1}}, false, {100, 10}, random).crop,
            (Box{43, 0, 13, 10}));
  EXPECT_EQ(place(RandomResizedCrop{.scale = {1, 1}}, false, {10, 100}, random).crop,
            (Box{0, 43, 10, 13}));
  EXPECT_EQ(place(RandomResizedCrop{}, false, {1, 1}, random).crop, (Box{0, 0, 1, 1}));
}

TEST(Place, RandomCropReachesEveryPlaceAndBothFlips) {
  std::set<std::pair<int, int>> places;
  int flips = 0;
  constexpr int draws = 4000;
  for (int i = 0; i < draws; ++i) {
    Random random = random_of(static_cast<std::uint64_t>(i));
    const Placement placement = place(RandomCrop{{32, 32}, 4}, true, {32, 32}, random);
    EXPECT_EQ(placement.crop, (Box{0, 0, 32, 32}));
    EXPECT_EQ(placement.resized, (ImageSize{32, 32}));
    ASSERT_LE(std::abs(placement.window.left), 4);
    ASSERT_LE(std::abs(placement.window.top), 4);
    places.insert({placement.window.left, placement.window.top});
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
    EXPECT_GE(larger.left, -2);
    EXPECT_LE(larger.left, 22);
    EXPECT_GE(larger.top, -2);
    EXPECT_LE(larger.top, 3);
    EXPECT_EQ(place(RandomCrop{{32, 32}, 0}, false, {32, 32}, random).window, (Box{0, 0, 32, 32}));
    EXPECT_EQ(place(RandomCrop{{32, 32}, 1}, false, {20, 32}, random).window.left, -6);
  }
}

// Sizes and places of torchvision 0.14's Resize(256) and CenterCrop(224).
TEST(Place, CentreCropRoundsAsTorchvision) {
  Random random = random_of(0);
  const auto placed = [&](ImageSize image) { return place(CentreCrop{}, false, image, random); };
  EXPECT_EQ(placed({500, 375}).resized, (ImageSize{341, 256}));
  EXPECT_EQ(placed({500, 375}).window, (Box{58, 16, 224, 224}));
  EXPECT_EQ(placed({375, 500}).resized, (ImageSize{256, 341}));
  EXPECT_EQ(placed({256, 257}).window, (Box{16, 16, 224, 224}));
  EXPECT_EQ(placed({256, 259}).window, (Box{16, 18, 224, 224}));
  EXPECT_EQ(placed({10, 10}).resized, (ImageSize{256, 256}));
  EXPECT_EQ(place(CentreCrop{41, 64}, false, {480, 360}, random).window, (Box{-5, -11, 64, 64}));
}

TEST(LargestDenominator, KeepsTheResizedSize) {
  const auto denominator = [](int width, int height) {
    return largest_denominator({{5, 5, width, height}, {224, 224}, {0, 0, 224, 224}});
  };
  EXPECT_EQ(denominator(100, 100), 1);
  EXPECT_EQ(denominator(671, 3000), 1);
  EXPECT_EQ(denominator(672, 672), 2);
  EXPECT_EQ(denominator(1344, 1343), 2);
  EXPECT_EQ(denominator(1344, 1344), 4);
  EXPECT_EQ(denominator(2688, 9000), 8);
}

TEST(DrawColours, StaysInItsIntervalsInEveryOrder) {
  const ColourJitter jitter{.brightness = 0.4, .contrast = 1.5, .saturation = 0, .hue = 0.1};
  std::set<std::array<ColourChange, 4>> orders;
  for (int i = 0; i < 2000; ++i) {
    Random random = random_of(static_cast<std::uint64_t>(i));
    const ColourChanges changes = draw(jitter, random);
    ASSERT_GE(changes.brightness, 0.6);
    ASSERT_LE(changes.brightness, 1.4);
    ASSERT_GE(changes.contrast, 0);
    ASSERT_LE(changes.contrast, 2.5);
    ASSERT_EQ(changes.saturation, 1);
    ASSERT_LE(std::abs(changes.hue), 0.1);
    orders.insert(changes.order);
  }
  EXPECT_EQ(orders.size(), 24U);
}

}  // namespace
}  // namespace vision
