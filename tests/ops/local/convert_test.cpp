#include <gtest/gtest.h>
#include <hora/error.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ops/local/kernel_table.h"
#include "ops/local/kernels.h"
#include "tests/support/reference/elements.h"
#include "tests/support/reference/half_format.h"
#include "tests/support/reference/reference.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using enum DataType;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double decode(DataType type, const std::byte* memory) {
  return test::number_at(type, {memory, memory + size_of(type)}, 0);
}

void encode(DataType type, std::byte* memory, double value) {
  std::ranges::copy(test::to_bytes(type, {value}), memory);
}

/// One element, as kernels.h says. `within`: becomes false.
void model(DataType source, const std::byte* in, DataType target, std::byte* out,
           const Conversion& conversion, bool& within) {
  double product = decode(source, in);
  if (source == float64 || target == float64) {
    product *= conversion.scale;
  } else {
    product =
        static_cast<double>(static_cast<float>(product) * static_cast<float>(conversion.scale));
  }
  if (!(std::fabs(product) <= conversion.limit) || std::isinf(product)) within = false;
  encode(target, out, product);
}

/// `shift` elements past a 64-byte boundary.
std::byte* place(std::vector<std::byte>& memory, std::size_t shift, DataType type) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  return memory.data() + (64 - address % 64) % 64 + shift * size_of(type);
}

void fill(std::byte* memory, DataType type, std::size_t count, std::mt19937_64& random) {
  std::uniform_real_distribution<double> mantissa(-2.0, 2.0);
  for (std::size_t i = 0; i < count; ++i) {
    const int power = static_cast<int>(random() % 60) - 30;
    encode(type, memory + i * size_of(type), std::ldexp(mantissa(random), power));
  }
}

void expect_equal(DataType type, const std::byte* memory, const std::byte* expected) {
  if (std::memcmp(memory, expected, size_of(type)) == 0) return;
  ASSERT_TRUE(std::isnan(decode(type, memory)) && std::isnan(decode(type, expected)))
      << decode(type, memory) << ", expected " << decode(type, expected);
}

struct Case {
  DataType source;
  DataType target;
  std::size_t count;
  std::size_t in_shift;
  std::size_t out_shift;
  Conversion conversion;
};

/// `special`: put among the values. `run` converts what it is given.
template <class Run>
void check(const Case& what, const std::vector<double>& special, std::mt19937_64& random, Run run) {
  const std::size_t from = size_of(what.source);
  const std::size_t to = size_of(what.target);
  std::vector<std::byte> source((what.count + 8) * from + 64);
  std::vector<std::byte> target((what.count + 8) * to + 64, std::byte{0x5a});
  std::byte* const in = place(source, what.in_shift, what.source);
  std::byte* const out = place(target, what.out_shift, what.target);
  fill(in, what.source, what.count, random);
  for (const double value : special) {
    if (what.count > 0) encode(what.source, in + random() % what.count * from, value);
  }
  auto expected = target;
  bool within = true;
  for (std::size_t i = 0; i < what.count; ++i) {
    const auto at = static_cast<std::size_t>(out - target.data()) + i * to;
    model(what.source, in + i * from, what.target, &expected[at], what.conversion, within);
  }
  const std::size_t first = static_cast<std::size_t>(out - target.data());
  EXPECT_EQ(run(in, out), within);
  for (std::size_t i = 0; i < what.count; ++i) {
    expect_equal(what.target, out + i * to, &expected[first + i * to]);
    if (testing::Test::HasFatalFailure()) return;
  }
  const std::size_t behind = first + what.count * to;
  EXPECT_TRUE(std::equal(target.begin(), out - target.data() + target.begin(), expected.begin()));
  EXPECT_TRUE(std::equal(target.begin() + static_cast<std::ptrdiff_t>(behind), target.end(),
                         expected.begin() + static_cast<std::ptrdiff_t>(behind)))
      << "wrote past the end";
}

constexpr std::array<std::size_t, 11> kConvertedCounts = {0,  1,  7,  15,   16,  17,
                                                          63, 64, 65, 1000, 4097};
constexpr std::array kScales = {1.0, 0.25, 1.0 / 3, 65536.0};

