#include "core/engine/rank_remark.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

RankFacts facts(ProcessState state) {
  return {.process = {.rank = 3, .host = "b", .pid = 4711},
          .state = state,
          .submitted = SharedNote::Note{"f", 100s}};
}

TEST(RankStateText, TellsApartStoppedGoneBusyAndWaiting) {
  EXPECT_EQ(rank_state_text(facts(ProcessState::stopped), 112s),
            "rank 3 (host b, pid 4711) is stopped (SIGSTOP), and has last submitted tensor \"f\", "
            "12.0 s ago");
  EXPECT_THAT(rank_state_text(facts(ProcessState::traced), 112s), HasSubstr("by a debugger, and"));
  EXPECT_THAT(rank_state_text(facts(ProcessState::gone), 112s), HasSubstr("4711) has ended, and"));
  EXPECT_THAT(rank_state_text(facts(ProcessState::running), 112s),
              HasSubstr("runs its own code, and"));
  EXPECT_THAT(rank_state_text(facts(ProcessState::sleeping), 112s),
              HasSubstr("own code, asleep (it"));
  EXPECT_THAT(rank_state_text(facts(ProcessState::blocked), 112s), HasSubstr("inside the kernel"));
  EXPECT_THAT(rank_state_text(facts(ProcessState::unknown), 112s),
              HasSubstr("is in its own code, and"));
}

TEST(RankStateText, ARankThatWaitsInHoraSaysForWhat) {
  RankFacts waits = facts(ProcessState::sleeping);
  waits.waits_for = SharedNote::Note{"f", 101s};
  EXPECT_THAT(rank_state_text(waits, 112s),
              HasSubstr(" waits in hora for tensor \"f\", for 11.0 s,"));
  waits.state = ProcessState::stopped;
  EXPECT_THAT(rank_state_text(waits, 112s), HasSubstr(" is stopped (SIGSTOP)"));
}

TEST(RankStateText, LeavesOutWhatIsNotKnown) {
  EXPECT_EQ(rank_state_text({.process = {.rank = 3}}, 112s),
            "rank 3 is in its own code, and has submitted nothing yet");
  EXPECT_THAT(rank_state_text({.process = {.rank = 3, .host = "b"}}, 1s),
              HasSubstr("rank 3 (host b)"));
}

TEST(SecondsText, HasTenths) {
  EXPECT_EQ(seconds_text(12s + 349ms), "12.3 s");
  EXPECT_EQ(seconds_text(40ms), "0.0 s");
  EXPECT_EQ(seconds_text(-1s), "0.0 s");
}

}  // namespace
}  // namespace hora::internal
