#include "frameworks/torch/optimizer/bucket_tuner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <vector>

#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using testing::ElementsAre;

constexpr std::size_t kMost = BucketTuner::most_steps;

std::vector<BucketForm> of_sizes(const std::vector<std::size_t>& sizes) {
  std::vector<BucketForm> forms;
  for (const std::size_t size : sizes) forms.push_back({size, false});
  return forms;
}

/// The sizes that were tried, step by step.
std::vector<std::size_t> tune(BucketTuner& tuner,
                              const std::function<double(std::size_t size)>& seconds) {
  std::vector<std::size_t> tried;
  while (!tuner.done()) {
    tried.push_back(tuner.form().bytes);
    tuner.note(seconds(tuner.form().bytes));
    EXPECT_LE(tried.size(), kMost);
    if (tried.size() > kMost) break;
  }
  return tried;
}

TEST(BucketTuner, TriesSizesInBlocksThatGoToAndFro) {
  BucketTuner tuner(of_sizes({4, 1, 16}));
  // Both others are faster throughout, so none is out.
  const auto tried = tune(tuner, [](std::size_t size) { return size == 4 ? 2.0 : 1.0; });
  EXPECT_THAT(tried, ElementsAre(4, 4, 4,                       // warm-up
                                 4, 4, 4, 1, 1, 1, 16, 16, 16,  //
                                 16, 16, 16, 1, 1, 1, 4, 4, 4,  //
                                 4, 4, 4, 1, 1, 1, 16, 16, 16));
  EXPECT_EQ(tuner.steps(), kMost);
  EXPECT_EQ(tuner.form().bytes, 1U);
  EXPECT_DOUBLE_EQ(tuner.gain(), 0.5);
}

TEST(BucketTuner, WhatIsNoFasterIsOutAtOnce) {
  BucketTuner tuner(of_sizes({4, 1, 16}));
  const auto tried = tune(tuner, [](std::size_t size) { return size == 1 ? 0.9 : 1.0; });
  EXPECT_EQ(tried.size(), 3U + 9 + 6 + 6 + 6);
  EXPECT_EQ(tuner.form().bytes, 1U);

  BucketTuner none(of_sizes({4, 1, 16}));
  EXPECT_EQ(tune(none, [](std::size_t) { return 1.0; }).size(), 3U + 9);
  EXPECT_EQ(none.form().bytes, 4U);
  EXPECT_EQ(none.gain(), 0.0);
}

TEST(BucketTuner, TheFirstStepOfABlockDoesNotCount) {
  BucketTuner tuner(of_sizes({4, 1}));
  std::size_t before = 4;
  tune(tuner, [&](std::size_t size) {
    const bool first = std::exchange(before, size) != size;
    return first ? 100.0 : size == 1 ? 0.9 : 1.0;
  });
  EXPECT_EQ(tuner.form().bytes, 1U);
}

TEST(BucketTuner, AnInterruptionInABlockDoesNotCount) {
  BucketTuner tuner(of_sizes({4, 1}));
  tune(tuner, [&](std::size_t size) {
    const bool interrupted = tuner.steps() == 4 || tuner.steps() == 7;  // with either
    return (interrupted ? 5.0 : 1.0) * (size == 1 ? 0.95 : 1.0);
  });
  EXPECT_EQ(tuner.form().bytes, 1U);
  EXPECT_NEAR(tuner.gain(), 0.05, 1e-9);
}

TEST(BucketTuner, TriesInsteadWhatTheWarmUpHasShownToPromise) {
  BucketTuner tuner(of_sizes({4, 1, 16}));
  for (std::size_t i = 0; i < BucketTuner::warm_up_steps; ++i) {
    EXPECT_FALSE(tuner.just_warm());
    EXPECT_EQ(tuner.form().bytes, 4U);
    tuner.note(1.0);
  }
  EXPECT_TRUE(tuner.just_warm());
  tuner.try_instead(of_sizes({4, 2}));
  EXPECT_EQ(tuner.forms(), of_sizes({4, 2}));
  const auto tried = tune(tuner, [](std::size_t size) { return size == 2 ? 0.9 : 1.0; });
  EXPECT_THAT(tried, ElementsAre(4, 4, 4, 2, 2, 2,  //
                                 2, 2, 2, 4, 4, 4,  //
                                 4, 4, 4, 2, 2, 2,  //
                                 2, 2, 2, 4, 4, 4));
  EXPECT_EQ(tuner.form().bytes, 2U);

  BucketTuner none(of_sizes({4, 1, 16}));
  for (std::size_t i = 0; i < BucketTuner::warm_up_steps; ++i) none.note(1.0);
  none.try_instead(of_sizes({4}));
  EXPECT_TRUE(none.done());
  EXPECT_EQ(none.form().bytes, 4U);
  EXPECT_EQ(none.steps(), BucketTuner::warm_up_steps);
}

