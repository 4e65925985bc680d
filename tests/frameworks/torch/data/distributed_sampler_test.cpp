#include <gmock/gmock.h>
#include <hora/torch/distributed_sampler.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

using Samples = std::vector<std::size_t>;

std::vector<DistributedSampler> on_all_ranks(std::size_t samples, DistributedSamplerOptions options,
                                             std::uint64_t epoch = 0) {
  std::vector<DistributedSampler> ranks;
  for (options.rank = 0; options.rank < options.size; ++options.rank) {
    ranks.emplace_back(samples, options).set_epoch(epoch);
  }
  return ranks;
}

/// Samples of all ranks in steps begin .. end-1.
Samples steps_of(const std::vector<DistributedSampler>& ranks, std::size_t begin, std::size_t end) {
  Samples all;
  for (std::size_t step = begin; step < end; ++step) {
    const std::size_t before = all.size();
    for (const DistributedSampler& sampler : ranks) {
      const Samples own = sampler.batch(step);
      all.insert(all.end(), own.begin(), own.end());
    }
    EXPECT_EQ(all.size() - before, ranks.front().global_batch(step));
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
  const std::size_t width = drawn.options.batch * static_cast<std::size_t>(drawn.options.size);
  drawn.samples = (remainder == Remainder::drop ? width : 0) + below(400);
  return drawn;
}

// Kept, each sample counts once; dropped, batches are whole; padded, ranks are equal and the
// order's beginning counts again.
TEST(DistributedSampler, TheLastSamplesAreUsedAsTheRemainderSays) {
  std::mt19937_64 random = generator();
  for (int i = 0; i < 450 && !testing::Test::HasFailure(); ++i) {
    const auto remainder = static_cast<Remainder>(i % 3);
    const Drawn drawn = draw(random, remainder);
    SCOPED_TRACE(i);
    auto ranks = on_all_ranks(drawn.samples, drawn.options, drawn.epoch);
    const std::size_t steps = ranks.front().steps();
    const Samples all = steps_of(ranks, 0, steps);
    const auto size = static_cast<std::size_t>(drawn.options.size);
    const std::size_t width = drawn.options.batch * size;
    const std::size_t taken = remainder == Remainder::drop ? drawn.samples / width * width
                              : remainder == Remainder::pad
                                  ? (drawn.samples + size - 1) / size * size
                                  : drawn.samples;
    const Samples order = order_of(drawn.samples, drawn.options, drawn.epoch);
    Samples expected;
    for (std::size_t k = 0; k < taken; ++k) expected.push_back(order[k % drawn.samples]);
    EXPECT_EQ(sorted(all), sorted(expected));
    for (const DistributedSampler& sampler : ranks) {
      ASSERT_EQ(sampler.steps(), steps);
      Samples own;
      for (std::size_t step = 0; step < steps; ++step) {
        const Samples batch = sampler.batch(step);
        if (remainder == Remainder::drop) {
          EXPECT_THAT(batch, SizeIs(drawn.options.batch));
        }
        own.insert(own.end(), batch.begin(), batch.end());
      }
      EXPECT_EQ(sampler.local_order(), own);
      EXPECT_EQ(sampler.local_samples(), own.size());
      EXPECT_LE(own.size(), ranks.front().local_samples());
      EXPECT_GE(own.size() + (remainder == Remainder::keep ? 1 : 0), ranks.front().local_samples());
    }
  }
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
  EXPECT_EQ(order_of(20, {.shuffle = false}, 7), counting(20));
  EXPECT_EQ(DistributedSampler(0, {.size = 2, .remainder = Remainder::pad}).steps(), 0U);
}

// Twice interrupted, each time on a drawn number of ranks with a drawn batch.
TEST(DistributedSampler, InterruptedAndResumedOnOtherRanksEverySampleCountsExactlyOnce) {
  std::mt19937_64 random = generator();
  for (int i = 0; i < 150 && !testing::Test::HasFailure(); ++i) {
    Drawn drawn = draw(random, Remainder::keep);
    SCOPED_TRACE(i);
    auto ranks = on_all_ranks(drawn.samples, drawn.options, drawn.epoch);
    const Samples order = order_of(drawn.samples, drawn.options, drawn.epoch);
    Samples taken;
    for (int interruptions = 0; interruptions < 2; ++interruptions) {
      const std::size_t done = random() % (ranks.front().steps() + 1);
      const Samples before = steps_of(ranks, 0, done);
      taken.insert(taken.end(), before.begin(), before.end());
      const SamplerPosition position = ranks.back().position(done);
      EXPECT_EQ(position, ranks.front().position(done));
      EXPECT_EQ(position.consumed, taken.size());
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
  const std::size_t steps = whole.front().steps();
  for (const int size : {1, 2, 3, 4, 8}) {
    auto ranks = on_all_ranks(
        1003, {.size = size, .seed = seed(), .batch = 24 / static_cast<std::size_t>(size)});
    for (DistributedSampler& sampler : ranks) sampler.restore(whole.front().position(17));
    ASSERT_EQ(ranks.front().steps(), steps - 17);
    for (std::size_t step = 17; step < steps; ++step) {
      EXPECT_EQ(sorted(steps_of(ranks, step - 17, step - 16)),
                sorted(steps_of(whole, step, step + 1)));
    }
    for (DistributedSampler& sampler : ranks) {
      sampler.restore(sampler.position(steps - 17));
      EXPECT_EQ(sampler.steps() + sampler.local_samples(), 0U);
      sampler.set_epoch(0);
      EXPECT_EQ(sampler.steps(), steps) << "set_epoch() begins anew";
    }
  }
}

TEST(DistributedSampler, FractionalEpochsFollowWhatIsConsumed) {
  DistributedSampler sampler(100, {.size = 2, .batch = 10});
  sampler.set_epoch(7);
  EXPECT_DOUBLE_EQ(sampler.fractional_epoch(2), 7.4);
  EXPECT_DOUBLE_EQ(sampler.fractional_epoch(5), 8.0);
  sampler.restore(sampler.position(2));
  EXPECT_DOUBLE_EQ(sampler.fractional_epoch(1), 7.6);
}

TEST(DistributedSampler, RefusesWhatHasNoMeaning) {
  const DistributedSampler sampler(20, {.seed = 3, .batch = 4});
  const SamplerPosition position = sampler.position(2);
  SamplerPosition behind = position;
  behind.consumed = 21;
  const auto restore = [](std::size_t samples, std::uint64_t drawn, bool shuffle,
                          const SamplerPosition& from) {
    DistributedSampler(samples, {.seed = drawn, .shuffle = shuffle}).restore(from);
  };
  DistributedSampler lent(22, {.batch = 5});
  DataLoaderSampler adaptor(lent);
  const std::function<void()> cases[] = {
      [] { DistributedSampler(10, {.rank = 2, .size = 2}); },
      [] { DistributedSampler(10, {.rank = -1, .size = 2}); },
      [] { DistributedSampler(10, {.size = 0}); },
      [] { DistributedSampler(10, {.remainder = static_cast<Remainder>(9)}); },
      [] { DistributedSampler(10, {.batch = 0}); },
      [] { DistributedSampler(std::size_t{1} << 32U, {.shuffle = false}); },
      [] { DistributedSampler(7, {.size = 2, .batch = 4}); },
      [&] { sampler.batch(5); },
      [&] { sampler.position(6); },
      [&] { restore(21, 3, true, position); },
      [&] { restore(20, 4, true, position); },
      [&] { restore(20, 3, false, position); },
      [&] { restore(20, 3, true, behind); },
      [&] { adaptor.next(6); },
      [&] { adaptor.reset(23); },
  };
  std::string texts;
  for (const auto& misuse : cases) {
    texts += expect_error(ErrorCode::invalid_argument, misuse).what() + std::string("\n");
  }
  expect_golden("frameworks/torch/data/texts.txt", "refused", texts);
}

/// Sample i is the number i.
struct Numbers : torch::data::datasets::BatchDataset<Numbers, std::vector<std::size_t>> {
  explicit Numbers(std::size_t samples) : count(samples) {}
  std::vector<std::size_t> get_batch(torch::ArrayRef<std::size_t> request) override {
    return request.vec();
  }
  torch::optional<std::size_t> size() const override { return count; }
  std::size_t count;
};

/// Samples of a pass over a loader.
template <class Loader>
std::vector<std::vector<std::size_t>> pass(Loader& loader) {
  std::vector<std::vector<std::size_t>> batches;
  for (auto& batch : loader) batches.push_back(batch);
  return batches;
}

std::vector<std::vector<std::size_t>> batches_of(const DistributedSampler& sampler) {
  std::vector<std::vector<std::size_t>> batches;
  for (std::size_t step = 0; step < sampler.steps(); ++step) {
    if (!sampler.batch(step).empty()) batches.push_back(sampler.batch(step));
  }
  return batches;
}

// The last of 16 samples in steps of 15 is for rank 0 alone: the others end before it.
TEST(DataLoaderSampler, ALoadersPassIsTheSamplersEpoch) {
  const auto check = [](std::size_t samples, int rank, Remainder remainder, std::size_t batches) {
    DistributedSampler sampler(
        samples, {.rank = rank, .size = 3, .seed = seed(), .batch = 5, .remainder = remainder});
    auto loader = torch::data::make_data_loader(
        Numbers(samples), DataLoaderSampler(sampler),
        torch::data::DataLoaderOptions(5).workers(2).enforce_ordering(true));
    for (const std::uint64_t epoch : {0U, 1U, 4U}) {
      sampler.set_epoch(epoch);
      const auto passed = pass(*loader);
      EXPECT_THAT(passed, SizeIs(batches));
      EXPECT_EQ(passed, batches_of(sampler)) << epoch;
    }
    sampler.restore(sampler.position(1));
    EXPECT_EQ(pass(*loader), batches_of(sampler)) << "resumed";
  };
  check(22, 2, Remainder::drop, 1);
  check(22, 2, Remainder::keep, 2);
  check(16, 0, Remainder::keep, 2);
  check(16, 1, Remainder::keep, 1);
}

TEST(DataLoaderSampler, SavedAndLoadedItGoesOnBehindWhatItGave) {
  DistributedSampler sampler(100, {.size = 2, .seed = ~std::uint64_t{0}, .batch = 5});
  sampler.set_epoch(3);
  DataLoaderSampler first(sampler);
  for (int i = 0; i < 4; ++i) first.next(5);
  torch::serialize::OutputArchive saved;
  first.save(saved);
  std::stringstream bytes;
  saved.save_to(bytes);

  DistributedSampler again(100, {.size = 4, .seed = ~std::uint64_t{0}, .batch = 5});
  DataLoaderSampler second(again);
  torch::serialize::InputArchive archive;
  archive.load_from(bytes);
  second.load(archive);
  EXPECT_EQ(again.position(0), sampler.position(4));
  EXPECT_EQ(second.next(5).value(), again.batch(0));
}

}  // namespace
}  // namespace hora::internal::test
