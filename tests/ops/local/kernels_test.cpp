#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "core/base/checked.h"
#include "ops/local/kernel_table.h"
#include "ops/local/kernels.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/reference/elements.h"
#include "tests/support/reference/reduction.h"
#include "tests/support/reference/reference.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using namespace test;
using enum DataType;

constexpr std::byte kUnwritten{0x5a};

std::byte* memory_of(auto& values) {
  return reinterpret_cast<std::byte*>(values.data());
}
const std::byte* memory_of(const auto& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}

/// Blocks of one allocation, each of so many bytes, `shift` past a 64-byte boundary.
class Blocks {
 public:
  Blocks(std::size_t blocks, std::size_t bytes, std::size_t shift)
      : bytes_(bytes),
        stride_((bytes + shift) / 64 * 64 + 128),
        shift_(shift),
        memory_((blocks + 1) * stride_, kUnwritten) {}
  std::byte* operator[](std::size_t block) {
    const auto start = reinterpret_cast<std::uintptr_t>(memory_.data());
    return memory_.data() + (64 - start % 64) % 64 + block * stride_ + shift_;
  }
  void expect_unwritten_around(std::size_t block) {
    const auto is_unwritten = [](std::byte each) { return each == kUnwritten; };
    const std::byte* const begin = (*this)[block];
    EXPECT_TRUE(std::all_of(begin - shift_, begin, is_unwritten));
    EXPECT_TRUE(std::all_of(begin + bytes_, begin + bytes_ + 64, is_unwritten));
  }

 private:
  std::size_t bytes_;
  std::size_t stride_;
  std::size_t shift_;
  std::vector<std::byte> memory_;
};

double element_at(DataType type, const std::byte* memory) {
  return number_at(type, {memory, memory + size_of(type)}, 0);
}

/// Equal to the bit; of NaN only that it is one.
void expect_elements(DataType type, const std::byte* memory, const std::byte* expected,
                     std::size_t count) {
  const std::size_t size = size_of(type);
  if (count == 0 || std::memcmp(memory, expected, count * size) == 0) return;
  for (std::size_t i = 0; i < count; ++i, memory += size, expected += size) {
    if (std::memcmp(memory, expected, size) == 0) continue;
    const double value = element_at(type, memory), wanted = element_at(type, expected);
    ASSERT_TRUE(std::isnan(value) && std::isnan(wanted))
        << "element " << i << " is " << value << ", expected " << wanted;
  }
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
  using Number = Sum<T>;
  using Limits = std::numeric_limits<Number>;
  const Number magnitudes[] = {
      Limits::infinity(), Limits::quiet_NaN(), widen<T>(pattern<T>(1)), 1, 0, 0};
  const auto sign = static_cast<Number>(bits % 2 == 0 ? 1 : -1);
  return narrow<T>(std::copysign(magnitudes[bits / 2 % 6], sign));
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
  } else if constexpr (!is_float<T>) {
    return any;
  } else {
    if (kind == 0) return any;
    if (kind == 1) return special_element<T>(bits);
    const double number = static_cast<double>(static_cast<std::int64_t>(bits << 8)) * 0x1p-60;
    return narrow<T>(static_cast<Sum<T>>(number));
  }
}

template <class T>
std::vector<Elements<T>> random_inputs(std::size_t inputs, std::size_t count,
                                       std::mt19937_64& random) {
  std::vector<Elements<T>> values(inputs, Elements<T>(count));
  for (auto& input : values) {
    std::ranges::generate(input, [&] { return random_element<T>(random); });
  }
  return values;
}

