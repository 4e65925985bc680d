#include "core/negotiation/arrivals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/support/golden.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

TEST(PhaseOf, IsThatOfHorasOwnCollectives) {
  const std::pair<PhaseIndex, std::vector<std::string>> cases[] = {
      {kForwardPhase,
       {"hora.gradients.0.0", "hora.gradients.12.0.presence", "hora.gradients.0.layout1.0",
        "hora.sync_batch_norm.3"}},
      {kBackwardPhase,
       {"hora.gradients.0.1", "hora.gradients.0.10", "hora.gradients.0.layout12.3",
        "hora.sync_batch_norm.3.backward"}},
      {kOptimizerPhase,
       {"hora.gradients.0.layout1", "hora.gradients.0.layout1.order", "hora.gradients.0.norm",
        "hora.gradients.0", "hora.gradients."}},
      {kTrainingPhase, {"", "hora", "gradients.0.0", "hora.broadcast.x"}}};
  for (const auto& [phase, names] : cases) {
    for (const std::string& name : names) EXPECT_EQ(phase_of(name), phase) << name;
  }
}

using namespace std::chrono_literals;
using std::chrono::nanoseconds;

TEST(LaterOf, OfRandomArrivalsInRandomGroupsIsThatOfAll) {
  std::mt19937_64 random = test::generator();
  for (int round = 0; round < 500; ++round) {
    std::vector<nanoseconds> times(2 + random() % 8);
    LastArrival merged;
    for (std::size_t r = 0; r < times.size(); ++r) {
      times[r] = nanoseconds(1000 * (1 + random() % 1000) + r);
      merged = later_of(merged, {static_cast<int>(r), times[r], LastArrival::kAlone});
    }
    const auto last = std::max_element(times.begin(), times.end());
    EXPECT_EQ(merged.rank, last - times.begin());
    const nanoseconds at = *last;
    times.erase(last);
    EXPECT_EQ(merged.late, at - *std::max_element(times.begin(), times.end()));
  }
}

TEST(LatenessHistogram, GivesQuantilesWithinATenth) {
  LatenessHistogram histogram;
  EXPECT_EQ(histogram.quantile(0.5), 0ns);
  for (int i = 1; i <= 1000; ++i) histogram.add(i * 10us);
  EXPECT_NEAR(static_cast<double>(histogram.quantile(0.5).count()), 5e6, 5e5);
  EXPECT_NEAR(static_cast<double>(histogram.quantile(0.99).count()), 9.9e6, 1e6);
  for (const auto extreme : {nanoseconds(-5), 0ns, 3ns, nanoseconds::max()}) histogram.add(extreme);
  EXPECT_EQ(histogram.count(), 1004u);
  EXPECT_GT(histogram.quantile(1), 1h);
}

/// A training of `ranks` whose steps have `tensors` collectives each; `slow` begins `delay` late.
struct Training {
  int ranks = 4;
  int tensors = 12;
  nanoseconds step = 1s;
  int slow = -1;
  nanoseconds delay{};
  nanoseconds noise = 2ms;
  int slow_from = 0;  ///< the first tensor for which it is late

  /// The first slow rank in this much time.
  std::optional<SlowRank> run(nanoseconds length, std::mt19937_64& random) const {
    std::vector<int> all(static_cast<std::size_t>(ranks));
    std::iota(all.begin(), all.end(), 0);
    ArrivalLedger ledger(all, 64);
    for (int t = 0; t < tensors; ++t) {
      ledger.assign(static_cast<std::size_t>(t), "hora.gradients.0." + std::to_string(t));
    }
    nanoseconds begin = 5s;
    for (const nanoseconds end = begin + length; begin < end;) {
      // A rank that is late in a step is late by as much in all that follows in it.
      std::vector<nanoseconds> behind;
      for (int r = 0; r < ranks; ++r) {
        behind.push_back(nanoseconds(random() % static_cast<std::uint64_t>(noise.count())));
      }
      nanoseconds last_at{};
      for (int t = 0; t < tensors; ++t) {
        LastArrival last;
        for (int r = 0; r < ranks; ++r) {
          const nanoseconds at =
              begin + step * (t + 1) / (tensors + 1) + behind[static_cast<std::size_t>(r)] +
              (r == slow && t >= slow_from ? delay : 0ns) + nanoseconds(random() % 100000);
          last = later_of(last, {r, at, LastArrival::kAlone});
        }
        last_at = std::max(last_at, last.at);
        if (auto found = ledger.add(static_cast<std::size_t>(t), last)) return found;
      }
      begin = last_at + step / (tensors + 1);
    }
    return std::nullopt;
  }
};

TEST(ArrivalLedger, NamesARankWith200MillisecondsOfItsOwn100TimesOf100AndThePhase) {
  std::mt19937_64 random = test::generator();
  for (int run = 0; run < 100; ++run) {
    Training training{.ranks = 2 + static_cast<int>(random() % 15),
                      .tensors = run % 10 == 0 ? 12 : 1 + static_cast<int>(random() % 40),
                      .delay = 200ms,
                      .slow_from = run % 10 == 0 ? 1 : 0};
    training.slow = static_cast<int>(random() % static_cast<std::uint64_t>(training.ranks));
    const auto slow = training.run(120s, random);
    ASSERT_TRUE(slow) << "run " << run;
    EXPECT_EQ(slow->rank, training.slow);
    EXPECT_GT(slow->share, 0.9);
    EXPECT_NEAR(slow->held_up, 0.167, 0.02);
    EXPECT_NEAR(static_cast<double>(slow->per_step.count()), 2e8, 1e7);
    EXPECT_EQ(slow->phase, run % 10 == 0 ? kBackwardPhase : kForwardPhase);
    EXPECT_GT(slow->phase_share, 0.9);
  }
}

