#include <gtest/gtest.h>

#include <string>

#include "core/negotiation/arrivals.h"

namespace hora::internal {
namespace {

TEST(PhaseOf, BucketsOfOptimizers) {
  EXPECT_EQ(phase_of("hora.gradients.0.0"), kForwardPhase);
  EXPECT_EQ(phase_of("hora.gradients.12.0.presence"), kForwardPhase);
  EXPECT_EQ(phase_of("hora.gradients.0.1"), kBackwardPhase);
  EXPECT_EQ(phase_of("hora.gradients.0.10"), kBackwardPhase);
  EXPECT_EQ(phase_of("hora.gradients.0.layout1.0"), kForwardPhase);
  EXPECT_EQ(phase_of("hora.gradients.0.layout12.3"), kBackwardPhase);
  EXPECT_EQ(phase_of("hora.gradients.0.layout1"), kOptimizerPhase);
  EXPECT_EQ(phase_of("hora.gradients.0.layout1.order"), kOptimizerPhase);
  EXPECT_EQ(phase_of("hora.gradients.0.norm"), kOptimizerPhase);
  EXPECT_EQ(phase_of("hora.gradients.0.end"), kOptimizerPhase);
  EXPECT_EQ(phase_of("hora.gradients.0"), kOptimizerPhase);
  EXPECT_EQ(phase_of("hora.gradients."), kOptimizerPhase);
}

TEST(PhaseOf, LayersThatTalk) {
  EXPECT_EQ(phase_of("hora.sync_batch_norm.3"), kForwardPhase);
  EXPECT_EQ(phase_of("hora.sync_batch_norm.3.backward"), kBackwardPhase);
}

TEST(PhaseOf, TheProgramsOwnAreAsItHasNoted) {
  for (const char* name : {"", "loss", "hora", "gradients.0.0", "hora.broadcast.x"}) {
    EXPECT_FALSE(phase_of(name)) << name;
  }
}

std::string current_name(const NotedPhases& noted) {
  return std::string(noted.name(noted.current()).text());
}

TEST(NotedPhases, LeaveNumbersOut) {
  NotedPhases noted;
  EXPECT_EQ(noted.current(), kTrainingPhase);
  EXPECT_EQ(current_name(noted), "training");
  noted.note("epoch 3, step 120");
  const PhaseIndex epoch = noted.current();
  EXPECT_EQ(current_name(noted), "epoch N, step N");
  noted.note("validation");
  EXPECT_NE(noted.current(), epoch);
  EXPECT_EQ(current_name(noted), "validation");
  noted.note("epoch 14, step 9");
  EXPECT_EQ(noted.current(), epoch);
  noted.note("");
  EXPECT_EQ(noted.current(), kTrainingPhase);
}

TEST(NotedPhases, AreBounded) {
  NotedPhases noted;
  std::string letters;
  for (int i = 0; i < 100; ++i) {
    letters += static_cast<char>('a' + i % 26);
    noted.note(letters);
    ASSERT_LT(noted.current(), kStepPhases);
    ASSERT_GT(noted.current(), kTrainingPhase);
  }
  EXPECT_EQ(current_name(noted), "other phases");
  noted.note("ab");
  EXPECT_EQ(current_name(noted), "ab") << "of the first ones";
}

TEST(NotedPhases, CutBetweenCharacters) {
  NotedPhases noted;
  noted.note(std::string(40, 'x'));
  EXPECT_EQ(current_name(noted), std::string(32, 'x'));
  noted.note(std::string(31, 'y') + "\u00e9");
  EXPECT_EQ(current_name(noted), std::string(31, 'y'));
  noted.note(std::string(29, 'z') + "\U0001f600");
  EXPECT_EQ(current_name(noted), std::string(29, 'z'));
}

}  // namespace
}  // namespace hora::internal