/// One call; `in_place` as far as there are inputs (in reverse order).
template <class T>
void check_reduction(ReduceKernel kernel, const std::vector<Elements<T>>& values,
                     const Elements<T>& expected, std::size_t outputs, bool in_place,
                     std::size_t shift, Scales scales) {
  const std::size_t inputs = values.size();
  const std::size_t bytes = expected.size() * sizeof(Stored<T>);
  Blocks memory(inputs + outputs, bytes, shift * sizeof(Stored<T>));
  std::vector<const std::byte*> in;
  std::vector<std::byte*> out;
  for (std::size_t k = 0; k < inputs; ++k) {
    std::ranges::copy(std::as_bytes(std::span(values[k])), memory[k]);
    in.push_back(memory[k]);
  }
  for (std::size_t o = 0; o < outputs; ++o) {
    out.push_back(memory[in_place && o < inputs ? inputs - 1 - o : inputs + o]);
  }
  if (bytes != 0) kernel(in.data(), inputs, out.data(), outputs, expected.size(), scales);
  for (const std::byte* result : out) {
    expect_elements(data_type_of<T>, result, memory_of(expected), expected.size());
  }
  for (std::size_t k = 0; k < inputs; ++k) {
    if (std::ranges::find(out, in[k]) != out.end()) continue;
    EXPECT_TRUE(std::equal(in[k], in[k] + bytes, memory_of(values[k]))) << "input changed";
  }
  for (std::size_t k = 0; k < inputs + outputs; ++k) memory.expect_unwritten_around(k);
}

constexpr std::size_t kReducedCounts[] = {0, 1, 15, 16, 17, 63, 64, 65, 1000, 4097};
/// So many inputs, or outputs.
constexpr std::size_t kReducedArrays[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 17};

const ReduceKernels& kernels_of(const KernelTable& table, DataType type) {
  return table.reduce[static_cast<std::size_t>(type)];
}

