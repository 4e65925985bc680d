#include "frameworks/torch/optimizer/tuner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <vector>

#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

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
  const auto tried = tune(tuner, [](std::size_t size) { return size == 4 ? 2.0 : 1.0; });
  EXPECT_THAT(tried, ElementsAre(4, 4, 4,                       // warm-up
                                 4, 4, 4, 1, 1, 1, 16, 16, 16,  //
                                 16, 16, 16, 1, 1, 1, 4, 4, 4,  //
                                 4, 4, 4, 1, 1, 1, 16, 16, 16));
  EXPECT_EQ(tuner.steps(), kMost);
  EXPECT_EQ(tuner.form().bytes, 1U);
  EXPECT_DOUBLE_EQ(tuner.gain(), 0.5);
}

TEST(BucketTuner, TakesTheBestFormThatIsClearlyShorter) {
  const auto choice = [](const std::function<double(std::size_t)>& seconds) {
    BucketTuner tuner(of_sizes({4, 1, 16}));
    tune(tuner, seconds);
    return tuner.form().bytes;
  };
  EXPECT_EQ(choice([](std::size_t size) { return size == 16 ? 0.9 : 1.0; }), 16U);
  EXPECT_EQ(choice([](std::size_t size) { return size == 4 ? 1.0 : size == 1 ? 0.9 : 0.8; }), 16U);
  EXPECT_EQ(choice([](std::size_t) { return 1.0; }), 4U);
  EXPECT_EQ(choice([](std::size_t size) { return size == 1 ? 0.995 : 1.0; }), 4U) << "too little";
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

class Noise : public testing::Test {
 protected:
  /// The share of 20,000 tunings under noise of this standard deviation that ends with `size`.
  double share_of(std::size_t size, double deviation,
                  const std::function<double(std::size_t size)>& seconds) {
    std::normal_distribution<double> noise(0, deviation);
    constexpr int tunings = 20'000;
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

TEST(BucketFormsToTry, AreAQuarterAndFourTimesTheUsualOneAndWithoutCompression) {
  EXPECT_EQ(bucket_forms_to_try({4 << 20, false}), of_sizes({4 << 20, 1 << 20, 16 << 20}));
  EXPECT_EQ(bucket_forms_to_try({2, false}), of_sizes({2, 1, 8}));
  EXPECT_THAT(bucket_forms_to_try({4, true}),
              ElementsAre(BucketForm{4, true}, BucketForm{1, true}, BucketForm{16, true},
                          BucketForm{4, false}));
}

TEST(TuningFile, GivesBackWhatWasPutIn) {
  std::string text = with_tuned_form("", "one", {4096, true});
  text = with_tuned_form(text, "other \"model\"", {77, true});
  text = with_tuned_form(text, "one", {8192, false});
  EXPECT_EQ(tuned_form(text, "one").value(), (BucketForm{8192, false}));
  EXPECT_EQ(tuned_form(text, "other \"model\"").value(), (BucketForm{77, true}));
  EXPECT_EQ(tuned_form(text, "third").value(), std::nullopt);
  constexpr const char* size_alone = R"({"hora_tuning": 1, "bucket_sizes": {"one": 5}})";
  EXPECT_EQ(tuned_form(size_alone, "one").value(), (BucketForm{5, true}));
}

TEST(TuningFile, RefusesWhatIsNoneOfItsOwn) {
  const auto refusal = [](std::string_view text) {
    const auto found = tuned_form(text, "key");
    return found ? std::string("taken") : found.error();
  };
  for (const char* text : {"", "{", "[]", "7", "nonsense"}) {
    EXPECT_THAT(refusal(text), HasSubstr("no JSON object")) << text;
  }
  for (const char* text : {"{}", R"({"hora_tuning": 2})", R"({"hora_tuning": "1"})"}) {
    EXPECT_THAT(refusal(text), HasSubstr("\"hora_tuning\"")) << text;
  }
  EXPECT_THAT(refusal(R"({"hora_tuning": 1, "bucket_sizes": 3})"), HasSubstr("\"bucket_sizes\""));
  for (const char* size : {"0", "-4", "1.5", "\"4\"", "null", "{}"}) {
    const std::string text =
        R"({"hora_tuning": 1, "bucket_sizes": {"key": )" + std::string(size) + "}}";
    EXPECT_THAT(refusal(text), HasSubstr("above 0")) << text;
  }
  for (const char* compressed : {"3", R"({"key": 1})", R"({"key": null})"}) {
    const std::string text = R"({"hora_tuning": 1, "bucket_sizes": {"key": 4}, "compressed": )" +
                             std::string(compressed) + "}";
    EXPECT_THAT(refusal(text), HasSubstr("compressed")) << text;
  }
  EXPECT_EQ(refusal(R"({"hora_tuning": 1})"), "taken");
}

}  // namespace
}  // namespace hora::internal
