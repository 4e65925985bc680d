#include <gmock/gmock.h>
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

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "core/base/checked.h"
#include "ops/local/kernel_table.h"
#include "ops/local/kernels.h"
#include "tests/support/expect_error.h"
#include "tests/support/reference/elements.h"
#include "tests/support/reference/half_format.h"
#include "tests/support/reference/reduction.h"
#include "tests/support/reference/reference.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using test::Bfloat16;
using test::Elements;
using test::Float16;
using test::kElementOps;
using test::reduced;
using test::Stored;

/// Blocks of one allocation, each at `shift` elements past a 64-byte boundary.
template <class Stored>
class Blocks {
 public:
  Blocks(std::size_t blocks, std::size_t count, std::size_t shift)
      : stride_((count + shift) * sizeof(Stored) / 64 * 64 + 128),
        shift_(shift * sizeof(Stored)),
        memory_(blocks * stride_ + 64) {}
  std::byte* operator[](std::size_t block) {
    std::byte* const start = memory_.data();
    const std::size_t to_line = (64 - reinterpret_cast<std::uintptr_t>(start) % 64) % 64;
    return start + to_line + block * stride_ + shift_;
  }

 private:
  std::size_t stride_;
  std::size_t shift_;
  std::vector<std::byte> memory_;
};

/// An integer has none.
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
  using Number = test::Sum<T>;
  using Limits = std::numeric_limits<Number>;
  const Number magnitudes[] = {
      Limits::infinity(), Limits::quiet_NaN(), test::widen<T>(pattern<T>(1)), 1, 0, 0};
  const auto sign = static_cast<Number>(bits % 2 == 0 ? 1 : -1);
  return test::narrow<T>(std::copysign(magnitudes[bits / 2 % 6], sign));
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
/// So many inputs, or outputs.
constexpr std::array<std::size_t, 10> kReducedArrays = {1, 2, 3, 4, 5, 6, 7, 8, 9, 17};

const ReduceKernels& kernels_of(const KernelTable& table, DataType type) {
  return table.reduce[static_cast<std::size_t>(type)];
}