TEST(Convert, EqualsTheModelForAllTypesLengthsAndPlaces) {
  auto random = test::generator();
  for (const DataType source : test::kFloatTypes) {
    for (const DataType target : test::kFloatTypes) {
      for (const std::size_t count : kConvertedCounts) {
        for (const double scale : kScales) {
          const Case what{source, target, count, random() % 4, random() % 4, {.scale = scale}};
          SCOPED_TRACE(testing::Message() << name_of(source) << " to " << name_of(target) << ", "
                                          << count << " elements, scale " << scale);
          check(what, {0.0, -0.0}, random, [&](const std::byte* in, std::byte* out) {
            return convert(source, in, target, out, count, what.conversion);
          });
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(Convert, EveryInstructionSetAndWayOfWriting) {
  auto random = test::generator();
  for (auto kernels = runnable_kernels(); *kernels != nullptr; ++kernels) {
    for (const DataType source : test::kFloatTypes) {
      for (const DataType target : test::kFloatTypes) {
        const auto kernel =
            (*kernels)->convert[static_cast<std::size_t>(source)][static_cast<std::size_t>(target)];
        if (kernel == nullptr) continue;
        for (const bool past_caches : {false, true}) {
          for (const std::size_t count : kConvertedCounts) {
            const std::size_t shift = past_caches ? 0 : random() % 4;
            const Case what{source, target, count, random() % 4, shift, {.scale = 0.3}};
            SCOPED_TRACE(testing::Message()
                         << (*kernels)->instruction_set << ", " << name_of(source) << " to "
                         << name_of(target) << ", " << count << " elements, " << past_caches);
            const double most = source == float64
                                    ? std::numeric_limits<double>::max()
                                    : static_cast<double>(std::numeric_limits<float>::max());
            check(what, {}, random, [&](const std::byte* in, std::byte* out) {
              return kernel(out, in, count, 0.3, most, past_caches);
            });
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST(Convert, InPlace) {
  auto random = test::generator();
  for (const DataType type : test::kFloatTypes) {
    constexpr std::size_t kCount = 70001;
    std::vector<std::byte> values(kCount * size_of(type));
    fill(values.data(), type, kCount, random);
    std::vector<std::byte> expected(values.size());
    convert(type, values.data(), type, expected.data(), kCount, {.scale = 0.5});
    convert(type, values.data(), type, values.data(), kCount, {.scale = 0.5});
    EXPECT_TRUE(values == expected) << name_of(type);
  }
}

TEST(Convert, TellsOfEveryValueThatIsNotFiniteOrTooLarge) {
  auto random = test::generator();
  const std::array bad = {kInfinity, -kInfinity, std::nan(""), 12.5, -12.5};
  for (const DataType source : test::kFloatTypes) {
    for (const DataType target : test::kFloatTypes) {
      for (const std::size_t count : {1, 5, 64, 100, 333}) {
        std::vector<std::byte> in(count * size_of(source));
        std::vector<std::byte> out(count * size_of(target));
        for (std::size_t i = 0; i < count; ++i) encode(source, &in[i * size_of(source)], -4.0);
        const auto within = [&] {
          return convert(source, in.data(), target, out.data(), count,
                         {.scale = 0.5, .limit = 6.0});
        };
        EXPECT_TRUE(within());
        const std::size_t where = random() % count;
        for (const double value : bad) {
          encode(source, &in[where * size_of(source)], value);
          EXPECT_FALSE(within()) << name_of(source) << " to " << name_of(target) << ", " << value
                                 << " at " << where << " of " << count;
        }
        encode(source, &in[where * size_of(source)], 12.0);
        EXPECT_TRUE(within()) << "the limit itself";
      }
    }
  }
}

TEST(Convert, AProductThatOverflowsIsToldWhateverTheLimit) {
  const float large = 3e38F;
  std::uint16_t half = 0;
  float single = 0;
  double wide = 0;
  const auto* in = reinterpret_cast<const std::byte*>(&large);
  EXPECT_FALSE(convert(float32, in, float16, reinterpret_cast<std::byte*>(&half), 1, {.scale = 2}));
  EXPECT_FALSE(
      convert(float32, in, float32, reinterpret_cast<std::byte*>(&single), 1, {.scale = 2}));
  EXPECT_TRUE(convert(float32, in, float64, reinterpret_cast<std::byte*>(&wide), 1, {.scale = 2}));
  EXPECT_EQ(half, 0x7c00);
  EXPECT_EQ(wide, 2.0 * static_cast<double>(large));
}

TEST(Convert, Float64IsRoundedOnce) {
  // Just above the middle of 1 and the next float16; as a float32 it is that middle, and goes to
  // even.
  for (const auto& [value, bits] :
       {std::pair{1 + 0x1p-11 + 0x1p-40, 0x3c01}, std::pair{-1 - 0x1p-11 - 0x1p-40, 0xbc01},
        std::pair{1 + 0x1p-11, 0x3c00}, std::pair{1e300, 0x7c00}, std::pair{-1e-300, 0x8000}}) {
    std::uint16_t half = 0;
    convert(float64, reinterpret_cast<const std::byte*>(&value), float16,
            reinterpret_cast<std::byte*>(&half), 1, {});
    EXPECT_EQ(half, bits) << value;
  }
}

TEST(Convert, RefusesIntegers) {
  std::array<std::byte, 8> memory{};
  EXPECT_THROW(convert(int32, memory.data(), float32, memory.data(), 1, {}), Error);
  EXPECT_THROW(convert(float32, memory.data(), int64, memory.data(), 1, {}), Error);
}

/// Which an instruction for bfloat16 takes for zero, alone or among other values.
TEST(Convert, SubnormalsRoundToBfloat16OnEveryInstructionSet) {
  auto random = test::generator();
  constexpr std::size_t kCount = 4096;
  std::vector<float> values(kCount);
  std::vector<std::uint16_t> result(kCount);
  for (const std::uint64_t among : {1, 16, 200}) {
    for (float& value : values) {
      const auto bits = static_cast<std::uint32_t>(random());
      const bool is_subnormal = random() % among == 0;
      value = std::bit_cast<float>(is_subnormal ? bits & 0x807fffffU : bits);
    }
    for (auto table = runnable_kernels(); *table != nullptr; ++table) {
      (*table)->convert[static_cast<std::size_t>(float32)][static_cast<std::size_t>(bfloat16)](
          reinterpret_cast<std::byte*>(result.data()),
          reinterpret_cast<const std::byte*>(values.data()), kCount, 1.0,
          std::numeric_limits<float>::max(), false);
      for (std::size_t i = 0; i < kCount; ++i) {
        if (std::isnan(values[i])) continue;
        ASSERT_EQ(result[i], to_bfloat16(values[i]))
            << (*table)->instruction_set << ", value " << values[i];
      }
    }
  }
}

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
/// As the F16C instructions widen them.
TEST(Float16, SignallingNanBecomesQuietAndKeepsItsPayload) {
  EXPECT_EQ(std::bit_cast<std::uint32_t>(from_float16(0x7c01)), 0x7fc02000u);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(from_float16(0xfdff)), 0xffffe000u);
}

}  // namespace
}  // namespace hora::internal
