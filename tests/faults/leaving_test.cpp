// Promises 6 and 11: ranks that shut hora down as they should.
#include <sstream>

#include "tests/faults/fault_test.h"

namespace hora::launch::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Leaving, OnLayouts,
                         testing::Values(one_node(), virtual_nodes(), two_hosts()), name_of);

TEST_P(OnLayouts, WhoWaitsForARankThatHasShutDownGetsAnErrorWithinASecond) {
  LaunchedJob& job = launch_on(GetParam(), {"finish", "-", "3", "0"});
  EXPECT_TRUE(job.wait_for("rank 3 has called shutdown()", 1)) << transcript(job);
  EXPECT_LT(job.since_fault().value_or(kHang), Seconds(1)) << transcript(job);
  ASSERT_TRUE(job.wait(Seconds(10))) << transcript(job);
  EXPECT_NE(job.wait(), 0) << transcript(job);
}

TEST_F(FaultTest, WhoHasClosedAllDescriptorsEndsTheJobAtOnce) {
  for (const char* phase : {"shutdown", "end"}) {
    launch({"-np", "2"}, {"close", phase, "1"});
    expect_cause_soon(1, {"rank 1 (", "the program has closed all descriptors"}, Seconds(5));
  }
}

TEST_F(FaultTest, AHundredStartsInOneProcessTakeNothing) {
  LaunchedJob& job = launch({"-np", "2"}, {"again", "-", "-"});
  ASSERT_EQ(job.wait(Seconds(120)), 0) << transcript(job);
  std::istringstream lines(job.output());
  int found = 0;
  for (std::string line; std::getline(lines, line); ++found) {
    std::istringstream words(line);
    std::string rank, number, what, then;
    double before = 0, after = 0;
    ASSERT_TRUE(words >> rank >> number >> what >> before >> then >> after) << line;
    EXPECT_LE(after, what == "memory" ? before * 1.01 : before) << line;
  }
  EXPECT_EQ(found, 6) << transcript(job);
}

}  // namespace
}  // namespace hora::launch::test
