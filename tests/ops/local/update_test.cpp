#include "ops/local/update.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "ops/local/update_table.h"
#include "tests/ops/local/blocks.h"
#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

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

template <class T>
auto kernel_for(const UpdateTable& table, const SgdStep&) {
  return table.sgd[sizeof(T) == 8];
}
template <class T>
auto kernel_for(const UpdateTable& table, const AdamStep&) {
  return table.adam[sizeof(T) == 8];
}

/// `arrays`: how many of them the step uses.
template <class T, class Step>
void check(const Step& step, std::size_t arrays) {
  std::mt19937_64 random(test::seed());
  std::normal_distribution<double> normal(0, 1);
  for (const std::size_t count : {1, 3, 16, 37, 200}) {
    for (const std::size_t shift : {0, 1}) {
      std::vector<Element<T>> expected(count);
      for (auto& element : expected) {
        for (T& value : element) value = static_cast<T>(normal(random));
        for (const std::size_t square : {3, 4}) element[square] = std::abs(element[square]);
      }
      const std::vector<Element<T>> before = expected;
      for (auto& element : expected) expect_step(step, element);
      for (auto table = runnable_updates(); *table != nullptr; ++table) {
        test::Blocks<T> blocks(5, count, shift);
        std::byte* memory[5] = {};
        for (std::size_t a = 0; a < arrays; ++a) {
          memory[a] = blocks[a];
          for (std::size_t i = 0; i < count; ++i) {
            std::memcpy(memory[a] + i * sizeof(T), &before[i][a], sizeof(T));
          }
        }
        kernel_for<T>(**table, step)(step, memory, count);
        for (std::size_t a = 0; a < arrays; ++a) {
          for (std::size_t i = 0; i < count; ++i) {
            ASSERT_EQ(std::memcmp(memory[a] + i * sizeof(T), &expected[i][a], sizeof(T)), 0)
                << (*table)->instruction_set << ", array " << a << ", element " << i << " of "
                << count;
          }
        }
      }
    }
  }
}

template <class T>
class Update : public testing::Test {};
using UpdatedTypes = testing::Types<float, double>;
TYPED_TEST_SUITE(Update, UpdatedTypes);

constexpr Rounding kRoundings[] = {Rounding::separate, Rounding::fused};

TYPED_TEST(Update, StepsSgdWithTheSameBitsOnEveryInstructionSet) {
  for (const Rounding rounding : kRoundings) {
    for (const double decay : {0.0, 0.01}) {
      SgdStep step{.rate = 0.07, .weight_decay = decay, .rounding = rounding};
      check<TypeParam>(step, 2);
      step.momentum = 0.9;
      for (const double dampening : {0.0, 0.2}) {
        for (const bool nesterov : {false, true}) {
          for (const bool first : {false, true}) {
            step.dampening = dampening;
            step.nesterov = nesterov;
            step.first = first;
            check<TypeParam>(step, 3);
          }
        }
      }
    }
  }
}

TYPED_TEST(Update, StepsAdamWithTheSameBitsOnEveryInstructionSet) {
  for (const Rounding rounding : kRoundings) {
    for (const Rounding square : kRoundings) {
      for (const double coupled : {0.0, 0.01}) {
        for (const bool amsgrad : {false, true}) {
          check<TypeParam>(AdamStep{.rate = 0.03,
                                    .root = 0.2,
                                    .beta1 = 0.9,
                                    .beta2 = 0.99,
                                    .epsilon = 1e-6,
                                    .weight_decay = coupled,
                                    .decay = coupled == 0 ? 0.97 : 1,
                                    .amsgrad = amsgrad,
                                    .rounding = rounding,
                                    .square_rounding = square},
                           amsgrad ? 5 : 4);
        }
      }
    }
  }
}

TEST(UpdateErrors, OtherTypesAreRefused) {
  test::expect_error(ErrorCode::invalid_argument,
                     testing::HasSubstr("takes float32 and float64; got bfloat16"),
                     [] { update(DataType::bfloat16, SgdStep{}, {}, 1); });
}

}  // namespace
}  // namespace hora::internal
