#include <gmock/gmock.h>
#include <hora/torch/distributed_sampler.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

using Samples = std::vector<std::size_t>;

std::vector<DistributedSampler> on_all_ranks(std::size_t samples,
                                             DistributedSamplerOptions options) {
  std::vector<DistributedSampler> ranks;
  for (options.rank = 0; options.rank < options.size; ++options.rank) {
    ranks.emplace_back(samples, options);
  }
  return ranks;
}

/// Samples of all ranks in one step.
Samples step_of(const std::vector<DistributedSampler>& ranks, std::size_t step) {
  Samples all;
  for (const DistributedSampler& sampler : ranks) {
    const Samples own = sampler.batch(step);
    all.insert(all.end(), own.begin(), own.end());
  }
  EXPECT_THAT(all, SizeIs(ranks.front().global_batch(step)));
  return all;
}

/// Samples of all ranks in steps begin .. end-1.
Samples steps_of(const std::vector<DistributedSampler>& ranks, std::size_t begin, std::size_t end) {
  Samples all;
  for (std::size_t step = begin; step < end; ++step) {
    const Samples together = step_of(ranks, step);
    all.insert(all.end(), together.begin(), together.end());
  }
  return all;
}

/// The batches of one rank, one after the other.
Samples steps_of_rank(const DistributedSampler& sampler) {
  Samples all;
  for (std::size_t step = 0; step < sampler.steps(); ++step) {
    const Samples own = sampler.batch(step);
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

Samples sorted(Samples values) {
  std::sort(values.begin(), values.end());
  return values;
}

Samples counting(std::size_t count) {
  Samples values(count);
  std::iota(values.begin(), values.end(), std::size_t{0});
  return values;
}

/// The order of the epoch, by a single rank that takes one sample a step.
Samples order_of(std::size_t samples, const DistributedSamplerOptions& options,
                 std::uint64_t epoch) {
  DistributedSampler alone(
      samples, {.seed = options.seed, .shuffle = options.shuffle, .remainder = Remainder::keep});
  alone.set_epoch(epoch);
  return steps_of({alone}, 0, alone.steps());
}

struct Drawn {
  std::size_t samples;
  DistributedSamplerOptions options;
  std::uint64_t epoch;
};

Drawn draw(std::mt19937_64& random, Remainder remainder) {
  const auto below = [&](std::uint64_t bound) {
    return static_cast<std::size_t>(random() % bound);
  };
  Drawn drawn{.samples = 0, .options = {.remainder = remainder}, .epoch = below(3)};
  drawn.options.size = 1 + static_cast<int>(below(9));
  drawn.options.seed = random();
  drawn.options.shuffle = below(4) != 0;
  drawn.options.batch = 1 + below(20);
  const std::size_t least = remainder == Remainder::drop
                                ? drawn.options.batch * static_cast<std::size_t>(drawn.options.size)
                                : 0;
  drawn.samples = least + below(400);
  return drawn;
}

std::string text_of(const Drawn& drawn) {
  std::ostringstream text;
  text << drawn.samples << " samples, " << drawn.options.size << " ranks, batch "
       << drawn.options.batch << ", epoch " << drawn.epoch << ", seed " << drawn.options.seed
       << (drawn.options.shuffle ? "" : ", not shuffled");
  return text.str();
}

/// Calls `check(drawn, ranks, what all ranks take in the whole epoch)` for 150 draws.
template <class Check>
void for_draws(Remainder remainder, Check check) {
  std::mt19937_64 random = generator();
  for (int i = 0; i < 150 && !testing::Test::HasFailure(); ++i) {
    const Drawn drawn = draw(random, remainder);
    SCOPED_TRACE(text_of(drawn));
    std::vector<DistributedSampler> ranks = on_all_ranks(drawn.samples, drawn.options);
    for (DistributedSampler& sampler : ranks) sampler.set_epoch(drawn.epoch);
    for (const DistributedSampler& sampler : ranks) {
      ASSERT_EQ(sampler.steps(), ranks.front().steps());
      EXPECT_THAT(steps_of({sampler}, 0, 0), SizeIs(0));
      EXPECT_THAT(sampler.local_order(), SizeIs(sampler.local_samples()));
      EXPECT_EQ(sampler.local_order(), steps_of_rank(sampler));
    }
    check(drawn, ranks, steps_of(ranks, 0, ranks.front().steps()));
  }
}

TEST(DistributedSampler, KeptEverySampleCountsExactlyOnce) {
  for_draws(Remainder::keep, [](const Drawn& drawn, const auto& ranks, const Samples& all) {
    EXPECT_EQ(sorted(all), counting(drawn.samples));
    for (const DistributedSampler& sampler : ranks) {
      EXPECT_LE(sampler.local_samples(), ranks.front().local_samples());
      EXPECT_GE(sampler.local_samples() + 1, ranks.front().local_samples());
    }
  });
}

TEST(DistributedSampler, DroppedEveryBatchIsWholeAndLessThanAStepIsLeftOut) {
  for_draws(Remainder::drop, [](const Drawn& drawn, const auto& ranks, const Samples& all) {
    const std::size_t width = drawn.options.batch * static_cast<std::size_t>(drawn.options.size);
    EXPECT_EQ(all.size(), drawn.samples / width * width);
    const Samples order = order_of(drawn.samples, drawn.options, drawn.epoch);
    EXPECT_EQ(sorted(all), sorted(Samples(order.begin(), order.begin() + all.size())));
    for (const DistributedSampler& sampler : ranks) {
      for (std::size_t step = 0; step < sampler.steps(); ++step) {
        EXPECT_THAT(sampler.batch(step), SizeIs(drawn.options.batch));
      }
    }
  });
}

TEST(DistributedSampler, PaddedRanksAreEqualAndTheOrdersBeginningCountsAgain) {
  for_draws(Remainder::pad, [](const Drawn& drawn, const auto& ranks, const Samples& all) {
    const auto size = static_cast<std::size_t>(drawn.options.size);
    ASSERT_EQ(all.size(), (drawn.samples + size - 1) / size * size);
    Samples expected = counting(drawn.samples);
    const Samples order = order_of(drawn.samples, drawn.options, drawn.epoch);
    for (std::size_t i = drawn.samples; i < all.size(); ++i) {
      expected.push_back(order[i % drawn.samples]);
    }
    EXPECT_EQ(sorted(all), sorted(expected));
    for (const DistributedSampler& sampler : ranks) {
      EXPECT_EQ(sampler.local_samples(), all.size() / size);
    }
  });
}

// Printed by order_reference.py, which knows the header's comment and the C++ standard only.
TEST(DistributedSampler, TheOrderIsTheDocumentedOne) {
  const auto order = [](std::size_t samples, std::uint64_t seed, std::uint64_t epoch) {
    return order_of(samples, {.seed = seed}, epoch);
  };
  EXPECT_THAT(order(12, 1, 0), ElementsAre(11, 0, 9, 1, 2, 3, 6, 10, 8, 5, 7, 4));
  EXPECT_THAT(order(12, (std::uint64_t{1} << 40U) + 7, (std::uint64_t{1} << 33U) + 3),
              ElementsAre(5, 3, 10, 0, 11, 2, 8, 4, 9, 1, 6, 7));
  DistributedSampler imagenet(1281167, {.seed = 42, .batch = 8});
  imagenet.set_epoch(89);
  EXPECT_THAT(imagenet.batch(0),
              ElementsAre(603089, 746530, 1100438, 474134, 954376, 9289, 53828, 1214171));
}

TEST(DistributedSampler, WithoutShufflingEveryEpochCounts) {
  EXPECT_EQ(order_of(20, {.shuffle = false}, 0), counting(20));
  EXPECT_EQ(order_of(20, {.shuffle = false}, 7), counting(20));
}

TEST(DistributedSampler, TheOrderDependsOnSeedAndEpochAndNothingElse) {
  const std::uint64_t drawn = seed();
  const Samples order = order_of(300, {.seed = drawn}, 5);
  EXPECT_NE(order, order_of(300, {.seed = drawn}, 6));
  EXPECT_NE(order, order_of(300, {.seed = drawn + 1}, 5));
  DistributedSampler again(300, {.seed = drawn, .remainder = Remainder::keep});
  for (const std::uint64_t epoch : {9U, 2U, 5U}) again.set_epoch(epoch);
  EXPECT_EQ(steps_of({again}, 0, again.steps()), order);
}

TEST(DistributedSampler, AStepHasTheSameSamplesHoweverManyRanksShareThem) {
  for (const Remainder remainder : {Remainder::drop, Remainder::keep}) {
    const auto alone = on_all_ranks(1000, {.seed = seed(), .batch = 24, .remainder = remainder});
    for (const int size : {2, 3, 4, 6, 8, 24}) {
      const auto ranks = on_all_ranks(1000, {.size = size,
                                             .seed = seed(),
                                             .batch = 24 / static_cast<std::size_t>(size),
                                             .remainder = remainder});
      ASSERT_EQ(ranks.front().steps(), alone.front().steps());
      for (std::size_t step = 0; step < alone.front().steps(); ++step) {
        EXPECT_EQ(sorted(step_of(ranks, step)), sorted(step_of(alone, step)))
            << size << ' ' << step;
      }
    }
  }
}

// Twice interrupted, each time on a drawn number of ranks with a drawn batch.
TEST(DistributedSampler, InterruptedAndResumedOnOtherRanksEverySampleCountsExactlyOnce) {
  std::mt19937_64 random = generator();
  for (int i = 0; i < 150 && !testing::Test::HasFailure(); ++i) {
    Drawn drawn = draw(random, Remainder::keep);
    SCOPED_TRACE(text_of(drawn));
    auto ranks = on_all_ranks(drawn.samples, drawn.options);
    for (DistributedSampler& sampler : ranks) sampler.set_epoch(drawn.epoch);
    Samples taken;
    for (int interruptions = 0; interruptions < 2; ++interruptions) {
      const std::size_t done = random() % (ranks.front().steps() + 1);
      const Samples before = steps_of(ranks, 0, done);
      taken.insert(taken.end(), before.begin(), before.end());
      const SamplerPosition position = ranks.back().position(done);
      EXPECT_EQ(position, ranks.front().position(done));
      EXPECT_EQ(position.consumed, taken.size());
      const Samples order = order_of(drawn.samples, drawn.options, drawn.epoch);
      EXPECT_EQ(sorted(taken), sorted(Samples(order.begin(), order.begin() + taken.size())));
      drawn.options.size = 1 + static_cast<int>(random() % 9);
      drawn.options.batch = 1 + random() % 20;
      ranks = on_all_ranks(drawn.samples, drawn.options);
      for (DistributedSampler& sampler : ranks) sampler.restore(position);
      EXPECT_EQ(ranks.front().position(0), position);
    }
    const Samples rest = steps_of(ranks, 0, ranks.front().steps());
    taken.insert(taken.end(), rest.begin(), rest.end());
    EXPECT_EQ(sorted(taken), counting(drawn.samples));
  }
}

TEST(DistributedSampler, ResumedWithTheSameWidthTheStepsAreThoseOfAnUninterruptedEpoch) {
  const auto whole = on_all_ranks(1003, {.size = 4, .seed = seed(), .batch = 6});
  for (const int size : {1, 2, 3, 4, 8}) {
    auto ranks = on_all_ranks(
        1003, {.size = size, .seed = seed(), .batch = 24 / static_cast<std::size_t>(size)});
    for (DistributedSampler& sampler : ranks) sampler.restore(whole.front().position(17));
    ASSERT_EQ(ranks.front().steps(), whole.front().steps() - 17);
    for (std::size_t step = 0; step < ranks.front().steps(); ++step) {
      EXPECT_EQ(sorted(step_of(ranks, step)), sorted(step_of(whole, step + 17)));
    }
    EXPECT_EQ(ranks.back().local_order(), steps_of_rank(ranks.back()));
    for (DistributedSampler& sampler : ranks) sampler.set_epoch(0);
    EXPECT_EQ(ranks.front().steps(), whole.front().steps()) << "set_epoch() begins anew";
  }
}

TEST(DistributedSampler, APositionAtTheEndLeavesNoStep) {
  for (const Remainder remainder : {Remainder::drop, Remainder::pad, Remainder::keep}) {
    DistributedSampler sampler(103, {.rank = 2, .size = 4, .batch = 5, .remainder = remainder});
    sampler.restore(sampler.position(sampler.steps()));
    if (remainder == Remainder::drop) {
      EXPECT_EQ(sampler.position(0).consumed, 100U);
    } else {
      EXPECT_EQ(sampler.position(0).consumed, 103U);
    }
    EXPECT_EQ(sampler.steps(), 0U);
    EXPECT_EQ(sampler.local_samples(), 0U);
  }
}

TEST(DistributedSampler, FractionalEpochsFollowWhatIsConsumed) {
  DistributedSampler sampler(100, {.size = 2, .batch = 10});
  sampler.set_epoch(7);
  EXPECT_DOUBLE_EQ(sampler.fractional_epoch(0), 7.0);
  EXPECT_DOUBLE_EQ(sampler.fractional_epoch(2), 7.4);
  EXPECT_DOUBLE_EQ(sampler.fractional_epoch(5), 8.0);
  sampler.restore(sampler.position(2));
  EXPECT_DOUBLE_EQ(sampler.fractional_epoch(1), 7.6);
}

TEST(DistributedSampler, ASetWithoutSamplesHasNoSteps) {
  for (const Remainder remainder : {Remainder::pad, Remainder::keep}) {
    const DistributedSampler empty(0, {.size = 2, .batch = 3, .remainder = remainder});
    EXPECT_EQ(empty.steps(), 0U);
    EXPECT_EQ(empty.local_samples(), 0U);
  }
}

TEST(DistributedSampler, RefusesWhatHasNoMeaning) {
  const auto expect_refused = [](const std::string& text, const std::function<void()>& misuse) {
    expect_error(ErrorCode::invalid_argument, HasSubstr(text), misuse);
  };
  expect_refused("rank 2 of 2", [] { DistributedSampler(10, {.rank = 2, .size = 2}); });
  expect_refused("rank -1 of 2", [] { DistributedSampler(10, {.rank = -1, .size = 2}); });
  expect_refused("rank 0 of 0", [] { DistributedSampler(10, {.size = 0}); });
  expect_refused("remainder is 9; expected drop, pad or keep",
                 [] { DistributedSampler(10, {.remainder = static_cast<Remainder>(9)}); });
  expect_refused("a batch of 0", [] { DistributedSampler(10, {.batch = 0}); });
  expect_refused("4294967296 samples",
                 [] { DistributedSampler(std::size_t{1} << 32U, {.shuffle = false}); });
  expect_refused("7 samples are too few for a batch of 4 on each of 2 ranks",
                 [] { DistributedSampler(7, {.size = 2, .batch = 4}); });

  const DistributedSampler sampler(20, {.seed = 3, .batch = 4});
  expect_refused("step 5 of an epoch that has 5 steps", [&] { sampler.batch(5); });
  expect_refused("step 6", [&] { sampler.position(6); });
  const SamplerPosition position = sampler.position(2);
  expect_refused("20 samples does not fit this one of 21",
                 [&] { DistributedSampler(21, {.seed = 3}).restore(position); });
  expect_refused("shuffled by seed 3, but this sampler's is shuffled by seed 4",
                 [&] { DistributedSampler(20, {.seed = 4}).restore(position); });
  expect_refused("is not shuffled",
                 [&] { DistributedSampler(20, {.seed = 3, .shuffle = false}).restore(position); });
  SamplerPosition behind = position;
  behind.consumed = 21;
  expect_refused("21 of 20 samples", [&] { DistributedSampler(20, {.seed = 3}).restore(behind); });
}

}  // namespace
}  // namespace hora::internal::test
