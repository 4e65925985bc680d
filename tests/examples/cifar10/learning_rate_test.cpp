#include "examples/cifar10/learning_rate.h"

#include <gtest/gtest.h>

namespace cifar10 {
namespace {

TEST(LearningRate, RisesForASixthThenFalls) {
  constexpr std::size_t steps = 60;
  EXPECT_DOUBLE_EQ(learning_rate(0.5, 0, steps), 0.05);
  EXPECT_DOUBLE_EQ(learning_rate(0.5, 9, steps), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(0.5, 10, steps), 0.5);
  EXPECT_NEAR(learning_rate(0.5, 35, steps), 0.25, 1e-12);  // half of the cosine
  for (std::size_t step = 11; step < steps; ++step) {
    EXPECT_LT(learning_rate(0.5, step, steps), learning_rate(0.5, step - 1, steps));
    EXPECT_GT(learning_rate(0.5, step, steps), 0);
  }
}

TEST(LearningRate, ShortRunsGetOneStepOfWarmUp) {
  EXPECT_DOUBLE_EQ(learning_rate(0.1, 0, 1), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(0.1, 0, 2), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(0.1, 1, 2), 0.1);
}

}  // namespace
}  // namespace cifar10
