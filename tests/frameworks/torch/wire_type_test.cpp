#include "frameworks/torch/wire_type.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "ops/local/kernels.h"

namespace hora::internal {
namespace {

using enum DataType;
constexpr std::array kFloats = {float16, bfloat16, float32, float64};

TEST(WireType, WiderTypesAreCompressed) {
  for (const DataType type : kFloats) {
    EXPECT_EQ(wire_type(Compression::none, type), type);
    const bool wide = size_of(type) > 2;
    EXPECT_EQ(wire_type(Compression::float16, type), wide ? float16 : type);
    EXPECT_EQ(wire_type(Compression::bfloat16, type), wide ? bfloat16 : type);
  }
}

TEST(GradientPasses, Float16TravelsScaledAndTheRestDoesNot) {
  for (const DataType wire : kFloats) {
    const auto [pack, unpack] = gradient_passes(wire, 1.0 / 1024, 4);
    const bool travels_scaled = wire == float16;
    EXPECT_EQ(pack.is_plain(), travels_scaled);
    EXPECT_EQ(unpack.is_plain(), !travels_scaled);
    const GradientPass& unscaling = travels_scaled ? unpack : pack;
    EXPECT_EQ(unscaling.scale, 1.0 / 1024);
    EXPECT_TRUE(unscaling.checked);
    EXPECT_EQ(gradient_passes(wire, std::nullopt, 4), GradientPasses());
    EXPECT_NE(gradient_passes(wire, 1.0, 1), GradientPasses()) << "it is still looked at";
  }
}

TEST(GradientPasses, UnpackedValuesMayBeWhateverTheirTypeHolds) {
  const GradientPass unpack = gradient_passes(float16, 1.0, 64).unpack;
  EXPECT_EQ(unpack.limit(float16), 65504.0);
  EXPECT_EQ(unpack.limit(float32), static_cast<double>(std::numeric_limits<float>::max()));
  EXPECT_EQ(unpack.limit(float64), std::numeric_limits<double>::max());
  EXPECT_TRUE(std::isinf(from_bfloat16(to_bfloat16(
      static_cast<float>(gradient_passes(bfloat16, 1.0, 1).unpack.limit(bfloat16) * 1.01)))));
}

float rounded(DataType type, double value) {
  const auto single = static_cast<float>(value);
  return type == bfloat16 ? from_bfloat16(to_bfloat16(single)) : single;
}

// The worst cases: all ranks at the limit, every partial sum rounded.
TEST(GradientPasses, SumsOfPackedValuesStayFinite) {
  for (const DataType wire : {bfloat16, float32}) {
    for (const int ranks : {1, 2, 3, 48, 257, 300, 1000, 4000}) {
      const GradientPass pack = gradient_passes(wire, 1.0, ranks).pack;
      for (const double share : {1.0, 0.99, 0.6, 0.51}) {
        const float value = rounded(wire, pack.limit(wire) * share);
        float sum = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          sum = rounded(wire, static_cast<double>(sum) + static_cast<double>(value));
        }
        EXPECT_TRUE(std::isfinite(sum)) << name_of(wire) << ", " << ranks << " ranks";
      }
      EXPECT_GT(pack.limit(wire), 1e38 / ranks) << "far from every useful gradient";
    }
  }
}

}  // namespace
}  // namespace hora::internal
