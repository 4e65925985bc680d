#include "examples/vision/train/epoch_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <map>
#include <string>
#include <vector>

#include "examples/vision/train/training_progress.h"
#include "tests/examples/vision/temporary_folder.h"
#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace vision {
namespace {

using hora::internal::test::expect_error;
using hora::internal::test::generator;
using hora::internal::test::seed;
using testing::HasSubstr;
using Samples = std::vector<std::size_t>;

hora::DistributedSampler sampler_of(int rank, int size, std::size_t batch) {
  return hora::DistributedSampler(103,
                                  {.rank = rank, .size = size, .seed = seed(), .batch = batch});
}

/// What a loader with this batch gives in the steps.
Samples taken(const EpochSteps& steps, std::size_t begin, std::size_t end, std::size_t batch) {
  const Samples samples = steps.samples();
  const std::size_t first = (steps.first_of_samples() + begin - steps.first()) * batch;
  return Samples(samples.begin() + static_cast<std::ptrdiff_t>(first),
                 samples.begin() + static_cast<std::ptrdiff_t>(first + (end - begin) * batch));
}

TEST(EpochSteps, AWholeEpochIsTheSamplers) {
  hora::DistributedSampler sampler = sampler_of(1, 2, 4);
  const EpochSteps steps(sampler, {.epoch = 3});
  EXPECT_EQ(steps.epoch(), 3U);
  EXPECT_EQ(steps.first(), 0U);
  EXPECT_EQ(steps.end(), 12U);
  EXPECT_EQ(steps.samples(), sampler.local_order());
  EXPECT_EQ(steps.after(11).consumed, 96U);
}

TEST(EpochSteps, InterruptedAtAnyStepTheRestIsThatOfAWholeEpoch) {
  for (std::size_t done = 0; done < 12; ++done) {
    hora::DistributedSampler sampler = sampler_of(1, 2, 4);
    const EpochSteps whole(sampler, {.epoch = 3});
    const Samples rest = taken(whole, done + 1, 12, 4);
    const hora::SamplerPosition position = whole.after(done);
    hora::DistributedSampler other = sampler_of(1, 2, 4);
    const EpochSteps resumed(other, position);
    EXPECT_EQ(resumed.first(), done + 1);
    EXPECT_EQ(resumed.end(), 12U);
    EXPECT_EQ(taken(resumed, done + 1, 12, 4), rest);
    EXPECT_EQ(resumed.samples(), whole.samples()) << "for what takes the place of a bad image";
    EXPECT_EQ(resumed.after(11).consumed, 96U);
  }
}

TEST(EpochSteps, OnOtherRanksNoSampleIsTakenTwiceAndLessThanAStepIsLeftOut) {
  auto random = generator();
  for (int i = 0; i < 100; ++i) {
    std::map<std::size_t, int> times;
    hora::SamplerPosition position{.epoch = 1};
    std::size_t width = 0;
    for (int run = 0; run < 3; ++run) {
      const int size = 1 + static_cast<int>(random() % 5);
      const std::size_t batch = 1 + random() % 7;
      width = batch * static_cast<std::size_t>(size);
      hora::SamplerPosition reached = position;
      std::size_t stop = 0;
      for (int rank = 0; rank < size; ++rank) {
        hora::DistributedSampler sampler = sampler_of(rank, size, batch);
        const EpochSteps steps(sampler, position);
        EXPECT_LE(steps.end(), 103 / width);
        EXPECT_GE(steps.end() + 1, 103 / width);
        if (rank == 0) stop = steps.first() + random() % (steps.end() - steps.first() + 1);
        if (run == 2) stop = steps.end();
        if (stop == steps.first()) continue;
        for (const std::size_t sample : taken(steps, steps.first(), stop, batch)) ++times[sample];
        reached = steps.after(stop - 1);
      }
      position = reached;
      EXPECT_EQ(times.size(), position.consumed);
    }
    for (const auto& [sample, count] : times) EXPECT_EQ(count, 1) << sample;
    EXPECT_LT(103 - times.size(), width);
  }
}

TEST(EpochSteps, APositionInOtherDataIsRefusedInTheMiddleOfAnEpochAlone) {
  hora::DistributedSampler sampler = sampler_of(0, 1, 4);
  hora::SamplerPosition position = sampler.position(2);
  ++position.seed;
  expect_error(hora::ErrorCode::invalid_argument, HasSubstr("shuffled by seed"),
               [&] { EpochSteps(sampler, position); });
  position.consumed = 0;
  EXPECT_EQ(EpochSteps(sampler, position).first(), 0U);
}

TEST(TrainingProgress, IsTheSameAfterText) {
  const TrainingProgress progress{.position = {.epoch = 7,
                                               .consumed = 1,
                                               .samples = 2,
                                               .seed = ~std::uint64_t{0},
                                               .shuffle = false},
                                  .steps = 3,
                                  .loss = 0.1,
                                  .images = 1.0 / 3,
                                  .best_accuracy = 12.3,
                                  .seconds = 1e-9};
  EXPECT_EQ(progress_from(to_text(progress)), progress);
}

TEST(TrainingProgress, OfAnotherFormIsRefused) {
  using test::message_of;
  EXPECT_THAT(message_of([] { progress_from("{\"epoch\": 1}"); }), HasSubstr("consumed"));
  EXPECT_THAT(message_of([] { progress_from("nothing"); }), HasSubstr("progress"));
}

TEST(TrainingProgress, IsDescribedAsPeopleCount) {
  EXPECT_EQ(describe(TrainingProgress()), "before epoch 1");
  EXPECT_EQ(describe({.position = {.epoch = 2}}), "after epoch 2");
  EXPECT_EQ(describe({.position = {.epoch = 2, .consumed = 96, .samples = 128}}),
            "in epoch 3, after 96 of 128 images");
}

}  // namespace
}  // namespace vision
