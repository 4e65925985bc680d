#include "core/engine/stall_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

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

TimedOut one() {
  return {.name = "g", .set = kWorld, .limit = {600s, false}, .rank = 1, .root = 0, .reporter = 1};
}

TEST(TimeoutText, NamesWhoLacksIt) {
  TimedOut timed_out = one();
  timed_out.missing = {2, 4};
  EXPECT_EQ(timeout_text(timed_out),
            "tensor \"g\" is not complete 600 s after rank 1 has submitted it: ranks 2, 4 have not "
            "submitted it. Do all ranks call the same collectives? Is one of them slow, stopped or "
            "gone? Where a rank may work alone for longer (a validation, a checkpoint), raise "
            "HORA_TIMEOUT (0: never), or give the call a timeout");
  timed_out.set = ProcessSet(3);
  timed_out.limit = {250ms, true};
  EXPECT_THAT(timeout_text(timed_out), StartsWith("tensor \"g\" of process set 3 is not complete "
                                                  "250 ms after"));
  EXPECT_THAT(timeout_text(timed_out),
              EndsWith("raise the timeout of this call (0: HORA_TIMEOUT)"));
}

TEST(TimeoutText, SaysWhatIsNotKnownAndWhoKnows) {
  TimedOut timed_out = one();
  timed_out.unknown = {0};
  EXPECT_THAT(timeout_text(timed_out),
              HasSubstr("it: whether rank 0 has is not known on this one: see the warnings of rank "
                        "0 (HORA_STALL_WARNING). Do all"));
  timed_out.missing = {3};
  timed_out.reporter = 0;
  timed_out.unknown = {2};
  EXPECT_THAT(timeout_text(timed_out),
              HasSubstr("rank 3 has not submitted it, and whether rank 2 has is not known on this "
                        "one: nothing has come from their nodes. Do all"));
}

TEST(TimeoutText, HasTheFirstRemarks) {
  TimedOut timed_out = one();
  timed_out.missing = {2};
  timed_out.remarks = {"rank 2 sleeps"};
  EXPECT_THAT(timeout_text(timed_out), HasSubstr("submitted it; rank 2 sleeps. Do all"));
  timed_out.remarks.assign(10, "x");
  EXPECT_THAT(timeout_text(timed_out),
              HasSubstr("it; x; x; x; x; x; x; x; x; and 2 more ranks. Do"));
}

TEST(TimeoutText, WhereAllHaveSubmittedItNamesTheRootOrWhoHasNotFinished) {
  TimedOut timed_out = one();
  EXPECT_THAT(timeout_text(timed_out),
              HasSubstr("every rank has submitted it, and rank 0 has not decided it. Do all"));
  timed_out.decided = true;
  EXPECT_THAT(timeout_text(timed_out), HasSubstr("its result is about to be taken over. Is one"));
  timed_out.unfinished = {2, 3};
  EXPECT_THAT(timeout_text(timed_out),
              HasSubstr("it is under way: of this node ranks 2, 3 have not finished it. Is one"));
  timed_out.has_other_nodes = true;
  EXPECT_THAT(timeout_text(timed_out),
              HasSubstr("not finished it, and data of other nodes may be missing. Is one"));
}

TEST(TimeoutText, NoNameForgesALine) {
  TimedOut timed_out = one();
  timed_out.name = "x\nhora critical: \x1b[2J";
  EXPECT_THAT(timeout_text(timed_out), StartsWith("tensor \"x\\nhora critical: \\x1b[2J\" is"));
}

}  // namespace
}  // namespace hora::internal
