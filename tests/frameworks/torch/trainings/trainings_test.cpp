// Random trainings against plain LibTorch on one process. TEST_TRAININGS says how many (40 without
// it); TEST_TRAINING=<seed> runs that one alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "tests/frameworks/torch/trainings/runner.h"
#include "tests/support/random_draws.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

class Trainings : public testing::Test {
 protected:
  ~Trainings() override { barrier(world_); }

  void say(const Training& training) const {
    if (world_.rank() != 0) return;  // before it runs, for one that never ends
    std::printf("TEST_TRAINING=%llu: %s\n", static_cast<unsigned long long>(training.seed),
                training.describe().c_str());
    std::fflush(stdout);
  }

  const Context world_ = init();
  const ParitySet parity_{world_};
};

TEST_F(Trainings, AreWhatOneProcessMakesOfThem) {
  const auto only = number_in("TEST_TRAINING");
  const std::uint64_t count = only ? 1 : number_in("TEST_TRAININGS").value_or(40);
  auto seeds = generator();
  for (std::uint64_t i = 0; i < count; ++i) {
    const Training training = draw_training(only.value_or(seeds()), world_.size());
    say(training);
    EXPECT_EQ(run_training(world_, parity_, training), "")
        << "Repeat with TEST_TRAINING=" << training.seed << ": " << training.describe();
  }
}

// Whatever else a training has, it is refused where the second of the two is asked for, on every
// rank, and nothing is left behind.
TEST_F(Trainings, OfTwoThingsThatDoNotGoTogetherAreRefused) {
  auto seeds = generator();
  for (const Exclusion& pair : exclusions()) {
    for (int i = 0; i < 3; ++i) {
      const Training training = draw_training(seeds(), world_.size(), {pair.one, pair.other});
      say(training);
      EXPECT_THAT(refusal_of(world_, parity_, training), testing::HasSubstr(pair.text))
          << training.describe();
    }
  }
}

}  // namespace
}  // namespace hora::internal::test
