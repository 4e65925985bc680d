#include <gtest/gtest.h>
#include <hora/error.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "ops/local/kernel_table.h"
#include "ops/local/kernels.h"
#include "tests/support/reference/elements.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

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

  static AdasumDots dots(const Vector& a, const Vector& b) {
    return adasum_dots(data_type_of<T>, bytes(a.data()), bytes(b.data()), a.size());
  }
  /// The whole of Adasum.
  static Vector adasum(const Vector& a, const Vector& b) {
    Vector result(a.size());
    adasum_combine(data_type_of<T>, bytes(a.data()), bytes(b.data()), adasum_factors(dots(a, b)),
                   bytes(result.data()), a.size());
    return result;
  }
};

using AdasumTypes = testing::Types<test::Float16, test::Bfloat16, float, double>;
struct AdasumTypeName {
  template <class T>
  static std::string GetName(int) {
    return std::string(name_of(data_type_of<T>));
  }
};
TYPED_TEST_SUITE(AdasumTest, AdasumTypes, AdasumTypeName);

constexpr std::array<std::size_t, 9> kAdasumCounts = {0, 1, 2, 15, 16, 17, 63, 1000, 4097};

/// As adasum_kernels.h says, one element after the other.
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

TYPED_TEST(AdasumTest, DotsAreTheSameOnEveryInstructionSetAndAtAnyAddress) {
  std::mt19937_64 random = test::generator();
  for (const std::size_t count : kAdasumCounts) {
    const auto a = this->numbers(count, random);
    const auto b = this->numbers(count, random);
    for (auto table = runnable_kernels(); *table != nullptr; ++table) {
      for (const std::size_t shift : {0, 1, 3}) {
        SCOPED_TRACE(testing::Message() << (*table)->instruction_set << ", " << count
                                        << " elements, shifted by " << shift);
        std::vector<TypeParam> shifted(shift);
        shifted.insert(shifted.end(), a.begin(), a.end());
        const AdasumDots dots =
            (*table)->adasum[static_cast<std::size_t>(data_type_of<TypeParam>)].dots(
                this->bytes(shifted.data() + shift), this->bytes(b.data()), count);
        EXPECT_EQ(dots.dot, serial_dot<TypeParam>(a, b));
        EXPECT_EQ(dots.norm_a, serial_dot<TypeParam>(a, a));
        EXPECT_EQ(dots.norm_b, serial_dot<TypeParam>(b, b));
      }
    }
  }
}

TYPED_TEST(AdasumTest, SumsOfSquaresAreTheSameOnEveryInstructionSetAndAtAnyAddress) {
  std::mt19937_64 random = test::generator();
  for (const std::size_t count : kAdasumCounts) {
    const auto values = this->numbers(count, random);
    EXPECT_EQ(sum_of_squares(data_type_of<TypeParam>, this->bytes(values.data()), count),
              serial_dot<TypeParam>(values, values));
    for (auto table = runnable_kernels(); *table != nullptr; ++table) {
      for (const std::size_t shift : {0, 1, 3}) {
        SCOPED_TRACE(testing::Message() << (*table)->instruction_set << ", " << count
                                        << " elements, shifted by " << shift);
        std::vector<TypeParam> shifted(shift);
        shifted.insert(shifted.end(), values.begin(), values.end());
        EXPECT_EQ((*table)->sum_of_squares[static_cast<std::size_t>(data_type_of<TypeParam>)](
                      this->bytes(shifted.data() + shift), count),
                  serial_dot<TypeParam>(values, values));
      }
    }
  }
}

TYPED_TEST(AdasumTest, CombinesLikeTheSerialModelOnEveryInstructionSet) {
  std::mt19937_64 random = test::generator();
  const AdasumFactors factors{.a = 0.3, .b = -1.7};
  for (const std::size_t count : kAdasumCounts) {
    const auto a = this->numbers(count, random);
    const auto b = this->numbers(count, random);
    std::vector<TypeParam> expected(count);
    for (std::size_t i = 0; i < count; ++i) {
      expected[i] =
          narrow<TypeParam>(static_cast<Sum<TypeParam>>(factors.a) * widen<TypeParam>(a[i]) +
                            static_cast<Sum<TypeParam>>(factors.b) * widen<TypeParam>(b[i]));
    }
    for (auto table = runnable_kernels(); *table != nullptr; ++table) {
      SCOPED_TRACE(testing::Message() << (*table)->instruction_set << ", " << count);
      const auto combine =
          (*table)->adasum[static_cast<std::size_t>(data_type_of<TypeParam>)].combine;
      auto of_a = a;
      auto of_b = b;
      std::vector<TypeParam> apart(count);
      combine(this->bytes(a.data()), this->bytes(b.data()), factors, this->bytes(apart.data()),
              count);
      EXPECT_EQ(apart, expected);
      combine(this->bytes(of_a.data()), this->bytes(b.data()), factors, this->bytes(of_a.data()),
              count);
      EXPECT_EQ(of_a, expected) << "in a's place";
      combine(this->bytes(a.data()), this->bytes(of_b.data()), factors, this->bytes(of_b.data()),
              count);
      EXPECT_EQ(of_b, expected) << "in b's place";
    }
  }
}

