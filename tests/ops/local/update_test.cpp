#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "ops/local/kernel_table.h"
#include "ops/local/kernels.h"
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
auto kernel_for(const KernelTable& table, const SgdStep&) {
  return table.sgd[sizeof(T) == 8];
}

template <class T>
auto kernel_for(const KernelTable& table, const AdamStep&) {
  return table.adam[sizeof(T) == 8];
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
  std::vector<Element<T>> before(count);
  std::vector<std::vector<T>> gradients(around.gradients, std::vector<T>(count));
  for (std::size_t i = 0; i < count; ++i) {
    for (T& value : before[i]) value = static_cast<T>(normal(random));
    for (const std::size_t square : {3, 4}) before[i][square] = std::abs(before[i][square]);
    T sum = 0;
    for (std::size_t k = 0; k < around.gradients; ++k) {
      gradients[k][i] = static_cast<T>(normal(random));
      const T scaled = gradients[k][i] * static_cast<T>(scales.pre);
      sum = k == 0 ? scaled : sum + scaled;
    }
    before[i][1] = sum * static_cast<T>(scales.post);
  }
  std::vector<Element<T>> expected = before;
  for (auto& element : expected) expect_step(step, element);

  for (auto table = runnable_kernels(); *table != nullptr; ++table) {
    for (const bool streams : {false, true}) {
      test::Blocks<T> blocks(4 + around.gradients + around.copies, count, shift);
      UpdateArrays arrays{.parameter = blocks[0], .scales = scales, .streams = streams};
      for (std::size_t s = 0; s < states; ++s) arrays.state[s] = blocks[1 + s];
      const auto put = [&](std::byte* block, std::size_t i, T value) {
        std::memcpy(block + i * sizeof(T), &value, sizeof(T));
      };
      for (std::size_t i = 0; i < count; ++i) {
        put(arrays.parameter, i, before[i][0]);
        for (std::size_t s = 0; s < states; ++s) put(arrays.state[s], i, before[i][2 + s]);
      }
      std::vector<const std::byte*> sources;
      for (std::size_t k = 0; k < around.gradients; ++k) {
        sources.push_back(blocks[4 + k]);
        std::memcpy(blocks[4 + k], gradients[k].data(), count * sizeof(T));
      }
      std::vector<std::byte*> copies;
      for (std::size_t k = 0; k < around.copies; ++k) {
        copies.push_back(blocks[4 + around.gradients + k]);
      }
      arrays.gradients = sources.data();
      arrays.gradient_count = sources.size();
      arrays.copies = copies.data();
      arrays.copy_count = copies.size();
      kernel_for<T>(**table, step)(step, arrays, 0, count / 3);
      kernel_for<T>(**table, step)(step, arrays, count / 3, count);

      const auto expect = [&](const std::byte* block, std::size_t array, const char* what) {
        for (std::size_t i = 0; i < count; ++i) {
          ASSERT_EQ(std::memcmp(block + i * sizeof(T), &expected[i][array], sizeof(T)), 0)
              << (*table)->instruction_set << ", " << what << ' ' << array << ", element " << i
              << " of " << count << ", " << around.gradients << " gradients, " << around.copies
              << " copies, streams " << streams;
        }
      };
      expect(arrays.parameter, 0, "parameter");
      for (std::size_t s = 0; s < states; ++s) expect(arrays.state[s], 2 + s, "state");
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

constexpr Rounding kRoundings[] = {Rounding::separate, Rounding::fused};

TYPED_TEST(Update, StepsSgdWithTheSameBitsOnEveryInstructionSet) {
  for (const Rounding rounding : kRoundings) {
    for (const double decay : {0.0, 0.01}) {
      SgdStep step{.rate = 0.07, .weight_decay = decay, .rounding = rounding};
      check<TypeParam>(step, 0);
      step.momentum = 0.9;
      for (const double dampening : {0.0, 0.2}) {
        for (const bool nesterov : {false, true}) {
          for (const bool first : {false, true}) {
            step.dampening = dampening;
            step.nesterov = nesterov;
            step.first = first;
            check<TypeParam>(step, 1);
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
                           amsgrad ? 3 : 2);
        }
      }
    }
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

TEST(UpdateErrors, OtherTypesAreRefused) {
  test::expect_error(ErrorCode::invalid_argument,
                     testing::HasSubstr("takes float32 and float64; got bfloat16"),
                     [] { update(DataType::bfloat16, SgdStep{}, {}, 0, 1); });
}

TEST(UpdateErrors, NoGradientIsRefused) {
  test::expect_error(ErrorCode::invalid_argument, testing::HasSubstr("at least one gradient"),
                     [] { update(DataType::float32, SgdStep{}, {}, 0, 1); });
}

}  // namespace
}  // namespace hora::internal
