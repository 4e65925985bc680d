#include "examples/cifar10/augmentation.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <utility>
#include <vector>

#include "tests/support/seed.h"

namespace cifar10 {
namespace {

constexpr Normalisation plain{{0, 0, 0}, {1, 1, 1}};

// Pixel (row, column) of channel c is 1 + 7 * row + column + 3 * c; none is black.
std::array<std::uint8_t, image_bytes> image() {
  std::array<std::uint8_t, image_bytes> pixels{};
  std::size_t place = 0;
  for (int channel = 0; channel < channels; ++channel) {
    for (int row = 0; row < side; ++row) {
      for (int column = 0; column < side; ++column) {
        pixels[place++] = static_cast<std::uint8_t>(1 + 7 * row + column + 3 * channel);
      }
    }
  }
  return pixels;
}

float expected(int channel, int row, int column) {
  const bool inside = row >= 0 && row < side && column >= 0 && column < side;
  return inside ? static_cast<float>((1 + 7 * row + column + 3 * channel) % 256) / 255.0F : 0.0F;
}

void expect_placed(const Placement& placement) {
  std::vector<float> out(image_bytes, -1);
  write_image(image(), placement, plain, out.data());
  std::size_t place = 0;
  for (int channel = 0; channel < channels; ++channel) {
    for (int row = 0; row < side; ++row) {
      for (int column = 0; column < side; ++column) {
        const int unflipped = placement.flip ? side - 1 - column : column;
        ASSERT_NEAR(out[place++],
                    expected(channel, row - placement.down, unflipped - placement.right), 1e-6)
            << "channel " << channel << " row " << row << " column " << column;
      }
    }
  }
}

TEST(WriteImage, LeavesMovesAndFlips) {
  expect_placed({});
  expect_placed({.down = 4, .right = -3});
  expect_placed({.down = -4, .right = 4});
  expect_placed({.flip = true});
  expect_placed({.down = 1, .right = 2, .flip = true});
}

TEST(WriteImage, NormalisesEachChannelAndWhatIsBlack) {
  const Normalisation normalisation = source_of(vision::DataKind::cifar10).normalisation;
  std::vector<float> out(image_bytes);
  write_image(image(), {.down = 1}, normalisation, out.data());
  for (std::size_t channel = 0; channel < channels; ++channel) {
    const float mean = normalisation.mean[channel];
    const float deviation = normalisation.deviation[channel];
    EXPECT_NEAR(out[channel * plane_bytes + 5], (0 - mean) / deviation, 1e-5);
    const float value = expected(static_cast<int>(channel), 9, 5);
    EXPECT_NEAR(out[channel * plane_bytes + 10 * side + 5], (value - mean) / deviation, 1e-5);
  }
}

TEST(DrawPlacement, ReachesEveryCropAndBothFlips) {
  std::set<std::pair<int, int>> places;
  int flips = 0;
  constexpr int draws = 4000;
  for (std::size_t i = 0; i < draws; ++i) {
    const Placement placement =
        draw_placement(source_of(vision::DataKind::cifar10), hora::internal::test::seed(), 0, i);
    ASSERT_LE(std::abs(placement.down), 4);
    ASSERT_LE(std::abs(placement.right), 4);
    places.insert({placement.down, placement.right});
    flips += placement.flip ? 1 : 0;
  }
  EXPECT_EQ(places.size(), 81U);
  // The deviation of the count is 32; six of them are 190.
  EXPECT_NEAR(flips, draws / 2, 190);
}

TEST(DrawPlacement, DependsOnSeedEpochAndImage) {
  const auto draw = [](std::uint64_t seed, std::uint64_t epoch) {
    std::vector<std::pair<int, int>> places;
    for (std::size_t image_number = 0; image_number < 50; ++image_number) {
      const Placement placement =
          draw_placement(source_of(vision::DataKind::cifar10), seed, epoch, image_number);
      places.emplace_back(placement.down, placement.right);
    }
    return places;
  };
  const std::uint64_t seed = hora::internal::test::seed();
  EXPECT_EQ(draw(seed, 1), draw(seed, 1));
  EXPECT_NE(draw(seed, 1), draw(seed, 2));
  EXPECT_NE(draw(seed, 1), draw(seed + 1, 1));
}

TEST(DrawPlacement, LeavesDigitsAsTheyAre) {
  for (std::size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(
        draw_placement(source_of(vision::DataKind::digits), hora::internal::test::seed(), 0, i),
        Placement{});
  }
}

}  // namespace
}  // namespace cifar10
