#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/engine/waits.h"

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

TEST(RemarksText, NamesTheFirstOfMany) {
  EXPECT_EQ(remarks_text({}), "");
  const std::vector<std::string> nine(9, "r");
  EXPECT_EQ(remarks_text(std::span(nine).first(2)), "r; r");
  EXPECT_EQ(remarks_text(std::span(nine).first(8)), "r; r; r; r; r; r; r; r");
  EXPECT_EQ(remarks_text(nine), "r; r; r; r; r; r; r; r; and 1 more ranks");
}

TEST(WaitingText, SaysWhoWaitsInWhatForWhom) {
  CallWait wait{.process = {.rank = 0, .host = "a", .pid = 1},
                .call = "shutdown()",
                .waited = 10s,
                .remarks = {"rank 3 is stopped (SIGSTOP)"}};
  EXPECT_EQ(waiting_text(wait),
            "rank 0 (host a, pid 1) has waited 10.0 s in shutdown() for ranks that have not called "
            "it: rank 3 is stopped (SIGSTOP). Is one of them slow, stopped or gone?");
  wait.is_hearsay = true;
  EXPECT_THAT(waiting_text(wait), HasSubstr("called it, as far as this node knows: rank 3"));
}

TEST(SecondsText, HasTenths) {
  EXPECT_EQ(seconds_text(12s + 349ms), "12.3 s");
  EXPECT_EQ(seconds_text(40ms), "0.0 s");
  EXPECT_EQ(seconds_text(-1s), "0.0 s");
}

}  // namespace
}  // namespace hora::internal