TYPED_TEST(AdasumTest, OfAVectorAndItselfIsThatVector) {
  std::mt19937_64 random = test::generator();
  for (const std::size_t count : kAdasumCounts) {
    const auto a = this->numbers(count, random);
    EXPECT_EQ(this->adasum(a, a), a) << count;
  }
}

/// Of a and -4 a, which has no rounding errors but for those of the two terms and their sum.
TYPED_TEST(AdasumTest, OfParallelVectorsIsTheirAverage) {
  std::mt19937_64 random = test::generator();
  const auto a = this->numbers(1000, random);
  auto b = a;
  for (auto& value : b)
    value = narrow<TypeParam>(widen<TypeParam>(value) * static_cast<Sum<TypeParam>>(-4));
  const auto result = this->adasum(a, b);
  // Factors 3 and 1.125: |3 a| + |1.125 b| = 7.5 |a| bounds what is rounded.
  const double rounding = 7.5 * 4 * std::numeric_limits<Sum<TypeParam>>::epsilon();
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double element = widen<TypeParam>(a[i]);
    const double expected = element * -1.5;
    const auto low =
        narrow<TypeParam>(static_cast<Sum<TypeParam>>(expected - rounding * std::fabs(element)));
    const auto high =
        narrow<TypeParam>(static_cast<Sum<TypeParam>>(expected + rounding * std::fabs(element)));
    EXPECT_GE(widen<TypeParam>(result[i]), widen<TypeParam>(low)) << element;
    EXPECT_LE(widen<TypeParam>(result[i]), widen<TypeParam>(high)) << element;
  }
}

TYPED_TEST(AdasumTest, OfOrthogonalVectorsIsTheirSum) {
  std::mt19937_64 random = test::generator();
  const auto even = this->numbers(500, random);
  const auto odd = this->numbers(500, random);
  std::vector<TypeParam> a(1000), b(1000), sum(1000);
  for (std::size_t i = 0; i < 500; ++i) {
    sum[2 * i] = a[2 * i] = even[i];
    sum[2 * i + 1] = b[2 * i + 1] = odd[i];
  }
  EXPECT_EQ(this->adasum(a, b), sum);
}

TYPED_TEST(AdasumTest, AZeroVectorContributesNothing) {
  std::mt19937_64 random = test::generator();
  const auto a = this->numbers(100, random);
  const std::vector<TypeParam> zero(100);
  EXPECT_EQ(this->adasum(a, zero), a);
  EXPECT_EQ(this->adasum(zero, a), a);
  EXPECT_EQ(this->adasum(zero, zero), zero);
}

TEST(AdasumFactors, FollowTheFormula) {
  const AdasumFactors factors = adasum_factors({.dot = 3, .norm_a = 2, .norm_b = 12});
  EXPECT_EQ(factors.a, 1 - 3.0 / 4);
  EXPECT_EQ(factors.b, 1 - 3.0 / 24);
}

TEST(AdasumFactors, StayInFloatsRangeHoweverShortAVectorIs) {
  for (const double ratio : {0x1p-99, 0x1p-100, 0x1p-101, 0x1p-400}) {
    // Parallel vectors: a.b = |a| |b|.
    for (const bool a_is_short : {false, true}) {
      const AdasumFactors factors =
          a_is_short ? adasum_factors({.dot = ratio, .norm_a = ratio * ratio, .norm_b = 1})
                     : adasum_factors({.dot = ratio, .norm_a = 1, .norm_b = ratio * ratio});
      EXPECT_TRUE(std::isfinite(static_cast<float>(factors.a))) << ratio;
      EXPECT_TRUE(std::isfinite(static_cast<float>(factors.b))) << ratio;
      EXPECT_EQ(factors.a == 1 && factors.b == 1, ratio <= 0x1p-100) << ratio;
    }
  }
}

TEST(AdasumFactors, AreNanWhereADotIs) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const AdasumFactors factors = adasum_factors({.dot = kNan, .norm_a = kNan, .norm_b = 1});
  EXPECT_TRUE(std::isnan(factors.a));
  EXPECT_TRUE(std::isnan(factors.b));
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

}  // namespace
}  // namespace hora::internal
