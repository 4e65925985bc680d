#include "frameworks/torch/optimizer/bucket_forecast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using testing::ElementsAre;

constexpr std::size_t kKiB = std::size_t{1} << 10;
constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr CollectiveCost kSlowLink{.fixed = 2e-4, .per_byte = 8e-9};
constexpr CollectiveCost kOneNode{.fixed = 3e-6, .per_byte = 2e-11};

/// A model whose gradients, all of one size, come evenly over the time that backward takes.
struct Model {
  std::size_t count = 64;
  std::size_t bytes = kMiB / 2;
  double backward = 0.1;

  std::vector<double> leads() const {
    std::vector<double> leads;  // the last gradient comes first
    for (std::size_t i = 0; i < count; ++i) {
      leads.push_back(backward * static_cast<double>(i) / static_cast<double>(count));
    }
    return leads;
  }
  std::vector<BucketLayout> layouts(const BucketForm& form) const {
    const GradientSize size{DataType::float32, bytes,
                            form.compressed ? DataType::bfloat16 : DataType::float32};
    return assign_buckets(std::vector<GradientSize>(count, size), form.bytes);
  }
  LayoutsOf layouts_of() const {
    return [*this](const BucketForm& form) { return layouts(form); };
  }
  double exposed(std::size_t size, const CollectiveCost& cost) const {
    return exposed_seconds(layouts({size, false}), leads(), cost);
  }
};

BucketLayout bucket(std::size_t bytes, const std::vector<std::size_t>& gradients) {
  BucketLayout layout;
  layout.bytes = bytes;
  for (const std::size_t gradient : gradients) layout.places.push_back({gradient, 0});
  return layout;
}

TEST(ExposedSeconds, AreOfTheLastBucketWhereTheOthersAreHidden) {
  const CollectiveCost cost{.fixed = 1.0, .per_byte = 0.01};
  EXPECT_DOUBLE_EQ(exposed_seconds(std::vector{bucket(100, {0})}, std::vector{0.0}, cost), 2.0);
  const std::vector<double> leads{0.0, 1.0, 10.0, 11.0};
  EXPECT_DOUBLE_EQ(
      exposed_seconds(std::vector{bucket(300, {3, 2}), bucket(100, {1, 0})}, leads, cost), 2.0);
}

TEST(ExposedSeconds, OneBucketWaitsForTheOther) {
  const CollectiveCost cost{.fixed = 1.0, .per_byte = 0.01};
  const std::vector<double> leads{0.0, 1.0, 3.0, 4.0};
  // The first takes from 3 seconds before the last gradient until 1 after it.
  EXPECT_DOUBLE_EQ(
      exposed_seconds(std::vector{bucket(300, {3, 2}), bucket(100, {1, 0})}, leads, cost), 3.0);
  // As they become complete, whatever their order.
  EXPECT_DOUBLE_EQ(
      exposed_seconds(std::vector{bucket(100, {1, 0}), bucket(300, {3, 2})}, leads, cost), 3.0);
}

TEST(ExposedSeconds, AreNoneWithoutBuckets) {
  EXPECT_EQ(exposed_seconds({}, {}, kSlowLink), 0.0);
}

TEST(ExposedSeconds, AreNoLessThanTheTimeThatBackwardLeavesAndNoMoreThanAllInOneBucket) {
  std::mt19937_64 engine(test::seed());
  std::uniform_int_distribution<std::size_t> bytes(64, 4 * kMiB);
  std::uniform_int_distribution<std::size_t> count(1, 40);
  std::exponential_distribution<double> pause(100);
  for (int i = 0; i < 300; ++i) {
    std::vector<GradientSize> gradients(count(engine));
    std::vector<double> leads(gradients.size(), 0.0);
    for (GradientSize& gradient : gradients) gradient.bytes = bytes(engine) / 64 * 64;
    for (std::size_t j = 1; j < leads.size(); ++j) leads[j] = leads[j - 1] + pause(engine);
    const auto one = assign_buckets(gradients, 1024 * kMiB);
    const double all = exposed_seconds(one, leads, kSlowLink);
    const auto several = assign_buckets(gradients, kMiB);
    double seconds = 0;
    for (const BucketLayout& layout : several) seconds += kSlowLink.seconds(layout.bytes);
    const double exposed = exposed_seconds(several, leads, kSlowLink);
    EXPECT_GE(exposed, seconds - leads.back() - 1e-12);
    EXPECT_LE(exposed, all + static_cast<double>(several.size()) * (kSlowLink.fixed + 1e-6));
  }
}

