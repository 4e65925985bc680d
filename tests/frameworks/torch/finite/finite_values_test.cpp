// What a tensor holds, and what ranks tell each other of it.
#include "frameworks/torch/finite/finite_values.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <optional>

#include "frameworks/torch/finite/finding.h"

namespace hora::internal::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

/// By both ways; they must agree.
Finite look(const torch::Tensor& tensor) {
  const torch::Tensor values = real_values(tensor);
  const Finite finite = look_at(values);
  EXPECT_EQ(look_at(largest_magnitude(values)), finite);
  return finite;
}

class FiniteValues : public testing::TestWithParam<torch::ScalarType> {
 protected:
  torch::Tensor ones(torch::IntArrayRef shape) const { return torch::ones(shape, GetParam()); }
};

TEST_P(FiniteValues, EveryPlaceIsLookedAt) {
  for (const std::int64_t place : {0, 1, 63, 64, 999, 1000}) {
    for (const double sign : {1.0, -1.0}) {
      torch::Tensor values = ones({1001});
      EXPECT_EQ(look(values), Finite::yes);
      values[place] = sign * kInf;
      EXPECT_EQ(look(values), Finite::infinite) << place;
      values[1000 - place] = kNotANumber;
      EXPECT_EQ(look(values), Finite::nan) << place;
    }
  }
}

TEST_P(FiniteValues, InfinitiesOfBothSignsAreNoNan) {
  torch::Tensor values = ones({4});
  values[1] = kInf;
  values[2] = -kInf;
  EXPECT_EQ(look(values), Finite::infinite);
}

TEST_P(FiniteValues, ASumThatOverflowsIsFinite) {
  const auto type = torch::scalarTypeToTypeMeta(GetParam());
  const double largest = GetParam() == torch::kDouble ? std::numeric_limits<double>::max()
                         : GetParam() == torch::kHalf ? 65504.0
                                                      : 3.3e38;
  EXPECT_EQ(look(torch::full({1000}, largest, type)), Finite::yes);
  EXPECT_EQ(look(torch::full({1000}, -largest, type)), Finite::yes);
}

TEST_P(FiniteValues, StridesThatAreNotDense) {
  torch::Tensor values = ones({8, 6});
  values[3][4] = kInf;
  EXPECT_EQ(look(values.t()), Finite::infinite);
  EXPECT_EQ(look(values.slice(1, 4, 5)), Finite::infinite);
  EXPECT_EQ(look(values.slice(1, 0, 4)), Finite::yes);
  EXPECT_EQ(look(values[3][4].expand({5, 5})), Finite::infinite);
  EXPECT_EQ(look(values.narrow(0, 0, 0)), Finite::yes) << "no values";
}

INSTANTIATE_TEST_SUITE_P(Types, FiniteValues,
                         testing::Values(torch::kFloat, torch::kDouble, torch::kHalf,
                                         torch::kBFloat16),
                         [](const auto& type) { return std::string(toString(type.param)); });

TEST(FiniteValuesOfOtherKinds, SparseAndComplex) {
  const auto sparse = [](double value) {
    return torch::sparse_coo_tensor(torch::tensor({{0, 2}}), torch::tensor({1.0, value}), {4});
  };
  EXPECT_EQ(look(sparse(2.0)), Finite::yes);
  EXPECT_EQ(look(sparse(kNotANumber)), Finite::nan);
  EXPECT_EQ(look(torch::complex(torch::ones({2}), torch::full({2}, kInf))), Finite::infinite);
}

TEST(Finding, TheFirstTensorThenTheLowestRankIsTheLeast) {
  constexpr int kRanks = 3;
  const auto number = [&](std::size_t tensor, int rank, bool is_nan) {
    return number_of(Finding{tensor, rank, is_nan}, kRanks);
  };
  EXPECT_LT(number(0, 2, true), number(1, 0, false));
  EXPECT_LT(number(1, 1, true), number(1, 2, false));
  EXPECT_LT(number(1, 2, true), number(2, 0, false));
  EXPECT_LT(number(100000, 2, true), number_of(std::nullopt, kRanks));
}

TEST(Finding, ComesBackFromItsNumber) {
  EXPECT_EQ(finding_of(number_of(std::nullopt, 4), 4), std::nullopt);
  for (const std::size_t tensor : {0, 1, 7, 100000}) {
    for (const int rank : {0, 1, 3}) {
      for (const bool is_nan : {false, true}) {
        const Finding finding{tensor, rank, is_nan};
        EXPECT_EQ(finding_of(number_of(finding, 4), 4), finding);
      }
    }
  }
}

}  // namespace
}  // namespace hora::internal::test
