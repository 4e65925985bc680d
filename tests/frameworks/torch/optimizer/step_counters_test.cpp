#include "frameworks/torch/optimizer/step_counters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace hora::internal {
namespace {

using testing::HasSubstr;

StepCounter after(int steps, int zero_grads) {
  StepCounter counter;
  counter.begin_round();
  for (int i = 0; i < steps; ++i) counter.note_step();
  for (int i = 0; i < zero_grads; ++i) counter.note_zero_grad();
  counter.begin_round();
  return counter;
}

TEST(StepCounter, EachWayOfCallsHasALane) {
  std::set<std::size_t> lanes;
  for (int steps = 0; steps < 2; ++steps) {
    for (int zero_grads = 0; zero_grads < 4; ++zero_grads) {
      const std::size_t lane = after(steps, zero_grads).lane();
      EXPECT_LT(lane, step_lanes);
      EXPECT_TRUE(lanes.insert(lane).second);
    }
  }
  EXPECT_EQ(after(5, 9).lane(), after(1, 3).lane()) << "more calls are not told apart";
}

TEST(StepCounter, OnlyCallsSinceTheRoundBeforeCount) {
  StepCounter regular = after(1, 1);
  StepCounter other = after(0, 3);
  for (StepCounter* counter : {&regular, &other}) {
    counter->note_step();
    counter->note_zero_grad();
    counter->begin_round();
  }
  EXPECT_EQ(regular.lane(), other.lane());
  EXPECT_EQ(regular.calls_before(), (StepCalls{2, 2}));
  EXPECT_EQ(other.calls_before(), (StepCalls{1, 4}));
}

TEST(StepCounter, ALaneIsThatOfItsRoundUntilTheNext) {
  StepCounter counter = after(1, 1);
  const std::size_t lane = counter.lane();
  counter.note_zero_grad();
  EXPECT_EQ(counter.lane(), lane);
  EXPECT_EQ(counter.calls_before(), (StepCalls{1, 1}));
}

TEST(StepCounter, RestartsFromNothing) {
  StepCounter counter = after(1, 2);
  counter.note_zero_grad();
  counter.restart();
  counter.begin_round();
  EXPECT_EQ(counter.lane(), after(0, 0).lane());
  EXPECT_EQ(counter.calls_before(), (StepCalls{0, 0}));
}

TEST(DifferentStepsText, NamesRanksAndTheirSteps) {
  const std::map<StepCalls, std::vector<int>> ranks{{{6, 7}, {1}}, {{7, 8}, {0, 2, 3, 4}}};
  const std::string text = different_steps_text(ranks, /*updated=*/false);
  EXPECT_THAT(text, HasSubstr("rank 1 is in step 7 after 7 calls of zero_grad(), "
                              "ranks 0, 2-4 are in step 8 after 8 calls of zero_grad()"));
  EXPECT_THAT(text, HasSubstr("No rank has been updated"));
}

TEST(DifferentStepsText, SaysWhereParametersHaveBeenUpdated) {
  const std::string text = different_steps_text({{{1, 1}, {0}}, {{2, 1}, {1}}}, /*updated=*/true);
  EXPECT_THAT(text, HasSubstr("Some parameters have been updated"));
  EXPECT_THAT(text, testing::Not(HasSubstr("No rank has been updated")));
}

TEST(PassCounter, TheLastPassCompletes) {
  PassCounter passes(2, 3);
  EXPECT_FALSE(passes.any());
  EXPECT_FALSE(passes.add(0, true));
  EXPECT_FALSE(passes.add(0, true));
  EXPECT_FALSE(passes.add(1, true));
  EXPECT_TRUE(passes.add(0, true));
  EXPECT_TRUE(passes.any());
}

TEST(PassCounter, UncountedPassesCompleteNothing) {
  PassCounter passes(1, 1);
  EXPECT_FALSE(passes.add(0, false));
  EXPECT_TRUE(passes.any());
  EXPECT_TRUE(passes.add(0, true));
}

TEST(PassCounter, ResetCountsFromTheStart) {
  PassCounter passes(1, 2);
  EXPECT_FALSE(passes.add(0, true));
  passes.reset();
  EXPECT_FALSE(passes.any());
  EXPECT_FALSE(passes.add(0, true));
  EXPECT_TRUE(passes.add(0, true));
}

}  // namespace
}  // namespace hora::internal
