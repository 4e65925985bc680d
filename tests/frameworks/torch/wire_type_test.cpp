#include "frameworks/torch/wire_type.h"

#include <gtest/gtest.h>

#include <array>

namespace hora {
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

TEST(WireType, CompressionsHaveNames) {
  EXPECT_EQ(name_of(Compression::none), "none");
  EXPECT_EQ(name_of(Compression::float16), "float16");
  EXPECT_EQ(name_of(Compression::bfloat16), "bfloat16");
}

}  // namespace
}  // namespace hora
