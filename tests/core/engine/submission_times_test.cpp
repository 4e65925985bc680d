#include "core/engine/submission_times.h"

#include <gtest/gtest.h>

namespace hora::internal {
namespace {

using namespace std::chrono_literals;

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

}  // namespace
}  // namespace hora::internal
