// Promise 2 with the limits that a user has who sets none: takes more than a minute.
#include "tests/faults/fault_test.h"

namespace hora::launch::test {
namespace {

using testing::HasSubstr;

class DefaultLimits : public FaultTest {};

TEST_F(DefaultLimits, AStoppedRankIsNamedAfter10SecondsAndEndsTheJobAfter60) {
  LaunchedJob& job = launch_on(one_node(), {"stop", "negotiation", "2"});
  ASSERT_TRUE(job.wait_for("rank 2 (host localhost) is stopped")) << transcript(job);
  const auto elapsed = [&] { return job.since_fault().value_or(Seconds(0)); };

  EXPECT_TRUE(job.wait_for("has not been submitted by ranks 2", 1, Seconds(14) - elapsed()))
      << transcript(job);
  EXPECT_GT(elapsed(), Seconds(9)) << transcript(job);
  const auto warning = job.error_lines("has not been submitted by ranks 2");
  ASSERT_FALSE(warning.empty());
  EXPECT_THAT(warning.front(), HasSubstr("\"step5\"")) << "names the tensor";

  const auto status = job.wait(Seconds(65) - elapsed());
  EXPECT_GT(elapsed(), Seconds(59)) << transcript(job);
  ASSERT_TRUE(status) << transcript(job);
  EXPECT_NE(*status, 0);
  EXPECT_THAT(job.error(), HasSubstr("horarun: rank 2 (host ")) << transcript(job);
  EXPECT_THAT(job.error(), HasSubstr(" did not come to tensor \"step5\" within 60 s"));
}

}  // namespace
}  // namespace hora::launch::test