TEST(FormsThatPromise, OnASlowLinkAreSmallerThanTheUsualOne) {
  const Model model;
  const auto forms =
      forms_that_promise({25 * kMiB, false}, model.layouts_of(), {kSlowLink, model.leads(), 0.4});
  ASSERT_THAT(forms, testing::SizeIs(3));
  EXPECT_EQ(forms[0], (BucketForm{25 * kMiB, false}));
  EXPECT_LT(forms[1].bytes, 8 * kMiB);
  EXPECT_EQ(forms[2].bytes, 4 * forms[1].bytes);
  // Of all sizes none is clearly better.
  const double found = model.exposed(forms[1].bytes, kSlowLink);
  for (std::size_t size = 64 * kKiB; size <= 64 * kMiB; size *= 2) {
    EXPECT_LE(found, model.exposed(size, kSlowLink) + 0.01 * 0.4) << size;
  }
}

TEST(FormsThatPromise, WhereEachBucketIsDearAreLargerThanTheUsualOne) {
  const Model model;
  const CollectiveCost dear{.fixed = 0.05, .per_byte = 1e-10};
  const auto forms =
      forms_that_promise({kMiB, false}, model.layouts_of(), {dear, model.leads(), 0.4});
  ASSERT_GE(forms.size(), 2U);
  EXPECT_GE(forms[1].bytes, 8 * kMiB);
  for (const BucketForm& form : forms) EXPECT_GE(form.bytes, kMiB);
}

TEST(FormsThatPromise, AreAQuarterAndFourTimesTheUsualOneWhereNothingIsToBeGained) {
  const Model model;
  EXPECT_THAT(
      forms_that_promise({4 * kMiB, false}, model.layouts_of(), {kOneNode, model.leads(), 0.15}),
      ElementsAre(BucketForm{4 * kMiB, false}, BucketForm{kMiB, false},
                  BucketForm{16 * kMiB, false}));
}

TEST(FormsThatPromise, DifferInTheirBuckets) {
  const Model small{.count = 4, .bytes = 64 * kKiB};
  EXPECT_THAT(
      forms_that_promise({25 * kMiB, false}, small.layouts_of(), {kOneNode, small.leads(), 0.15}),
      ElementsAre(BucketForm{25 * kMiB, false}));
}

TEST(FormsThatPromise, AreNoneThatTheForecastHasSlower) {
  const Model model;
  const auto forms = [&](double step_seconds) {
    return forms_that_promise({2 * kMiB, false}, model.layouts_of(),
                              {kSlowLink, model.leads(), step_seconds});
  };
  const double later = model.exposed(8 * kMiB, kSlowLink) - model.exposed(2 * kMiB, kSlowLink);
  ASSERT_GT(later, 0.001);
  EXPECT_THAT(forms(later / 0.005), testing::Contains(BucketForm{8 * kMiB, false}));
  EXPECT_THAT(forms(later / 0.02), testing::Not(testing::Contains(BucketForm{8 * kMiB, false})));
}

TEST(FormsThatPromise, AreUncompressedToo) {
  const Model model;
  const auto forms =
      forms_that_promise({25 * kMiB, true}, model.layouts_of(), {kSlowLink, model.leads(), 0.3});
  ASSERT_GE(forms.size(), 3U);
  EXPECT_TRUE(forms[1].compressed);
  EXPECT_EQ(forms.back(), (BucketForm{forms[1].bytes, false}));
  EXPECT_LE(forms.size(), BucketTuner::most_forms);
}

TEST(FormsThatPromise, AreAsManyAsCanBeTried) {
  std::mt19937_64 engine(test::seed());
  std::uniform_real_distribution<double> magnitude(-12, -2);
  for (int i = 0; i < 300; ++i) {
    const Model model{.count = 1 + engine() % 60, .bytes = 64 * (1 + engine() % 20000)};
    const BucketForm usual{1 + engine() % (64 * kMiB), engine() % 2 == 0};
    const CollectiveCost cost{std::pow(10, magnitude(engine)), std::pow(10, magnitude(engine) - 2)};
    const auto forms = forms_that_promise(usual, model.layouts_of(), {cost, model.leads(), 0.1});
    EXPECT_EQ(forms.front(), usual);
    EXPECT_LE(forms.size(), BucketTuner::most_forms);
    for (std::size_t j = 1; j < forms.size(); ++j) {
      EXPECT_EQ(std::ranges::count(forms, forms[j]), 1);
    }
  }
}

}  // namespace
}  // namespace hora::internal
