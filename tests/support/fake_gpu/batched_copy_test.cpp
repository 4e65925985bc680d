#include "tests/support/fake_gpu/batched_copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/local/kernels.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

template <class Target, class Source>
Target convert(DataType target_type, DataType source_type, Source source, double scale = 1.0) {
  Target target{};
  const std::array pieces = {CopyPiece{&source, &target, 1}};
  const BatchedCopy copy{pieces, source_type, target_type, scale};
  EXPECT_TRUE(valid(copy));
  run(copy);
  return target;
}

using enum DataType;

TEST(BatchedCopyTest, ConvertsAsTheKernelsOfTheHostDo) {
  auto random = generator();
  for (int i = 0; i < 20000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random());
    const auto value = std::bit_cast<float>(bits);
    const auto half = static_cast<std::uint16_t>(bits);
    if (std::isnan(value) || std::isnan(from_float16(half)) || std::isnan(from_bfloat16(half))) {
      continue;
    }
    EXPECT_EQ((convert<std::uint16_t>(float16, float32, value)), to_float16(value)) << value;
    EXPECT_EQ((convert<std::uint16_t>(bfloat16, float32, value)), to_bfloat16(value)) << value;
    EXPECT_EQ((convert<float>(float32, float16, half)), from_float16(half));
    EXPECT_EQ((convert<double>(float64, bfloat16, half)), from_bfloat16(half));
    EXPECT_EQ((convert<std::uint16_t>(bfloat16, float16, half)), to_bfloat16(from_float16(half)));
    EXPECT_EQ((convert<std::uint16_t>(float16, bfloat16, half)), to_float16(from_bfloat16(half)));
    EXPECT_EQ((convert<float>(float32, float32, value, 0.25)),
              static_cast<float>(static_cast<double>(value) * 0.25));
  }
}

TEST(BatchedCopyTest, RoundsOnceAndKeepsWhatIsNotFinite) {
  // Just above the middle of 1 and the next float16; as a float it is that middle, and goes to
  // even.
  const double above = 1 + 0x1p-11 + 0x1p-40;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ((convert<std::uint16_t>(float16, float64, above)), 0x3c01);
  EXPECT_EQ((convert<std::uint16_t>(float16, float64, -above)), 0xbc01);
  EXPECT_EQ((convert<std::uint16_t>(float16, float64, 1 + 0x1p-11)), 0x3c00);
  // 3 * (1/3 as a double) is 1 - 2^-54: just below the middle of two float32.
  EXPECT_EQ((convert<float>(float32, float32, 3.0F, 1.0 / 3)), 1.0F);
  EXPECT_EQ((convert<std::uint16_t>(float16, float32, kInfinity)), 0x7c00);
  EXPECT_EQ((convert<std::uint16_t>(bfloat16, float64, -1e300)), 0xff80);
  EXPECT_EQ((convert<std::uint16_t>(float16, float32, -1e-30F)), 0x8000);
  EXPECT_TRUE(std::isnan(convert<double>(float64, float32, std::nanf(""), 2.0)));
  EXPECT_EQ((convert<std::uint32_t>(float32, float32, 0x7fa00001U)), 0x7fa00001U) << "a NaN's bits";
  EXPECT_EQ((convert<std::uint8_t>(boolean, uint8, std::uint8_t{0})), 0);
  EXPECT_EQ((convert<std::uint8_t>(boolean, uint8, std::uint8_t{128})), 1);
}

TEST(BatchedCopyTest, MovesManyPiecesAndZeros) {
  std::vector<float> source = {1, 2, 3, 4, 5};
  std::vector<double> target(8, -1);
  const std::array pieces = {CopyPiece{source.data() + 1, target.data(), 3},
                             CopyPiece{nullptr, target.data() + 3, 2},
                             CopyPiece{source.data(), target.data() + 6, 1},
                             CopyPiece{source.data(), target.data() + 7, 0}};
  run({pieces, float32, float64, 2.0});
  EXPECT_THAT(target, testing::ElementsAre(4, 6, 8, 0, 0, -1, 2, -1));
}

// Where products are formed, whatever the target's type. Other limits: tests/gpu.
TEST(BatchedCopyTest, TheFlagTellsOfAProductThatIsNotFinite) {
  const auto flag_after = [](float source, auto target, DataType type, double scale) {
    auto flag = target;
    constexpr double kMost = std::numeric_limits<double>::max();
    run({std::array{CopyPiece{&source, &target, 1}}, float32, type, scale, &flag, kMost});
    return flag != decltype(flag){0};
  };
  EXPECT_FALSE(flag_after(1e38F, std::uint16_t{0}, float16, 0.5));
  EXPECT_TRUE(flag_after(3e38F, 0.0F, float32, 2.0));
  EXPECT_FALSE(flag_after(3e38F, 0.0, float64, 2.0));
}

TEST(BatchedCopyTest, RefusesWhatCannotBeConverted) {  // the rest: tests/gpu
  alignas(8) std::array<std::byte, 16> memory{};
  const std::array pieces = {CopyPiece{memory.data(), memory.data() + 8, 1}};
  EXPECT_FALSE(valid({pieces, int32, int32, 0.5}));
  EXPECT_FALSE(valid({pieces, uint8, boolean, 0.5}));
  EXPECT_FALSE(valid({pieces, boolean, uint8, 1.0}));
}

}  // namespace
}  // namespace hora::internal::test