TYPED_TEST(ReduceTest, EqualsTheSerialModelOnEveryInstructionSet) {
  std::mt19937_64 random = test::generator();
  for (const std::size_t count : kReducedCounts) {
    for (const std::size_t inputs : kReducedArrays) {
      const auto values = this->random_inputs(inputs, count, random);
      for (std::size_t kernel = 0; kernel <= kElementOps.size(); ++kernel) {
        const bool is_plain = kernel == kElementOps.size();
        const ReduceOp op = is_plain ? ReduceOp::sum : kElementOps[kernel];
        // A product of many numbers leaves no type's range with this.
        const Scales scales{.pre = !is_plain && random() % 2 == 0 ? 0.3 : 1.0,
                            .post = random() % 2 == 0 ? 0.7 : 1.0};
        const auto expected = reduced<TypeParam>(op, values, scales);
        for (const std::size_t outputs : kReducedArrays) {
          if (!is_plain && outputs > 2 && outputs != inputs) continue;
          const std::size_t shift = random() % 4;  // whole elements: off the 64-byte lines
          for (auto table = runnable_kernels(); *table != nullptr; ++table) {
            SCOPED_TRACE(testing::Message()
                         << (*table)->instruction_set << ", " << (is_plain ? "plain " : "")
                         << name_of(op) << " of " << count << " elements, " << inputs << " inputs, "
                         << outputs << " outputs, shift " << shift << ", scales " << scales.pre
                         << " and " << scales.post);
            const ReduceKernels& all = kernels_of(**table, data_type_of<TypeParam>);
            this->check(is_plain ? all.plain_sum : all.by_op[static_cast<std::size_t>(op)], values,
                        expected, outputs, random() % 2 == 0, shift, scales);
            if (this->HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

/// One input with scales of 1 is a copy, NaN's payload included, but for a boolean's bytes.
TYPED_TEST(ReduceTest, OneInputIsCopied) {
  std::mt19937_64 random = test::generator();
  Elements<TypeParam> values(777);
  std::ranges::generate(values, [&] { return pattern<TypeParam>(random()); });
  auto expected = values;
  if constexpr (std::is_same_v<TypeParam, bool>) {
    for (auto& value : expected) value = value != 0 ? 1 : 0;
  }
  const auto* in = reinterpret_cast<const std::byte*>(values.data());
  for (const ReduceOp op : kElementOps) {
    std::vector<Elements<TypeParam>> results(3, Elements<TypeParam>(values.size()));
    std::vector<std::byte*> out;
    for (auto& result : results) out.push_back(reinterpret_cast<std::byte*>(result.data()));
    reduce(data_type_of<TypeParam>, op, {&in, 1}, out, values.size(), {});
    for (const auto& result : results) {
      ASSERT_EQ(std::memcmp(result.data(), expected.data(), values.size() * sizeof values[0]), 0)
          << name_of(op);
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
TEST(Kernels, AreThoseOfEveryTypeAndOperation) {
  static_assert(kDataTypes == static_cast<std::size_t>(last_of<DataType>) + 1);
  static_assert(kReduceOps == static_cast<std::size_t>(last_of<ReduceOp>));
  for (std::size_t type = 0; type < kDataTypes; ++type) {
    EXPECT_EQ(is_floating_point(static_cast<DataType>(type)), type < kFloatingTypes) << type;
  }
}

TEST(Kernels, TheBestThatTheCpuHasIsUsed) {
  ASSERT_NE(runnable_kernels()[0], nullptr);
  EXPECT_STREQ(kernel_instruction_set(), runnable_kernels()[0]->instruction_set);
  auto last = runnable_kernels();
  while (last[1] != nullptr) ++last;
  EXPECT_STREQ((*last)->instruction_set, "baseline");
}

using test::narrow;
using test::Sum;
using test::widen;

template <class T>
class AdasumTest : public testing::Test {
 protected:
  using Vector = std::vector<T>;

  static const std::byte* bytes(const T* values) {
    return reinterpret_cast<const std::byte*>(values);
  }
  static std::byte* bytes(T* values) { return reinterpret_cast<std::byte*>(values); }

  static Vector numbers(std::size_t count, std::mt19937_64& random) {
    std::uniform_real_distribution<double> uniform(-1, 1);
    Vector values(count);
    for (T& value : values) value = narrow<T>(static_cast<Sum<T>>(uniform(random)));
    return values;
  }
};

using AdasumTypes = testing::Types<test::Float16, test::Bfloat16, float, double>;
TYPED_TEST_SUITE(AdasumTest, AdasumTypes, ReducedTypeName);

constexpr std::array<std::size_t, 9> kAdasumCounts = {0, 1, 2, 15, 16, 17, 63, 1000, 4097};

/// As kernel_code.h says, one element after the other.
template <class T>
double serial_dot(const std::vector<T>& a, const std::vector<T>& b) {
  std::array<double, 16> lanes = {};
  for (std::size_t i = 0; i < a.size(); ++i) {
    lanes[i % 16] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  for (std::size_t count = 8; count > 0; count /= 2) {
    for (std::size_t lane = 0; lane < count; ++lane) lanes[lane] += lanes[lane + count];
  }
  return lanes[0];
}

TYPED_TEST(AdasumTest, IsTheSerialModelsOnEveryInstructionSetAndAtAnyAddress) {
  std::mt19937_64 random = test::generator();
  constexpr auto kType = static_cast<std::size_t>(data_type_of<TypeParam>);
  constexpr AdasumFactors kFactors{.a = 0.3, .b = -1.7};
  for (const std::size_t count : kAdasumCounts) {
    const auto a = this->numbers(count, random);
    const auto b = this->numbers(count, random);
    const double square = serial_dot<TypeParam>(a, a);
    EXPECT_EQ(sum_of_squares(data_type_of<TypeParam>, this->bytes(a.data()), count), square);
    std::vector<TypeParam> expected(count);
    for (std::size_t i = 0; i < count; ++i) {
      expected[i] =
          narrow<TypeParam>(static_cast<Sum<TypeParam>>(kFactors.a) * widen<TypeParam>(a[i]) +
                            static_cast<Sum<TypeParam>>(kFactors.b) * widen<TypeParam>(b[i]));
    }
    for (auto table = runnable_kernels(); *table != nullptr; ++table) {
      for (const std::size_t shift : {0, 1, 3}) {
        SCOPED_TRACE(testing::Message() << (*table)->instruction_set << ", " << count
                                        << " elements, shifted by " << shift);
        const AdasumKernels& kernels = (*table)->adasum[kType];
        std::vector<TypeParam> shifted(shift);
        shifted.insert(shifted.end(), a.begin(), a.end());
        std::byte* const of_a = this->bytes(shifted.data() + shift);
        const AdasumDots dots = kernels.dots(of_a, this->bytes(b.data()), count);
        EXPECT_EQ(dots.dot, serial_dot<TypeParam>(a, b));
        EXPECT_EQ(dots.norm_a, square);
        EXPECT_EQ(dots.norm_b, serial_dot<TypeParam>(b, b));
        EXPECT_EQ((*table)->sum_of_squares[kType](of_a, count), square);
        auto in_b = b;
        std::vector<TypeParam> apart(count);
        kernels.combine(of_a, this->bytes(b.data()), kFactors, this->bytes(apart.data()), count);
        EXPECT_EQ(apart, expected);
        kernels.combine(of_a, this->bytes(in_b.data()), kFactors, this->bytes(in_b.data()), count);
        EXPECT_EQ(in_b, expected) << "in b's place";
        kernels.combine(of_a, this->bytes(b.data()), kFactors, of_a, count);
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(), shifted.data() + shift))
            << "in a's place";
      }
    }
  }
}

TEST(AdasumFactors, FollowTheFormulaAndStayInFloatsRange) {
  const AdasumFactors factors = adasum_factors({.dot = 3, .norm_a = 2, .norm_b = 12});
  EXPECT_EQ(factors.a, 1 - 3.0 / 4);
  EXPECT_EQ(factors.b, 1 - 3.0 / 24);
  for (const double ratio : {0x1p-99, 0x1p-100, 0x1p-101, 0x1p-400}) {
    // Parallel vectors, one of them short: a.b = |a| |b|.
    for (const AdasumDots& dots :
         {AdasumDots{ratio, ratio * ratio, 1}, AdasumDots{ratio, 1, ratio * ratio}}) {
      const auto [a, b] = adasum_factors(dots);
      EXPECT_TRUE(std::isfinite(static_cast<float>(a))) << ratio;
      EXPECT_TRUE(std::isfinite(static_cast<float>(b))) << ratio;
      EXPECT_EQ(a == 1 && b == 1, ratio <= 0x1p-100) << ratio;
    }
  }
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const auto [a, b] = adasum_factors({.dot = kNan, .norm_a = kNan, .norm_b = 1});
  EXPECT_TRUE(std::isnan(a) && std::isnan(b));
}

TEST(Adasum, RefusesWhatIsNotFloatingPoint) {
  std::int32_t value = 1;
  auto* bytes = reinterpret_cast<std::byte*>(&value);
  for (const DataType type : {DataType::int32, DataType::boolean, static_cast<DataType>(200)}) {
    EXPECT_THROW(adasum_dots(type, bytes, bytes, 1), Error);
    EXPECT_THROW(sum_of_squares(type, bytes, 1), Error);
    EXPECT_THROW(adasum_combine(type, bytes, bytes, {}, bytes, 1), Error);
  }
}

std::vector<std::byte> random_bytes(std::size_t bytes, std::mt19937_64& random) {
  std::vector<std::byte> values(bytes);
  std::ranges::generate(values, [&] { return static_cast<std::byte>(random()); });
  return values;
}

/// Copies `bytes` between these offsets; nothing around them may change.
void expect_copies(void (*copy)(std::byte*, const std::byte*, std::size_t), std::size_t bytes,
                   std::size_t out_offset, std::size_t in_offset, std::mt19937_64& random) {
  const auto in = random_bytes(in_offset + bytes + 1, random);
  auto out = random_bytes(out_offset + bytes + 64, random);
  auto expected = out;
  if (bytes != 0) std::memcpy(expected.data() + out_offset, in.data() + in_offset, bytes);
  copy(out.data() + out_offset, in.data() + in_offset, bytes);
  ASSERT_TRUE(out == expected) << bytes << " bytes from offset " << in_offset << " to "
                               << out_offset;
}

TEST(StreamCopy, CopiesAnyLengthBetweenAnyAddressesOnEveryInstructionSet) {
  std::mt19937_64 random = test::generator();
  for (auto kernels = runnable_kernels(); *kernels != nullptr; ++kernels) {
    SCOPED_TRACE((*kernels)->instruction_set);
    for (const std::size_t bytes : {0, 1, 3, 63, 64, 65, 127, 128, 1000, 4096, 4159}) {
      for (int round = 0; round < 20; ++round) {
        expect_copies((*kernels)->stream_copy, bytes, random() % 66, random() % 66, random);
      }
    }
  }
  for (const std::size_t bytes : {0, 1, 64, 32767, 32768, 131071, 131072, 131073, 1000003}) {
    for (const std::size_t offset : {0, 1, 4, 63}) {
      expect_copies(stream_copy, bytes, offset, 64 - offset, random);
      expect_copies(publish_copy, bytes, offset, 64 - offset, random);
    }
  }
}

TEST(Spread, CopiesToEveryOutputAndLeavesTheRootsOwnMemoryAlone) {
  std::mt19937_64 random = test::generator();
  for (const std::size_t bytes : {0, 1, 64, 1000, 16383, 16384, 16385, 100003}) {
    for (const std::size_t outputs : {0, 1, 2, 5}) {
      auto root = random_bytes(bytes, random);
      const auto expected = root;
      std::vector<std::vector<std::byte>> results(outputs, std::vector<std::byte>(bytes + 1));
      std::vector<std::byte*> out;
      for (auto& result : results) out.push_back(result.data());
      if (outputs == 5) out.push_back(root.data());
      copy_to_all(root.data(), out, bytes);
      EXPECT_TRUE(root == expected) << bytes;
      for (const auto& result : results) {
        EXPECT_TRUE(std::equal(root.begin(), root.end(), result.begin())) << bytes;
        EXPECT_EQ(result.back(), std::byte{0}) << "wrote past the end";
      }
    }
  }
}

// Reducing anything with the identity element gives the thing itself: so says the kernel.
TEST(Neutral, ChangesNothing) {
  constexpr std::size_t kCount = 100;
  auto random = test::generator();
  for (const DataType type : test::kAllTypes) {
    for (const ReduceOp op : test::kElementOps) {
      std::vector<std::byte> values(kCount * size_of(type));
      // Floating-point numbers have small exponents: no NaN, whose bits a reduction may change.
      const unsigned below = is_floating_point(type) || type == DataType::boolean ? 2 : 256;
      for (std::byte& value : values) value = static_cast<std::byte>(random() % below);
      // And -0, whose sign a sum with 0 would change.
      std::fill_n(values.begin(), size_of(type), std::byte{0});
      if (is_floating_point(type)) values[size_of(type) - 1] = std::byte{0x80};
      std::vector<std::byte> neutral(values.size());
      fill_identity(type, op, neutral.data(), kCount);
      std::vector<std::byte> result(values.size());
      const std::array<const std::byte*, 2> inputs{values.data(), neutral.data()};
      std::byte* output = result.data();
      reduce(type, op, inputs, {&output, 1}, kCount, {});
      EXPECT_EQ(result, values) << name_of(type) << " " << name_of(op);
    }
  }
}

/// One element of each array: parameter, gradient, state.
template <class T>
using Element = std::array<T, 5>;

template <class T>
T multiply_add(Rounding rounding, T a, T b, T c) {
  if (rounding == Rounding::fused) return std::fma(a, b, c);
  const T product = a * b;
  return product + c;
}

template <class T>
void expect_step(const SgdStep& step, Element<T>& e) {
  const auto as = [](double value) { return static_cast<T>(value); };
  T d = e[1];
  if (step.weight_decay != 0) d = multiply_add(step.rounding, e[0], as(step.weight_decay), d);
  if (step.momentum != 0) {
    e[2] = step.first ? d
                      : multiply_add<T>(step.rounding, d, as(1 - step.dampening),
                                        e[2] * as(step.momentum));
    d = step.nesterov ? multiply_add(step.rounding, e[2], as(step.momentum), d) : e[2];
  }
  e[0] = multiply_add(step.rounding, d, as(-step.rate), e[0]);
}

template <class T>
void expect_step(const AdamStep& step, Element<T>& e) {
  const auto as = [](double value) { return static_cast<T>(value); };
  if (step.decay != 1) e[0] *= as(step.decay);
  T g = e[1];
  if (step.weight_decay != 0) g = multiply_add(step.rounding, e[0], as(step.weight_decay), g);
  e[2] = multiply_add<T>(step.rounding, g, as(1 - step.beta1), e[2] * as(step.beta1));
  e[3] = multiply_add<T>(step.square_rounding, as(1 - step.beta2) * g, g, e[3] * as(step.beta2));
  T second = e[3];
  if (step.amsgrad) second = e[4] = std::isnan(second) ? second : std::max(e[4], second);
  const T denominator = std::sqrt(second) / as(step.root) + as(step.epsilon);
  e[0] = e[0] + as(-step.rate) * e[2] / denominator;
}

template <class T, class Step>
auto kernel_for(const KernelTable& table, const Step&) {
  if constexpr (std::is_same_v<Step, SgdStep>) {
    return table.sgd[sizeof(T) == 8];
  } else {
    return table.adam[sizeof(T) == 8];
  }
}

/// How many arrays there are beside the parameter and the state.
struct Surroundings {
  std::size_t gradients = 1;
  std::size_t copies = 0;
};

/// `states`: how many of them the step uses.
template <class T, class Step>
void check(const Step& step, std::size_t states, Surroundings around, std::size_t count,
           std::size_t shift, std::mt19937_64& random) {
  std::normal_distribution<double> normal(0, 1);
  const Scales scales =
      around.gradients == 1
          ? Scales{}
          : Scales{.pre = 0.7, .post = 1.0 / static_cast<double>(around.gradients)};
  // The parameter, three states, of which the last two are squares, and the gradients.
  std::vector<std::vector<T>> before(4 + around.gradients, std::vector<T>(count));
  for (auto& array : before) {
    for (T& value : array) value = static_cast<T>(normal(random));
  }
  auto expected = before;
  for (std::size_t i = 0; i < count; ++i) {
    for (const std::size_t square : {2, 3}) before[square][i] = std::abs(before[square][i]);
    T sum = 0;
    for (std::size_t k = 0; k < around.gradients; ++k) {
      const T scaled = before[4 + k][i] * static_cast<T>(scales.pre);
      sum = k == 0 ? scaled : sum + scaled;
    }
    Element<T> element = {before[0][i], sum * static_cast<T>(scales.post), before[1][i],
                          before[2][i], before[3][i]};
    expect_step(step, element);
    expected[0][i] = element[0];
    for (const std::size_t s : {1, 2, 3}) expected[s][i] = element[1 + s];
  }

  for (auto table = runnable_kernels(); *table != nullptr; ++table) {
    for (const bool streams : {false, true}) {
      Blocks<T> blocks(before.size() + around.copies, count, shift);
      for (std::size_t k = 0; k < before.size(); ++k) {
        std::memcpy(blocks[k], before[k].data(), count * sizeof(T));
      }
      UpdateArrays arrays{.parameter = blocks[0], .scales = scales, .streams = streams};
      for (std::size_t s = 0; s < states; ++s) arrays.state[s] = blocks[1 + s];
      std::vector<const std::byte*> sources;
      for (std::size_t k = 0; k < around.gradients; ++k) sources.push_back(blocks[4 + k]);
      std::vector<std::byte*> copies;
      for (std::size_t k = 0; k < around.copies; ++k) copies.push_back(blocks[before.size() + k]);
      arrays.gradients = sources.data();
      arrays.gradient_count = sources.size();
      arrays.copies = copies.data();
      arrays.copy_count = copies.size();
      kernel_for<T>(**table, step)(step, arrays, 0, count / 3);
      kernel_for<T>(**table, step)(step, arrays, count / 3, count);

      const auto expect = [&](const std::byte* block, std::size_t array, const char* what) {
        for (std::size_t i = 0; i < count; ++i) {
          ASSERT_EQ(std::memcmp(block + i * sizeof(T), &expected[array][i], sizeof(T)), 0)
              << (*table)->instruction_set << ", " << what << ' ' << array << ", element " << i
              << " of " << count << ", " << around.gradients << " gradients, " << around.copies
              << " copies, streams " << streams;
        }
      };
      expect(arrays.parameter, 0, "parameter");
      for (std::size_t s = 0; s < states; ++s) expect(arrays.state[s], 1 + s, "state");
      for (const std::byte* copy : copies) expect(copy, 0, "copy");
    }
  }
}

template <class T, class Step>
void check(const Step& step, std::size_t states) {
  std::mt19937_64 random(test::seed());
  for (const std::size_t count : {1, 3, 16, 37, 200}) {
    for (const std::size_t shift : {0, 1}) check<T>(step, states, {}, count, shift, random);
  }
}

template <class T>
class Update : public testing::Test {};
using UpdatedTypes = testing::Types<float, double>;
TYPED_TEST_SUITE(Update, UpdatedTypes);

TYPED_TEST(Update, StepsWithTheSameBitsOnEveryInstructionSet) {
  for (unsigned bits = 0; bits < 64; ++bits) {
    const auto bit = [&](unsigned place) { return (bits >> place) % 2 != 0; };
    const auto rounding = [&](unsigned place) {
      return bit(place) ? Rounding::fused : Rounding::separate;
    };
    const SgdStep sgd{.rate = 0.07,
                      .momentum = bit(2) ? 0.9 : 0,
                      .dampening = bit(3) ? 0.2 : 0,
                      .weight_decay = bit(1) ? 0.01 : 0,
                      .nesterov = bit(4),
                      .first = bit(5),
                      .rounding = rounding(0)};
    check<TypeParam>(sgd, bit(2) ? 1 : 0);
    if (bits >= 16) continue;
    const AdamStep adam{.rate = 0.03,
                        .root = 0.2,
                        .beta1 = 0.9,
                        .beta2 = 0.99,
                        .epsilon = 1e-6,
                        .weight_decay = bit(1) ? 0.01 : 0,
                        .decay = bit(1) ? 1 : 0.97,
                        .amsgrad = bit(2),
                        .rounding = rounding(0),
                        .square_rounding = rounding(3)};
    check<TypeParam>(adam, bit(2) ? 3 : 2);
  }
}

TYPED_TEST(Update, AveragesItsGradientsAndHandsTheParameterOut) {
  std::mt19937_64 random(test::seed());
  const SgdStep sgd{.rate = 0.07, .momentum = 0.9};
  const AdamStep adam{.rate = 0.03, .root = 0.2, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-6};
  for (const std::size_t gradients : {1, 2, 3, 9}) {
    for (const std::size_t copies : {0, 1, 4, 6}) {
      for (const std::size_t count : {5, 37, 4096 + 129}) {
        for (const std::size_t shift : {0, 1, 3}) {
          check<TypeParam>(sgd, 1, {gradients, copies}, count, shift, random);
          check<TypeParam>(adam, 2, {gradients, copies}, count, shift, random);
        }
      }
    }
  }
}

TEST(UpdateErrors, OtherTypesAndNoGradientAreRefused) {
  test::expect_error(ErrorCode::invalid_argument,
                     testing::HasSubstr("takes float32 and float64; got bfloat16"),
                     [] { update(DataType::bfloat16, SgdStep{}, {}, 0, 1); });
  test::expect_error(ErrorCode::invalid_argument, testing::HasSubstr("at least one gradient"),
                     [] { update(DataType::float32, SgdStep{}, {}, 0, 1); });
}

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

/// Every so many-th is subnormal in float32; an instruction for bfloat16 takes those for zero.
void fill(std::byte* memory, DataType type, std::size_t count, std::mt19937_64& random) {
  constexpr std::array<std::uint64_t, 4> kAmong = {1, 16, 200, UINT64_MAX};
  const std::uint64_t among = kAmong[random() % kAmong.size()];
  std::uniform_real_distribution<double> mantissa(-2.0, 2.0);
  for (std::size_t i = 0; i < count; ++i) {
    const bool is_subnormal = random() % among == 0;
    const int power = static_cast<int>(random() % (is_subnormal ? 20 : 60));
    encode(type, memory + i * size_of(type),
           std::ldexp(mantissa(random), power - (is_subnormal ? 148 : 30)));
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

/// Just above the middle of 1 and the next float16, where float32 has that middle, which goes to
/// even; a small one; and, in the end, one whose products overflow.
constexpr std::array kSpecial = {
    0.0, -0.0, 1 + 0x1p-11 + 0x1p-40, -1 - 0x1p-11 - 0x1p-40, 1 + 0x1p-11, -1e-300, 3e38};

TEST(Convert, EqualsTheModelForAllTypesLengthsPlacesAndInstructionSets) {
  auto random = test::generator();
  for (const DataType source : test::kFloatTypes) {
    for (const DataType target : test::kFloatTypes) {
      const auto expect = [&](const char* by, std::size_t count, std::size_t shift, double scale,
                              const auto& run) {
        SCOPED_TRACE(testing::Message()
                     << by << ", " << name_of(source) << " to " << name_of(target) << ", " << count
                     << " elements, scale " << scale << ", shift " << shift);
        const auto last = kSpecial.end() - static_cast<std::ptrdiff_t>(random() % 2);
        check({source, target, count, random() % 4, shift, {.scale = scale}},
              {kSpecial.begin(), last}, random, run);
      };
      for (const std::size_t count : kConvertedCounts) {
        for (const double scale : kScales) {
          expect("convert()", count, random() % 4, scale, [&](const auto* in, auto* out) {
            return convert(source, in, target, out, count, {.scale = scale});
          });
        }
        for (auto table = runnable_kernels(); *table != nullptr; ++table) {
          const auto kernel =
              (*table)->convert[static_cast<std::size_t>(source)][static_cast<std::size_t>(target)];
          if (kernel == nullptr) continue;
          const double most = source == float64
                                  ? std::numeric_limits<double>::max()
                                  : static_cast<double>(std::numeric_limits<float>::max());
          for (const bool past_caches : {false, true}) {
            const double scale = kScales[random() % kScales.size()];
            expect((*table)->instruction_set, count, past_caches ? 0 : random() % 4, scale,
                   [&](const auto* in, auto* out) {
                     return kernel(out, in, count, scale, most, past_caches);
                   });
          }
        }
        if (HasFatalFailure()) return;
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

TEST(Convert, RefusesIntegers) {
  std::array<std::byte, 8> memory{};
  EXPECT_THROW(convert(int32, memory.data(), float32, memory.data(), 1, {}), Error);
  EXPECT_THROW(convert(float32, memory.data(), int64, memory.data(), 1, {}), Error);
}

const struct {
  const char* name;
  test::HalfFormat format;
  std::uint16_t (*to)(float) noexcept;
  float (*from)(std::uint16_t) noexcept;
} kHalves[] = {{"float16", test::kFloat16, to_float16, from_float16},
               {"bfloat16", test::kBfloat16, to_bfloat16, from_bfloat16}};

TEST(Half, EveryPatternWidensToItsValue) {
  for (const auto& [name, format, to, from] : kHalves) {
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      const double expected = test::decode(format, static_cast<std::uint16_t>(bits));
      const float value = from(static_cast<std::uint16_t>(bits));
      ASSERT_TRUE(std::isnan(expected) ? std::isnan(value) : static_cast<double>(value) == expected)
          << name << ' ' << bits << ": " << value;
      ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << name << ' ' << bits;
    }
  }
  // As the F16C instructions widen a signalling NaN: it becomes quiet and keeps its payload.
  EXPECT_EQ(std::bit_cast<std::uint32_t>(from_float16(0x7c01)), 0x7fc02000u);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(from_float16(0xfdff)), 0xffffe000u);
}

TEST(Half, RoundsToNearestEvenAroundEveryMidpoint) {
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  for (const auto& [name, format, to, from] : kHalves) {
    for (std::uint32_t bits = 0; bits < 0x7fff; ++bits) {
      const double low = test::decode(format, static_cast<std::uint16_t>(bits));
      if (!std::isfinite(low)) break;
      // Beyond the largest finite value: where one more step would have led.
      const int power =
          std::max(low == 0 ? format.least_exponent : std::ilogb(low), format.least_exponent);
      const auto middle = static_cast<float>(low + std::ldexp(0.5, power - format.mantissa_bits));
      for (const float end : {-kInfinite, middle, kInfinite}) {
        const float value = std::nextafter(middle, end);
        for (const float either : {value, -value}) {
          ASSERT_EQ(to(either), test::encode(format, static_cast<double>(either)))
              << name << ' ' << std::hexfloat << either;
        }
      }
    }
  }
}

}  // namespace
}  // namespace hora::internal
