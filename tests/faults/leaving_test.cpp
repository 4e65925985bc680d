// Promises 6 and 11: ranks that shut hora down as they should.
#include <chrono>
#include <cstdint>
#include <fstream>
#include <sstream>

#include "tests/faults/fault_test.h"

namespace hora::launch::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Leaving, OnLayouts,
                         testing::Values(one_node(), virtual_nodes(), two_hosts()), name_of);

TEST_P(OnLayouts, WhoWaitsForARankThatHasShutDownGetsAnErrorWithinASecond) {
  internal::test::TemporaryFolder folder;
  const std::string time_file = folder.file("time");
  LaunchedJob& job = launch_on(GetParam(), {"finish", "-", "3", "0"}, {"FAULTS_TIME=" + time_file});
  EXPECT_TRUE(job.wait_for("rank 3 has called shutdown()", 1)) << transcript(job);
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  std::int64_t left_ns = 0;
  ASSERT_TRUE(std::ifstream(time_file) >> left_ns) << transcript(job);
  EXPECT_LT(now.count() - static_cast<double>(left_ns) / 1e9, 1.0) << transcript(job);
  ASSERT_TRUE(job.wait(Seconds(10))) << transcript(job);
  EXPECT_NE(job.wait(), 0) << transcript(job);
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