TEST(BucketTuner, ASmallGainIsNotWorthIt) {
  BucketTuner tuner(of_sizes({4, 1}));
  tune(tuner, [](std::size_t size) { return size == 1 ? 0.995 : 1.0; });
  EXPECT_EQ(tuner.form().bytes, 4U);
}

TEST(BucketTuner, OneSizeAloneIsTheChoice) {
  const BucketTuner tuner(of_sizes({4}));
  EXPECT_TRUE(tuner.done());
  EXPECT_EQ(tuner.form().bytes, 4U);
}

TEST(BucketTuner, GivenUpTheDefaultStays) {
  BucketTuner tuner(of_sizes({4, 1}));
  for (int i = 0; i < 8; ++i) tuner.note(tuner.form().bytes == 1 ? 0.1 : 1.0);
  tuner.give_up();
  EXPECT_TRUE(tuner.done());
  EXPECT_EQ(tuner.form().bytes, 4U);
}

class Noise : public testing::Test {
 protected:
  /// Of 2,000 tunings under noise of this standard deviation, the share that ends with `size`.
  double share_of(std::size_t size, double deviation,
                  const std::function<double(std::size_t size)>& seconds) {
    std::normal_distribution<double> noise(0, deviation);
    constexpr int tunings = 2000;
    int found = 0;
    for (int i = 0; i < tunings; ++i) {
      BucketTuner tuner(of_sizes({4, 1, 16}));
      tune(tuner,
           [&](std::size_t tried) { return seconds(tried) * std::max(1 + noise(engine_), 0.1); });
      if (tuner.form().bytes == size) found += 1;
    }
    return static_cast<double>(found) / tunings;
  }

  std::mt19937_64 engine_{test::seed()};
};

TEST_F(Noise, HidesNoGainThatIsClear) {
  const auto quarter_is_best = [](std::size_t size) { return size == 1 ? 0.85 : 1.0; };
  EXPECT_GT(share_of(1, 0.01, quarter_is_best), 0.99);
}

TEST_F(Noise, MakesNoGainOfItsOwn) {
  const auto alike = [](std::size_t) { return 1.0; };
  EXPECT_GT(share_of(4, 0.02, alike), 0.9);
  EXPECT_GT(share_of(4, 0.08, alike), 0.9);
}

TEST_F(Noise, HardlyEverTakesASlowerOne) {
  const auto others_are_slower = [](std::size_t size) { return size == 4 ? 1.0 : 1.05; };
  EXPECT_GT(share_of(4, 0.02, others_are_slower), 0.999);
  EXPECT_GT(share_of(4, 0.08, others_are_slower), 0.97);
}

// As beside other programs: now and then a step is longer by up to the half.
TEST_F(Noise, OfInterruptionsHidesNoGainThatIsClear) {
  std::uniform_real_distribution<double> uniform(0, 1);
  const auto interrupted = [&](double seconds) {
    return uniform(engine_) < 0.2 ? seconds * (1 + 0.5 * uniform(engine_)) : seconds;
  };
  const auto quarter_is_best = [&](std::size_t size) {
    return interrupted(size == 1 ? 0.93 : 1.0);
  };
  EXPECT_GT(share_of(1, 0.015, quarter_is_best), 0.6);
  EXPECT_GT(share_of(4, 0.015, [&](std::size_t) { return interrupted(1.0); }), 0.9);
}

// Of more forms than fit into the steps, those that were fastest in the first round.
TEST(BucketTuner, TheBestOfTheFirstRoundStay) {
  BucketTuner tuner(of_sizes({10, 7, 9, 6, 8}));
  const auto tried = tune(tuner, [](std::size_t size) { return static_cast<double>(size); });
  EXPECT_EQ(tried.size(), 3U + 15 + 6 + 6);
  EXPECT_EQ(tuner.form().bytes, 6U);
  EXPECT_DOUBLE_EQ(tuner.gain(), 0.4);
}

TEST(BucketFormsToTry, AreAQuarterAndFourTimesTheUsualOne) {
  EXPECT_EQ(bucket_forms_to_try({4 << 20, false}), of_sizes({4 << 20, 1 << 20, 16 << 20}));
  EXPECT_EQ(bucket_forms_to_try({2, false}), of_sizes({2, 1, 8}));
}

TEST(BucketFormsToTry, AreWithoutCompressionWhereThereIsAny) {
  EXPECT_THAT(bucket_forms_to_try({4, true}),
              ElementsAre(BucketForm{4, true}, BucketForm{1, true}, BucketForm{16, true},
                          BucketForm{4, false}));
}

}  // namespace
}  // namespace hora::internal
