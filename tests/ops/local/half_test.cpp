#include "ops/local/half.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "ops/local/kernels.h"
#include "tests/support/reference/half_format.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using test::HalfFormat;

struct Conversion {
  const char* name;
  HalfFormat format;
  std::uint16_t (*to)(float) noexcept;
  float (*from)(std::uint16_t) noexcept;
};

class HalfTest : public testing::TestWithParam<Conversion> {
 protected:
  /// Of `value` and its negative.
  void expect_rounds_like_the_reference(float value) {
    for (const float signed_value : {value, -value}) {
      const std::uint16_t expected = test::encode(GetParam().format, signed_value);
      ASSERT_EQ(GetParam().to(signed_value), expected)
          << std::hexfloat << signed_value << " = " << signed_value;
    }
  }
};

TEST_P(HalfTest, EveryPatternWidensToItsValue) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const double expected = test::decode(GetParam().format, half);
    const float value = GetParam().from(half);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(value), expected) << bits;
    }
    ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << bits;
  }
}

TEST_P(HalfTest, EveryPatternComesBack) {
  const HalfFormat format = GetParam().format;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const auto quiet = static_cast<std::uint16_t>(1 << (format.mantissa_bits - 1));
    const auto expected =
        test::is_nan(format, half) ? static_cast<std::uint16_t>(half | quiet) : half;
    ASSERT_EQ(GetParam().to(GetParam().from(half)), expected) << bits;
  }
}

TEST_P(HalfTest, RoundsToNearestEvenAroundEveryMidpoint) {
  const HalfFormat format = GetParam().format;
  for (std::uint32_t bits = 0; bits < 0x7fff; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if (!std::isfinite(test::decode(format, half))) break;
    const double low = test::decode(format, half);
    // Beyond the largest finite value: where one more step would have led.
    const double up =
        low + std::ldexp(1.0, std::max(low == 0 ? format.least_exponent : std::ilogb(low),
                                       format.least_exponent) -
                                  format.mantissa_bits);
    const auto middle = static_cast<float>((low + up) / 2);
    expect_rounds_like_the_reference(middle);
    expect_rounds_like_the_reference(std::nextafter(middle, 0.0f));
    expect_rounds_like_the_reference(
        std::nextafter(middle, std::numeric_limits<float>::infinity()));
  }
}

TEST_P(HalfTest, RoundsRandomNumbersLikeTheReference) {
  std::mt19937_64 random = test::generator();
  for (int i = 0; i < 500000; ++i) {
    const auto any = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isnan(any)) {
      ASSERT_TRUE(std::isnan(GetParam().from(GetParam().to(any))));
    } else {
      expect_rounds_like_the_reference(any);
    }
    // Most random patterns are out of float16's range; these are in it, subnormals included.
    const int power = static_cast<int>(random() % 44) - 27;
    const double mantissa = 1.0 + static_cast<double>(random() % (1 << 23)) / (1 << 23);
    expect_rounds_like_the_reference(static_cast<float>(std::ldexp(mantissa, power)));
  }
}

TEST_P(HalfTest, NanStaysNanWhereItsPayloadIsLost) {
  for (const std::uint32_t bits :
       {0x7f800001u, 0xff800001u, 0x7f801000u, 0x7fffffffu, 0xffffffffu}) {
    EXPECT_TRUE(test::is_nan(GetParam().format, GetParam().to(std::bit_cast<float>(bits)))) << bits;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats, HalfTest,
    testing::Values(Conversion{"float16", test::kFloat16, to_float16, from_float16},
                    Conversion{"bfloat16", test::kBfloat16, to_bfloat16, from_bfloat16}),
    [](const auto& instance) { return instance.param.name; });

TEST(Float16, KnownValues) {
  EXPECT_EQ(to_float16(1.0f), 0x3c00);
  EXPECT_EQ(to_float16(-2.0f), 0xc000);
  EXPECT_EQ(to_float16(65504.0f), 0x7bff);
  EXPECT_EQ(to_float16(65519.996f), 0x7bff);
  EXPECT_EQ(to_float16(65520.0f), 0x7c00);
  EXPECT_EQ(to_float16(0x1p-24f), 0x0001);
  EXPECT_EQ(to_float16(0x1p-25f), 0x0000);
  EXPECT_EQ(to_float16(-0.0f), 0x8000);
}

/// As the F16C instructions widen them.
TEST(Float16, SignallingNanBecomesQuietAndKeepsItsPayload) {
  EXPECT_EQ(std::bit_cast<std::uint32_t>(from_float16(0x7c01)), 0x7fc02000u);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(from_float16(0xfdff)), 0xffffe000u);
}

TEST(Bfloat16, KnownValues) {
  EXPECT_EQ(to_bfloat16(1.0f), 0x3f80);
  EXPECT_EQ(to_bfloat16(0x1.01p0f), 0x3f80);
  EXPECT_EQ(to_bfloat16(0x1.03p0f), 0x3f82);
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::max()), 0x7f80);
}

}  // namespace
}  // namespace hora::internal