TEST(ArrivalLedger, IsSilentIn100EvenRuns) {
  std::mt19937_64 random = test::generator();
  for (int run = 0; run < 100; ++run) {
    const Training training{.ranks = 2 + static_cast<int>(random() % 7),
                            .tensors = 1 + static_cast<int>(random() % 40),
                            .step = run % 2 == 0 ? 50ms : 1s,
                            .noise = run % 2 == 0 ? nanoseconds(10ms) : nanoseconds(200ms)};
    EXPECT_FALSE(training.run(600s, random)) << "run " << run;
  }
  const Training by_little{.tensors = 1, .slow = 2, .delay = 20ms};
  EXPECT_FALSE(by_little.run(600s, random)) << "a fiftieth of a step";
}

TEST(ArrivalLedger, CountsLatenessThatOverlapsOnce) {
  ArrivalLedger ledger({0, 1}, 16);
  std::optional<SlowRank> slow;
  for (int step = 0; step < 100 && !slow; ++step) {
    const nanoseconds begin = 1s + step * 1s;
    for (std::size_t slot = 0; slot < 10; ++slot) {
      // Ten collectives, all within a millisecond, for which the other rank waits 100 ms.
      const auto found = ledger.add(slot, {1, begin + 100ms + slot * 100us, 100ms});
      if (found) slow = found;
    }
  }
  ASSERT_TRUE(slow);
  EXPECT_NEAR(slow->held_up, 0.1, 0.01);
}

TEST(ArrivalLedger, SaysItAtGrowingIntervals) {
  ArrivalLedger ledger({0, 1}, 16);
  int said = 0;
  for (int step = 0; step < 100 * 50; ++step) {
    if (ledger.add(0, {1, 1s + step * 1s, 500ms})) ++said;
  }
  EXPECT_GE(said, 4);
  EXPECT_LE(said, 8) << "of 100 windows";
}

TEST(ArrivalLedger, CountsByPhase) {
  ArrivalLedger ledger({0, 1}, 16);
  ledger.assign(0, "hora.gradients.0.0");
  ledger.assign(1, "hora.gradients.0.1");
  ledger.add(0, {0, 1s, 1ms});
  ledger.add(1, {1, 1s, 2ms});
  ledger.add(2, {1, 1s, 8ms});
  ledger.assign(1, "loss");  // another name has the slot
  ledger.add(1, {1, 2s, 4ms});
  // Not of the set, and alone.
  for (const int rank : {-1, 4}) ledger.add(3, {rank, 1s, 1ms});
  ledger.add(99, {1, 1s, 1ms});
  ledger.add(3, {1, 1s, LastArrival::kAlone});
  EXPECT_EQ(ledger.decisions(), 4u);
  EXPECT_EQ(ledger.steps(), 2u);
  EXPECT_EQ(ledger.decisions(kForwardPhase), 1u);
  EXPECT_EQ(ledger.decisions(kBackwardPhase), 1u);
  EXPECT_EQ(ledger.decisions(kTrainingPhase), 2u);
  EXPECT_EQ(ledger.lateness_of(0, kForwardPhase).count(), 1u);
  EXPECT_EQ(ledger.lateness_of(1, kBackwardPhase).count(), 1u);
  EXPECT_EQ(ledger.lateness_of(1, kTrainingPhase).count(), 2u);
  EXPECT_EQ(ledger.lateness_of(1).count(), 3u);
}

TEST(ArrivalTexts, NameRankHostCostAndThePhaseThatExplainsItThenTheMostFrequentFirst) {
  const std::vector<ProcessIdentity> processes(4, {.rank = 3, .host = "b", .pid = 4711});
  std::string texts;
  // Half explains nothing, and "training" is all that there is.
  for (const auto& [phase, share] : {std::pair(PhaseIndex{}, 0.0),
                                     {kForwardPhase, 0.93},
                                     {kBackwardPhase, 0.5},
                                     {kTrainingPhase, 1.0}}) {
    texts += slow_rank_text({3, 0.97, 0.167, 200ms, 12s, phase, share}, processes) + "\n";
  }
  ArrivalLedger ledger({0, 1, 2}, 16);
  ledger.assign(0, "hora.gradients.0.0");
  ledger.add(1, {2, 1s, 4ms});
  texts += arrivals_text(ledger, {});
  for (int i = 0; i < 2; ++i) ledger.add(0, {1, 1s + i * 1ms, 4ms});
  ledger.add(1, {1, 2s, 1ms});
  ledger.add(1, {0, 3s, 1ms});
  test::expect_golden("core/negotiation/texts.txt", "arrivals", texts + arrivals_text(ledger, {}));
}

}  // namespace
}  // namespace hora::internal
