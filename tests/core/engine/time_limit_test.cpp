#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/engine/deadlines.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

TEST(TimeLimit, IsTheCallsOrTheSettings) {
  EXPECT_EQ(TimeLimit::of(0ms, 600s).length, 600s);
  EXPECT_FALSE(TimeLimit::of(0ms, 600s).is_of_call);
  EXPECT_EQ(TimeLimit::of(5ms, 600s).length, 5ms);
  EXPECT_TRUE(TimeLimit::of(5ms, 0ms).is_of_call);
  EXPECT_EQ(TimeLimit::of(std::chrono::milliseconds::max(), 600s).length, 0ms);
}

TEST(TimeLimit, EndsAfterItsLengthOrNever) {
  EXPECT_EQ(TimeLimit::of(5ms, 600s).end(7s), 7s + 5ms);
  EXPECT_EQ(TimeLimit::of(0ms, 0ms).end(7s), Duration::max());
  const auto longest = std::chrono::milliseconds::max() - 1ms;
  EXPECT_EQ(TimeLimit::of(longest, 600s).end(7s), Duration::max()) << "beyond the clock";
  EXPECT_LT(TimeLimit::of(24h, 600s).end(Duration(300LL * 24h)), Duration::max());
}

TEST(TimeLimit, ThoseWhoKnowLessLeaveALittleTimeToTheOthers) {
  EXPECT_EQ(report_order(true, true), 0);
  EXPECT_EQ(report_order(false, true), 1);
  EXPECT_EQ(report_order(false, false), 2);
  EXPECT_EQ(TimeLimit::of(0ms, 60s).end(7s, 2), 69s);
  EXPECT_EQ(TimeLimit::of(0ms, 160ms).end(7s, 1), 7s + 260ms);
  EXPECT_EQ(TimeLimit::of(0ms, 0ms).end(7s, 2), Duration::max());
}

TEST(TimeLimit, TheRootIsToldALittleBeforeItsEnd) {
  EXPECT_EQ(TimeLimit::of(0ms, 60s).notice(7s), 65s);
  EXPECT_EQ(TimeLimit::of(0ms, 160ms).notice(7s), 7s + 120ms);
  EXPECT_EQ(TimeLimit::of(0ms, 0ms).notice(7s), Duration::max());
  EXPECT_EQ(TimeLimit::of(0ms, 60s).expiry(7s, 65s + 100us), (Expiry{60s, 2s, false}));
  EXPECT_EQ(TimeLimit::of(160ms, 60s).expiry(7s, 8s), (Expiry{160ms, 0ms, true})) << "late";
}

TimedOut one() {
  return {.name = "g", .set = kWorld, .limit = {600s, false}, .rank = 1, .root = 0, .reporter = 1};
}

TEST(TimeoutText, NamesWhoLacksIt) {
  TimedOut timed_out = one();
  timed_out.missing = {2, 4};
  EXPECT_EQ(timeout_text(timed_out),
            "ranks 2, 4 did not come to tensor \"g\" within 600 s of rank 1. Do all ranks call the "
            "same collectives? Is one of them slow, stopped or "
            "gone? Where a rank may work alone for longer (a validation, a checkpoint), raise "
            "HORA_TIMEOUT (0: never), or give the call a timeout");
  timed_out.set = ProcessSet(3);
  timed_out.limit = {250ms, true};
  EXPECT_THAT(timeout_text(timed_out), HasSubstr("tensor \"g\" of process set 3 within 250 ms of"));
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
              HasSubstr("rank 1, and whether rank 2 has is not known on this one: nothing has come "
                        "from their nodes. Do all"));
}

TEST(TimeoutText, HasTheFirstRemarks) {
  TimedOut timed_out = one();
  timed_out.missing = {2};
  timed_out.remarks = {"rank 2 sleeps"};
  EXPECT_THAT(timeout_text(timed_out), HasSubstr("of rank 1; rank 2 sleeps. Do all"));
  timed_out.remarks = {"rank 2 (host a, pid 7) sleeps"};
  EXPECT_THAT(timeout_text(timed_out),
              StartsWith("rank 2 (host a, pid 7) did not come to tensor \"g\" within 600 s of rank "
                         "1; it sleeps. Do all"));
  timed_out.remarks.assign(10, "x");
  EXPECT_THAT(timeout_text(timed_out),
              HasSubstr("1; x; x; x; x; x; x; x; x; and 2 more ranks. Do"));
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
