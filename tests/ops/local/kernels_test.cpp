#include "ops/local/kernels.h"

#include <gtest/gtest.h>
#include <hora/error.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "core/base/checked.h"
#include "ops/local/kernel_table.h"
#include "tests/ops/local/blocks.h"
#include "tests/support/reference/reduction.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using test::Bfloat16;
using test::Blocks;
using test::Elements;
using test::Float16;
using test::kElementOps;
using test::reduced;
using test::Stored;

/// Of an integer there is none.
template <class T>
bool is_nan(Stored<T> value) {
  return test::is_float<T> && std::isnan(static_cast<double>(value));
}

/// The pattern of bits that `bits` ends with.
template <class T>
Stored<T> pattern(std::uint64_t bits) {
  Stored<T> value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// Zeros, the least subnormal, 1, infinity and NaN, of either sign.
template <class T>
T special_element(std::uint64_t bits) {
  using Limits = std::numeric_limits<test::Sum<T>>;
  const auto sign = static_cast<test::Sum<T>>(bits % 2 == 0 ? 1 : -1);
  switch (bits / 2 % 6) {
    case 0:
      return test::narrow<T>(sign * Limits::infinity());
    case 1:
      return test::narrow<T>(std::copysign(Limits::quiet_NaN(), sign));
    case 2:
      return pattern<T>(1);
    case 3:
      return test::narrow<T>(sign);
    default:
      return test::narrow<T>(sign * 0);
  }
}

/// Mostly numbers of like size, so that sums round; every 16th element any pattern of bits at all,
/// as many special ones. Booleans: mostly 0 and 1.
template <class T>
Stored<T> random_element(std::mt19937_64& random) {
  const std::uint64_t bits = random();
  const std::uint64_t kind = bits >> 60;
  const auto any = pattern<T>(bits);
  if constexpr (std::is_same_v<T, bool>) {
    return kind == 0 ? any : static_cast<std::uint8_t>(any % 2);
  } else if constexpr (!test::is_float<T>) {
    return any;
  } else {
    if (kind == 0) return any;
    if (kind == 1) return special_element<T>(bits);
    const double number = static_cast<double>(static_cast<std::int64_t>(bits << 8)) * 0x1p-60;
    return test::narrow<T>(static_cast<test::Sum<T>>(number));
  }
}

template <class T>
class ReduceTest : public testing::Test {
 protected:
  using Element = Stored<T>;
  using Vectors = std::vector<Elements<T>>;

  static Vectors random_inputs(std::size_t inputs, std::size_t count, std::mt19937_64& random) {
    Vectors values(inputs, Elements<T>(count));
    for (auto& input : values) {
      std::ranges::generate(input, [&] { return random_element<T>(random); });
    }
    return values;
  }

  /// Equal to the bit; of NaN only that it is one.
  static void expect_equal(const std::byte* memory, const Elements<T>& expected) {
    if (expected.empty() ||
        std::memcmp(memory, expected.data(), expected.size() * sizeof(Element)) == 0) {
      return;
    }
    for (std::size_t i = 0; i < expected.size(); ++i) {
      Element value;
      std::memcpy(&value, memory + i * sizeof(Element), sizeof value);
      if (is_nan<T>(expected[i]) && is_nan<T>(value)) continue;
      ASSERT_EQ(std::memcmp(&value, &expected[i], sizeof value), 0)
          << "element " << i << " is " << testing::PrintToString(value) << ", expected "
          << testing::PrintToString(expected[i]);
    }
  }

  /// One call; `outputs` of them, `in_place` as far as there are inputs (in reverse order).
  static void check(ReduceKernel kernel, const Vectors& values, const Elements<T>& expected,
                    std::size_t outputs, bool in_place, std::size_t shift, Scales scales) {
    const std::size_t inputs = values.size();
    const std::size_t count = expected.size();
    Blocks<Element> memory(inputs + outputs, count + 1, shift);
    std::vector<const std::byte*> in;
    std::vector<std::byte*> out;
    for (std::size_t k = 0; k < inputs; ++k) {
      if (count != 0) std::memcpy(memory[k], values[k].data(), count * sizeof(Element));
      in.push_back(memory[k]);
    }
    for (std::size_t o = 0; o < outputs; ++o) {
      out.push_back(in_place && o < inputs ? memory[inputs - 1 - o] : memory[inputs + o]);
      std::memset(out.back() + count * sizeof(Element), 0x5a, sizeof(Element));
    }
    if (count != 0) kernel(in.data(), inputs, out.data(), outputs, count, scales);
    Element guard;
    std::memset(&guard, 0x5a, sizeof guard);
    for (std::size_t o = 0; o < outputs; ++o) {
      expect_equal(out[o], expected);
      ASSERT_EQ(std::memcmp(out[o] + count * sizeof(Element), &guard, sizeof guard), 0)
          << "wrote past the end";
    }
    for (std::size_t k = 0; k < inputs; ++k) {
      if (count == 0 || (in_place && inputs - 1 - k < outputs)) continue;
      ASSERT_EQ(std::memcmp(in[k], values[k].data(), count * sizeof(Element)), 0)
          << "input changed";
    }
  }
};

using ReducedTypes =
    testing::Types<Float16, Bfloat16, float, double, std::int32_t, std::int64_t, std::uint8_t,
                   std::int8_t, std::int16_t, bool, std::uint16_t, std::uint32_t, std::uint64_t>;
struct ReducedTypeName {
  template <class T>
  static std::string GetName(int) {
    return std::string(name_of(data_type_of<T>));
  }
};
TYPED_TEST_SUITE(ReduceTest, ReducedTypes, ReducedTypeName);

constexpr std::array<std::size_t, 10> kReducedCounts = {0, 1, 15, 16, 17, 63, 64, 65, 1000, 4097};

const ReduceKernels& kernels_of(const KernelTable& table, DataType type) {
  return table.reduce[static_cast<std::size_t>(type)];
}

TYPED_TEST(ReduceTest, PlainSumsEqualTheSerialModelOnEveryInstructionSet) {
  std::mt19937_64 random = test::generator();
  for (const std::size_t count : kReducedCounts) {
    for (std::size_t inputs = 1; inputs <= 9; ++inputs) {
      const auto values = this->random_inputs(inputs, count, random);
      const Scales scales{.post = inputs % 2 == 0 ? 1.0 / static_cast<double>(inputs) : 1.0};
      const auto expected = reduced<TypeParam>(ReduceOp::sum, values, scales);
      for (std::size_t outputs = 1; outputs <= 9; ++outputs) {
        const std::size_t shift = random() % 4;  // whole elements: off the 64-byte lines
        for (auto table = runnable_kernels(); *table != nullptr; ++table) {
          SCOPED_TRACE(testing::Message()
                       << (*table)->instruction_set << ", " << count << " elements, " << inputs
                       << " inputs, " << outputs << " outputs, shift " << shift);
          const ReduceKernel kernel = kernels_of(**table, data_type_of<TypeParam>).plain_sum;
          this->check(kernel, values, expected, outputs, false, shift, scales);
          this->check(kernel, values, expected, outputs, true, shift, scales);
          if (this->HasFatalFailure()) return;
        }
      }
    }
  }
}

TYPED_TEST(ReduceTest, EveryOperationEqualsTheSerialModelOnEveryInstructionSet) {
  std::mt19937_64 random = test::generator();
  for (const std::size_t count : kReducedCounts) {
    for (const std::size_t inputs : {1, 2, 3, 8, 9, 17}) {
      const auto values = this->random_inputs(inputs, count, random);
      for (const ReduceOp op : kElementOps) {
        // A product of many numbers leaves no type's range with this.
        const Scales scales{.pre = random() % 2 == 0 ? 0.3 : 1.0,
                            .post = random() % 2 == 0 ? 0.7 : 1.0};
        const auto expected = reduced<TypeParam>(op, values, scales);
        for (const std::size_t outputs : {std::size_t{1}, std::size_t{2}, inputs}) {
          const std::size_t shift = random() % 4;
          for (auto table = runnable_kernels(); *table != nullptr; ++table) {
            SCOPED_TRACE(testing::Message()
                         << (*table)->instruction_set << ", " << name_of(op) << " of " << count
                         << " elements, " << inputs << " inputs, " << outputs << " outputs, shift "
                         << shift << ", scales " << scales.pre << " and " << scales.post);
            const ReduceKernel kernel =
                kernels_of(**table, data_type_of<TypeParam>).by_op[static_cast<std::size_t>(op)];
            this->check(kernel, values, expected, outputs, random() % 2 == 0, shift, scales);
            if (this->HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

/// hora::reduce: the right kernel for each op and scales, wherever a tensor is cut.
/// A tensor may be cut anywhere, and lie anywhere: its elements come out the same.
TYPED_TEST(ReduceTest, BitsDoNotDependOnCutsAndAlignment) {
  std::mt19937_64 random = test::generator();
  constexpr std::size_t kCount = 3000;
  for (int round = 0; round < 60; ++round) {
    const std::size_t inputs = 2 + random() % 6;
    const ReduceOp op = round % 5 == 4 ? ReduceOp::average : kElementOps[round % 5];
    const Scales scales{.pre = random() % 2 == 0 ? 0.4 : 1.0,
                        .post = random() % 2 == 0 ? 0.3 : 1.0};
    SCOPED_TRACE(testing::Message() << name_of(op) << " of " << inputs << " inputs, scales "
                                    << scales.pre << " and " << scales.post);
    const auto values = this->random_inputs(inputs, kCount, random);
    const auto expected = reduced<TypeParam>(op, values, scales);
    const std::size_t cut = random() % kCount;
    Elements<TypeParam> result(kCount);
    for (const auto& [begin, end] : {std::pair{std::size_t{0}, cut}, std::pair{cut, kCount}}) {
      std::vector<const std::byte*> in;
      for (const auto& input : values) {
        in.push_back(reinterpret_cast<const std::byte*>(input.data() + begin));
      }
      std::byte* const out = reinterpret_cast<std::byte*>(result.data() + begin);
      reduce(data_type_of<TypeParam>, op, in, {&out, 1}, end - begin, scales);
    }
    this->expect_equal(reinterpret_cast<const std::byte*>(result.data()), expected);
  }
}

/// One input with scales of 1 is a copy, NaN's payload included, but for a boolean's bytes.
TYPED_TEST(ReduceTest, OneInputIsCopied) {
  std::mt19937_64 random = test::generator();
  Elements<TypeParam> values(777);
  for (Stored<TypeParam>& value : values) {
    const std::uint64_t bits = random();
    std::memcpy(&value, &bits, sizeof value);
  }
  std::vector<Elements<TypeParam>> results(3, Elements<TypeParam>(values.size()));
  std::vector<std::byte*> out;
  for (auto& result : results) out.push_back(reinterpret_cast<std::byte*>(result.data()));
  const auto* in = reinterpret_cast<const std::byte*>(values.data());
  for (const ReduceOp op : kElementOps) {
    for (auto& result : results) std::ranges::fill(result, Stored<TypeParam>{});
    reduce(data_type_of<TypeParam>, op, {&in, 1}, out, values.size(), {});
    for (const auto& result : results) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        const Stored<TypeParam> value =
            std::is_same_v<TypeParam, bool>
                ? static_cast<Stored<TypeParam>>(values[i] != Stored<TypeParam>{})
                : values[i];
        ASSERT_EQ(std::memcmp(&result[i], &value, sizeof value), 0) << name_of(op) << ' ' << i;
      }
    }
  }
}

/// Every pattern times scales that lead into subnormals, across every rounding and to infinity.
template <class T>
void expect_every_pattern_scales(double scale) {
  std::vector<Elements<T>> values(1, Elements<T>(65536));
  for (std::uint32_t i = 0; i < 65536; ++i) values[0][i].bits = static_cast<std::uint16_t>(i);
  const auto expected = reduced<T>(ReduceOp::sum, values, {.post = scale});
  const auto* in = reinterpret_cast<const std::byte*>(values[0].data());
  Elements<T> first;
  for (auto kernels = runnable_kernels(); *kernels != nullptr; ++kernels) {
    Elements<T> result(65536);
    auto* out = reinterpret_cast<std::byte*>(result.data());
    kernels_of(**kernels, data_type_of<T>).plain_sum(&in, 1, &out, 1, 65536, {.post = scale});
    for (std::size_t i = 0; i < 65536; ++i) {
      if (is_nan<T>(expected[i])) {
        ASSERT_TRUE(is_nan<T>(result[i])) << (*kernels)->instruction_set << ' ' << i;
      } else {
        ASSERT_EQ(result[i], expected[i]) << (*kernels)->instruction_set << ' ' << i;
      }
    }
    if (first.empty()) first = result;
    ASSERT_EQ(result, first) << (*kernels)->instruction_set << " differs in a NaN's payload";
  }
}

TEST(Halves, EveryPatternTimesManyScalesOnEveryInstructionSet) {
  std::mt19937_64 random = test::generator();
  std::vector<double> scales = {1.0,     -1.0,    0.0, 0.5,    1.0 / 3,
                                0x1p-10, 0x1p-24, 3.0, 1000.0, 0x1p40};
  std::uniform_real_distribution<double> power(-30, 30);
  for (int i = 0; i < 6; ++i) scales.push_back(std::exp2(power(random)));
  for (const double scale : scales) {
    SCOPED_TRACE(scale);
    expect_every_pattern_scales<Float16>(scale);
    expect_every_pattern_scales<Bfloat16>(scale);
  }
}

#if defined(__x86_64__)
/// Subnormal float16 survives in a thread that flushes float32 subnormals to zero.
TEST(Halves, Float16KeepsSubnormalsWhereTheCpuFlushesThem) {
  const unsigned int before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // flush to zero, denormals are zero
  expect_every_pattern_scales<Float16>(1.0);
  expect_every_pattern_scales<Float16>(0.25);
  _mm_setcsr(before);
}
#endif

TEST(Reduce, RefusesNoInputsAndUnknownTypesAndOperations) {
  float value = 1;
  const auto* in = reinterpret_cast<const std::byte*>(&value);
  auto* out = reinterpret_cast<std::byte*>(&value);
  const auto sum = [&](DataType type, ReduceOp op) {
    reduce(type, op, {&in, 1}, {&out, 1}, 1, {});
  };
  EXPECT_THROW(reduce(DataType::float32, ReduceOp::sum, {}, {&out, 1}, 1, {}), Error);
  EXPECT_THROW(sum(static_cast<DataType>(kDataTypes), ReduceOp::sum), Error);
  EXPECT_THROW(sum(DataType::float32, ReduceOp::adasum), Error);
  EXPECT_THROW(sum(DataType::float32, static_cast<ReduceOp>(6)), Error);
  EXPECT_NO_THROW(reduce(DataType::float32, ReduceOp::sum, {&in, 1}, {}, 1, {.post = 0.5}));
}

/// The tables are indexed by the numbers of types and operations.
TEST(Kernels, EveryTableHasEveryTypeAndOperation) {
  static_assert(kDataTypes == static_cast<std::size_t>(last_of<DataType>) + 1);
  static_assert(kReduceOps == static_cast<std::size_t>(last_of<ReduceOp>));
  for (std::size_t type = 0; type < kDataTypes; ++type) {
    EXPECT_EQ(is_floating_point(static_cast<DataType>(type)), type < kFloatingTypes) << type;
    for (auto table = runnable_kernels(); *table != nullptr; ++table) {
      const ReduceKernels& kernels = (*table)->reduce[type];
      EXPECT_TRUE(kernels.plain_sum) << type;
      for (const ReduceKernel kernel : kernels.by_op) EXPECT_TRUE(kernel) << type;
    }
  }
}

TEST(Kernels, TheBestThatTheCpuHasIsUsed) {
  ASSERT_NE(runnable_kernels()[0], nullptr);
  EXPECT_STREQ(kernel_instruction_set(), runnable_kernels()[0]->instruction_set);
  auto last = runnable_kernels();
  while (last[1] != nullptr) ++last;
  EXPECT_STREQ((*last)->instruction_set, "baseline");
}

}  // namespace
}  // namespace hora::internal