template <class T>
void check_reductions() {
  std::mt19937_64 random = generator();
  for (const std::size_t count : kReducedCounts) {
    for (const std::size_t inputs : kReducedArrays) {
      const auto values = random_inputs<T>(inputs, count, random);
      for (std::size_t kernel = 0; kernel <= kElementOps.size(); ++kernel) {
        const bool is_plain = kernel == kElementOps.size();
        const ReduceOp op = is_plain ? ReduceOp::sum : kElementOps[kernel];
        // A product of many numbers leaves no type's range with this.
        const Scales scales{.pre = !is_plain && random() % 2 == 0 ? 0.3 : 1.0,
                            .post = random() % 2 == 0 ? 0.7 : 1.0};
        const auto expected = reduced<T>(op, values, scales);
        for (const std::size_t outputs : kReducedArrays) {
          if (!is_plain && outputs > 2 && outputs != inputs) continue;
          const std::size_t shift = random() % 4;  // whole elements: off the 64-byte lines
          for (auto table = runnable_kernels(); *table != nullptr; ++table) {
            SCOPED_TRACE(testing::Message()
                         << (*table)->instruction_set << ", " << (is_plain ? "plain " : "")
                         << name_of(op) << " of " << count << ' ' << name_of(data_type_of<T>)
                         << ", " << inputs << " inputs, " << outputs << " outputs, shift " << shift
                         << ", scales " << scales.pre << " and " << scales.post);
            const ReduceKernels& all = kernels_of(**table, data_type_of<T>);
            check_reduction<T>(is_plain ? all.plain_sum : all.by_op[static_cast<std::size_t>(op)],
                               values, expected, outputs, random() % 2 == 0, shift, scales);
            if (testing::Test::HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST(Reduce, EqualsTheSerialModelOnEveryInstructionSet) {
  for_each_type([]<class T>() { check_reductions<T>(); });
}

/// One input with scales of 1 is a copy, NaN's payload included, but for a boolean's bytes.
TEST(Reduce, OneInputIsCopied) {
  for_each_type([]<class T>() {
    std::mt19937_64 random = generator();
    Elements<T> values(777);
    std::ranges::generate(values, [&] { return pattern<T>(random()); });
    auto expected = values;
    if constexpr (std::is_same_v<T, bool>) {
      for (auto& value : expected) value = value != 0 ? 1 : 0;
    }
    const std::byte* const in = memory_of(values);
    for (const ReduceOp op : kElementOps) {
      const std::size_t bytes = values.size() * sizeof values[0];
      Blocks memory(3, bytes, 0);
      std::byte* const out[] = {memory[0], memory[1], memory[2]};
      reduce(data_type_of<T>, op, {&in, 1}, out, values.size(), {});
      for (const std::byte* result : out) {
        EXPECT_EQ(std::memcmp(result, expected.data(), bytes), 0) << name_of(op);
      }
    }
  });
}

/// Every pattern times scales that lead into subnormals, across every rounding and to infinity.
template <class T>
void expect_every_pattern_scales(double scale) {
  std::vector<Elements<T>> values(1, Elements<T>(65536));
  for (std::uint32_t i = 0; i < 65536; ++i) values[0][i].bits = static_cast<std::uint16_t>(i);
  const auto expected = reduced<T>(ReduceOp::sum, values, {.post = scale});
  const std::byte* const in = memory_of(values[0]);
  Elements<T> first;
  for (auto kernels = runnable_kernels(); *kernels != nullptr; ++kernels) {
    SCOPED_TRACE(testing::Message() << (*kernels)->instruction_set << ", " << scale);
    Elements<T> result(65536);
    std::byte* const out = memory_of(result);
    kernels_of(**kernels, data_type_of<T>).plain_sum(&in, 1, &out, 1, 65536, {.post = scale});
    expect_elements(data_type_of<T>, out, memory_of(expected), 65536);
    if (first.empty()) first = result;
    ASSERT_EQ(result, first) << "a NaN's payload differs";
  }
}

TEST(Halves, EveryPatternTimesManyScalesOnEveryInstructionSet) {
  std::mt19937_64 random = generator();
  std::vector<double> scales = {1.0,     -1.0,    0.0, 0.5,    1.0 / 3,
                                0x1p-10, 0x1p-24, 3.0, 1000.0, 0x1p40};
  std::uniform_real_distribution<double> power(-30, 30);
  for (int i = 0; i < 6; ++i) scales.push_back(std::exp2(power(random)));
  for (const double scale : scales) {
    expect_every_pattern_scales<Float16>(scale);
    expect_every_pattern_scales<Bfloat16>(scale);
  }
#if defined(__x86_64__)
  // Subnormal float16 survives in a thread that flushes float32 subnormals to zero.
  const unsigned int before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // flush to zero, denormals are zero
  for (const double scale : {1.0, 0.25}) expect_every_pattern_scales<Float16>(scale);
  _mm_setcsr(before);
#endif
}

TEST(Kernels, RefuseTypesAndOperationsThatTheyDoNotTake) {
  std::array<std::byte, 8> memory{};
  std::byte* out = memory.data();
  const std::byte* in = out;
  const auto unknown = static_cast<DataType>(kDataTypes);
  const auto sum = [&](DataType type, ReduceOp op) {
    return [=, &in, &out] { reduce(type, op, {&in, 1}, {&out, 1}, 1, {}); };
  };
  const std::function<void()> refused[] = {
      [&] {
        reduce(float32, ReduceOp::sum, {}, {&out, 1}, 1, {});
      },
      sum(unknown, ReduceOp::sum),
      sum(float32, ReduceOp::adasum),
      sum(float32, static_cast<ReduceOp>(6)),
      [&] { adasum_dots(int32, in, in, 1); },
      [&] { sum_of_squares(boolean, in, 1); },
      [&] { adasum_combine(unknown, in, in, {}, out, 1); },
      [&] { convert(int32, in, float32, out, 1, {}); },
      [&] { convert(float32, in, int64, out, 1, {}); },
      [] { update(bfloat16, SgdStep{}, {}, 0, 1); },
      [] { update(float32, SgdStep{}, {}, 0, 1); },
  };
  std::string texts;
  for (const auto& call : refused) {
    texts += expect_error(ErrorCode::invalid_argument, call).what() + std::string("\n");
  }
  expect_golden("ops/local/texts.txt", "refused", texts);
  EXPECT_NO_THROW(reduce(float32, ReduceOp::sum, {&in, 1}, {}, 1, {.post = 0.5}));
}

/// The tables are indexed by the numbers of types and operations.
TEST(Kernels, AreThoseOfEveryTypeAndOperationAndTheBestThatTheCpuHas) {
  static_assert(kDataTypes == static_cast<std::size_t>(last_of<DataType>) + 1);
  static_assert(kReduceOps == static_cast<std::size_t>(last_of<ReduceOp>));
  for (std::size_t type = 0; type < kDataTypes; ++type) {
    EXPECT_EQ(is_floating_point(static_cast<DataType>(type)), type < kFloatingTypes) << type;
  }
  ASSERT_NE(runnable_kernels()[0], nullptr);
  EXPECT_STREQ(kernel_instruction_set(), runnable_kernels()[0]->instruction_set);
  auto last = runnable_kernels();
  while (last[1] != nullptr) ++last;
  EXPECT_STREQ((*last)->instruction_set, "baseline");
}

constexpr std::size_t kAdasumCounts[] = {0, 1, 2, 15, 16, 17, 63, 1000, 4097};

template <class T>
std::vector<T> uniform_numbers(std::size_t count, std::mt19937_64& random) {
  std::uniform_real_distribution<double> uniform(-1, 1);
  std::vector<T> values(count);
  for (T& value : values) value = narrow<T>(static_cast<Sum<T>>(uniform(random)));
  return values;
}

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

template <class T>
void check_adasum(std::size_t count, std::mt19937_64& random) {
  constexpr auto kType = static_cast<std::size_t>(data_type_of<T>);
  constexpr AdasumFactors kFactors{.a = 0.3, .b = -1.7};
  const auto a = uniform_numbers<T>(count, random);
  const auto b = uniform_numbers<T>(count, random);
  const double square = serial_dot(a, a);
  EXPECT_EQ(sum_of_squares(data_type_of<T>, memory_of(a), count), square);
  std::vector<T> expected(count);
  for (std::size_t i = 0; i < count; ++i) {
    expected[i] = narrow<T>(static_cast<Sum<T>>(kFactors.a) * widen<T>(a[i]) +
                            static_cast<Sum<T>>(kFactors.b) * widen<T>(b[i]));
  }
  for (auto table = runnable_kernels(); *table != nullptr; ++table) {
    for (const std::size_t shift : {0, 1, 3}) {
      SCOPED_TRACE(testing::Message() << (*table)->instruction_set << ", " << count << " of "
                                      << name_of(data_type_of<T>) << ", shifted by " << shift);
      const AdasumKernels& kernels = (*table)->adasum[kType];
      std::vector<T> shifted(shift);
      shifted.insert(shifted.end(), a.begin(), a.end());
      std::byte* const of_a = memory_of(shifted) + shift * sizeof(T);
      const AdasumDots dots = kernels.dots(of_a, memory_of(b), count);
      EXPECT_EQ(dots.dot, serial_dot(a, b));
      EXPECT_EQ(dots.norm_a, square);
      EXPECT_EQ(dots.norm_b, serial_dot(b, b));
      EXPECT_EQ((*table)->sum_of_squares[kType](of_a, count), square);
      auto in_b = b;
      std::vector<T> apart(count);
      kernels.combine(of_a, memory_of(b), kFactors, memory_of(apart), count);
      EXPECT_EQ(apart, expected);
      kernels.combine(of_a, memory_of(in_b), kFactors, memory_of(in_b), count);
      EXPECT_EQ(in_b, expected) << "in b's place";
      kernels.combine(of_a, memory_of(b), kFactors, of_a, count);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), shifted.data() + shift))
          << "in a's place";
    }
  }
}

TEST(Adasum, IsTheSerialModelsOnEveryInstructionSetAndAtAnyAddress) {
  std::mt19937_64 random = generator();
  for_each_float([&]<class T>() {
    for (const std::size_t count : kAdasumCounts) check_adasum<T>(count, random);
  });
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

/// Copies `bytes` between these offsets; nothing around them may change.
void expect_copies(void (*copy)(std::byte*, const std::byte*, std::size_t), std::size_t bytes,
                   std::size_t out_offset, std::size_t in_offset, std::mt19937_64& random) {
  const Bytes in = random_values(uint8, in_offset + bytes + 1, random);
  Bytes out = random_values(uint8, out_offset + bytes + 64, random);
  auto expected = out;
  if (bytes != 0) std::memcpy(expected.data() + out_offset, in.data() + in_offset, bytes);
  copy(out.data() + out_offset, in.data() + in_offset, bytes);
  ASSERT_TRUE(out == expected) << bytes << " bytes from offset " << in_offset << " to "
                               << out_offset;
}

TEST(StreamCopy, CopiesAnyLengthBetweenAnyAddressesOnEveryInstructionSet) {
  std::mt19937_64 random = generator();
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
  std::mt19937_64 random = generator();
  for (const std::size_t bytes : {0, 1, 64, 1000, 16383, 16384, 16385, 100003}) {
    for (const std::size_t outputs : {0, 1, 2, 5}) {
      Bytes root = random_values(uint8, bytes, random);
      const Bytes expected = root;
      Blocks results(outputs, bytes, 0);
      std::vector<std::byte*> out;
      for (std::size_t k = 0; k < outputs; ++k) out.push_back(results[k]);
      if (outputs == 5) out.push_back(root.data());
      copy_to_all(root.data(), out, bytes);
      EXPECT_TRUE(root == expected) << bytes;
      for (std::size_t k = 0; k < outputs; ++k) {
        EXPECT_TRUE(std::equal(root.begin(), root.end(), results[k])) << bytes;
        results.expect_unwritten_around(k);
      }
    }
  }
}

// Reducing anything with the identity element gives the thing itself: so says the kernel.
TEST(Neutral, ChangesNothing) {
  constexpr std::size_t kCount = 100;
  auto random = generator();
  for (const DataType type : kAllTypes) {
    for (const ReduceOp op : kElementOps) {
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

/// `states`: how many of them the step uses. Beside the parameter and the state there are so many
/// gradients and copies.
template <class T, class Step>
void check_update(const Step& step, std::size_t states, std::size_t gradients, std::size_t copies,
                  std::size_t count, std::size_t shift, std::mt19937_64& random) {
  std::normal_distribution<double> normal(0, 1);
  const Scales scales =
      gradients == 1 ? Scales{} : Scales{.pre = 0.7, .post = 1.0 / static_cast<double>(gradients)};
  // The parameter, three states, of which the last two are squares, and the gradients.
  std::vector<std::vector<T>> before(4 + gradients, std::vector<T>(count));
  for (auto& array : before) {
    for (T& value : array) value = static_cast<T>(normal(random));
  }
  auto expected = before;
  for (std::size_t i = 0; i < count; ++i) {
    for (const std::size_t square : {2, 3}) before[square][i] = std::abs(before[square][i]);
    T sum = 0;
    for (std::size_t k = 0; k < gradients; ++k) {
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
      SCOPED_TRACE(testing::Message()
                   << (*table)->instruction_set << ", " << count << " elements, " << gradients
                   << " gradients, " << copies << " copies, streams " << streams);
      Blocks blocks(before.size() + copies, count * sizeof(T), shift * sizeof(T));
      std::vector<std::byte*> memory;
      for (std::size_t k = 0; k < before.size() + copies; ++k) {
        memory.push_back(blocks[k]);
        if (k < before.size()) std::memcpy(blocks[k], before[k].data(), count * sizeof(T));
      }
      const std::vector<const std::byte*> sources(memory.begin() + 4, memory.end());
      UpdateArrays arrays{.parameter = memory[0],
                          .gradients = sources.data(),
                          .gradient_count = gradients,
                          .scales = scales,
                          .copies = memory.data() + before.size(),
                          .copy_count = copies,
                          .streams = streams};
      std::copy_n(memory.begin() + 1, states, arrays.state);
      kernel_for<T>(**table, step)(step, arrays, 0, count / 3);
      kernel_for<T>(**table, step)(step, arrays, count / 3, count);
      for (std::size_t k = 0; k < memory.size(); ++k) {
        if (k > states && k < before.size()) continue;
        const auto& wanted = expected[k <= states ? k : 0];
        EXPECT_EQ(std::memcmp(memory[k], wanted.data(), count * sizeof(T)), 0) << "array " << k;
      }
    }
  }
}

TEST(Update, StepsWithTheSameBitsOnEveryInstructionSet) {
  std::mt19937_64 random = generator();
  const auto check = [&](const auto& step, std::size_t states) {
    for (const std::size_t count : {1, 3, 16, 37, 200}) {
      for (const std::size_t shift : {0, 1}) {
        check_update<float>(step, states, 1, 0, count, shift, random);
        check_update<double>(step, states, 1, 0, count, shift, random);
      }
    }
  };
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
    check(sgd, bit(2) ? 1 : 0);
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
    check(adam, bit(2) ? 3 : 2);
  }
}

TEST(Update, AveragesItsGradientsAndHandsTheParameterOut) {
  std::mt19937_64 random = generator();
  const SgdStep sgd{.rate = 0.07, .momentum = 0.9};
  const AdamStep adam{.rate = 0.03, .root = 0.2, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-6};
  for (const std::size_t gradients : {1, 2, 3, 9}) {
    for (const std::size_t copies : {0, 1, 4, 6}) {
      for (const std::size_t count : {5, 37, 4096 + 129}) {
        for (const std::size_t shift : {0, 1, 3}) {
          check_update<float>(sgd, 1, gradients, copies, count, shift, random);
          check_update<double>(sgd, 1, gradients, copies, count, shift, random);
          check_update<float>(adam, 2, gradients, copies, count, shift, random);
          check_update<double>(adam, 2, gradients, copies, count, shift, random);
        }
      }
    }
  }
}

void put(DataType type, std::byte* memory, double value) {
  std::ranges::copy(to_bytes(type, {value}), memory);
}

bool is_wide(DataType source, DataType target) {
  return source == float64 || target == float64;
}

/// Converts one element as kernels.h says. Returns the product.
double convert_one(DataType source, const std::byte* in, DataType target, std::byte* out,
                   double scale) {
  double product = element_at(source, in);
  if (is_wide(source, target)) {
    product *= scale;
  } else {
    product = static_cast<double>(static_cast<float>(product) * static_cast<float>(scale));
  }
  put(target, out, product);
  return product;
}

/// Every so many-th is subnormal in float32; an instruction for bfloat16 takes those for zero.
void fill_finite(std::byte* memory, DataType type, std::size_t count, std::mt19937_64& random) {
  constexpr std::uint64_t kAmong[] = {1, 16, 200, UINT64_MAX};
  const std::uint64_t among = kAmong[random() % std::size(kAmong)];
  std::uniform_real_distribution<double> mantissa(-2.0, 2.0);
  for (std::size_t i = 0; i < count; ++i) {
    const bool is_subnormal = random() % among == 0;
    const int power = static_cast<int>(random() % (is_subnormal ? 20 : 60));
    put(type, memory + i * size_of(type),
        std::ldexp(mantissa(random), power - (is_subnormal ? 148 : 30)));
  }
}

/// Just above the middle of 1 and the next float16, where float32 has that middle, which goes to
/// even; and a small one.
constexpr double kSpecial[] = {0.0,         -0.0,   1 + 0x1p-11 + 0x1p-40, -1 - 0x1p-11 - 0x1p-40,
                               1 + 0x1p-11, -1e-300};
/// The first one's products overflow, in part.
constexpr double kNotFinite[] = {3e38, HUGE_VAL, -HUGE_VAL,
                                 std::numeric_limits<double>::quiet_NaN()};

/// `run` converts what it is given, and tells whether all is within a limit.
template <class Run>
void check_conversion(DataType source, DataType target, std::size_t count, std::size_t shift,
                      double scale, std::mt19937_64& random, const Run& run) {
  const std::size_t from = size_of(source), to = size_of(target);
  Blocks sources(1, count * from, random() % 4 * from), targets(1, count * to, shift * to);
  std::byte* const in = sources[0];
  fill_finite(in, source, count, random);
  const auto put_somewhere = [&](double value) {
    if (count > 0) put(source, in + random() % count * from, value);
  };
  for (const double special : kSpecial) put_somewhere(special);
  if (random() % 2 == 0) put_somewhere(kNotFinite[random() % std::size(kNotFinite)]);
  std::vector<std::byte> expected(count * to);
  bool is_finite = true;
  double largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double product =
        convert_one(source, in + i * from, target, expected.data() + i * to, scale);
    is_finite = is_finite && std::isfinite(product);
    largest = std::max(largest, std::fabs(product));
  }
  const double below = is_wide(source, target)
                           ? std::nextafter(largest, 0.0)
                           : static_cast<double>(std::nextafter(static_cast<float>(largest), 0.0F));
  for (const double limit : {std::numeric_limits<double>::max(), largest, below}) {
    EXPECT_EQ(run(in, targets[0], limit), is_finite && largest <= limit) << limit;
    expect_elements(target, targets[0], expected.data(), count);
    targets.expect_unwritten_around(0);
  }
}

constexpr std::size_t kConvertedCounts[] = {0, 1, 7, 15, 16, 17, 63, 64, 65, 1000, 4097};
constexpr std::array kScales = {1.0, 0.25, 1.0 / 3, 65536.0};

TEST(Convert, EqualsTheModelForAllTypesLengthsPlacesAndInstructionSets) {
  auto random = generator();
  for (const DataType source : kFloatTypes) {
    for (const DataType target : kFloatTypes) {
      const auto expect = [&](const char* by, std::size_t count, std::size_t shift, double scale,
                              const auto& run) {
        SCOPED_TRACE(testing::Message()
                     << by << ", " << name_of(source) << " to " << name_of(target) << ", " << count
                     << " elements, scale " << scale << ", shift " << shift);
        check_conversion(source, target, count, shift, scale, random, run);
      };
      for (const std::size_t count : kConvertedCounts) {
        for (const double scale : kScales) {
          expect("convert()", count, random() % 4, scale,
                 [&](const auto* in, auto* out, double limit) {
                   return convert(source, in, target, out, count, {scale, limit});
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
                   [&](const auto* in, auto* out, double limit) {
                     return kernel(out, in, count, scale, std::min(limit, most), past_caches);
                   });
          }
        }
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Convert, InPlace) {
  auto random = generator();
  for (const DataType type : kFloatTypes) {
    constexpr std::size_t kCount = 70001;
    std::vector<std::byte> values(kCount * size_of(type));
    fill_finite(values.data(), type, kCount, random);
    std::vector<std::byte> expected(values.size());
    convert(type, values.data(), type, expected.data(), kCount, {.scale = 0.5});
    convert(type, values.data(), type, values.data(), kCount, {.scale = 0.5});
    EXPECT_TRUE(values == expected) << name_of(type);
  }
}

}  // namespace
}  // namespace hora::internal
