// Promises 3, 4, 6 and 11: signals to horarun, the sudden end of each process that a job consists
// of, and ranks that shut hora down as they should.
#include <signal.h>

#include <sstream>

#include "tests/faults/fault_test.h"

namespace hora::launch::test {
namespace {

using testing::HasSubstr;
using Kind = JobProcess::Kind;

INSTANTIATE_TEST_SUITE_P(Ending, RunningJob, testing::Values(one_node(), two_hosts()), name_of);

TEST_P(RunningJob, SigintEndsItWithinFiveSeconds) {
  LaunchedJob& job = running();
  ::kill(job.launcher(), SIGINT);
  EXPECT_EQ(job.wait(Seconds(5)), 130) << transcript(job);
  EXPECT_EQ(job.error_lines("was killed").size(), 0) << job.error();
}

TEST_P(RunningJob, SigtermEndsItThoughARankIsStopped) {
  LaunchedJob& job = running();
  ::kill(job.rank(2), SIGSTOP);
  ::kill(job.launcher(), SIGTERM);
  EXPECT_EQ(job.wait(Seconds(5)), 143) << transcript(job);
}

TEST_P(RunningJob, ASecondSigintKillsAtOnce) {
  LaunchedJob& job = running();
  for (int rank = 0; rank < 4; ++rank) ::kill(job.rank(rank), SIGSTOP);
  ::kill(job.launcher(), SIGINT);
  job.read_for(Seconds(0.2));
  ::kill(job.launcher(), SIGINT);
  EXPECT_EQ(job.wait(Seconds(2)), 130) << transcript(job);
}

TEST_P(RunningJob, NothingOutlivesAKilledLauncher) {
  LaunchedJob& job = running();
  ::kill(job.rank(1), SIGSTOP);
  ::kill(job.launcher(), SIGKILL);
  EXPECT_TRUE(job.wait_for_no_process(Seconds(5))) << transcript(job);
  EXPECT_EQ(job.wait(Seconds(1)), 137);
}

TEST_P(RunningJob, AKilledMpirunIsNamed) {
  LaunchedJob& job = running();
  const pid_t mpirun = job.find(Kind::mpirun);
  ASSERT_GT(mpirun, 0) << transcript(job);
  ::kill(mpirun, SIGKILL);
  expect_cause(137, {"mpirun was killed by signal 9 (SIGKILL)"}, Seconds(10));
}

TEST_P(RunningJob, AnMpirunThatIsToldToEndIsNamed) {
  LaunchedJob& job = running();
  const pid_t mpirun = job.find(Kind::mpirun);
  ASSERT_GT(mpirun, 0) << transcript(job);
  ::kill(mpirun, SIGTERM);
  expect_cause(143, {"mpirun was ended by SIGTERM"}, Seconds(10));
}

TEST_P(RunningJob, AKilledGuardIsNamedWithItsRank) {
  LaunchedJob& job = running();
  const pid_t guard = job.find(Kind::guard, 3);
  ASSERT_GT(guard, 0) << transcript(job);
  ::kill(guard, SIGKILL);
  expect_cause(137, {"rank 3 (host ", "guard", std::to_string(guard)}, Seconds(10));
}

TEST_P(RunningJob, AKilledAgentIsNamedWithItsHost) {
  LaunchedJob& job = running();
  const bool is_remote = GetParam().name == "two_hosts";
  const pid_t agent = job.find(Kind::agent, -1, is_remote ? "127.0.0.2" : "");
  ASSERT_GT(agent, 0) << transcript(job);
  ::kill(agent, SIGKILL);
  expect_cause(69, {"host " + GetParam().host_of_last, "agent has ended"}, Seconds(10));
}

TEST_P(RunningJob, AStoppedRankIsNamedAndGoesOn) {
  LaunchedJob& job = running();
  const pid_t rank = job.rank(1);
  ::kill(rank, SIGSTOP);
  EXPECT_TRUE(job.wait_for("rank 1 (host ", 1, Seconds(5))) << transcript(job);
  EXPECT_THAT(job.error(), HasSubstr("is stopped"));
  ::kill(rank, SIGCONT);
  EXPECT_TRUE(job.wait_for("rank 1 runs again", 1, Seconds(5))) << transcript(job);
  ::kill(job.launcher(), SIGINT);
  EXPECT_EQ(job.wait(Seconds(5)), 130) << transcript(job);
}

TEST_F(TwoHosts, AKilledDaemonIsNamed) {
  LaunchedJob& job = running();
  const pid_t daemon = job.find(Kind::daemon, -1, "127.0.0.2");
  ASSERT_GT(daemon, 0) << transcript(job);
  ::kill(daemon, SIGKILL);
  expect_cause(137, {"127.0.0.2", "daemon"}, Seconds(10));
}

TEST_F(TwoHosts, AStoppedDaemonIsNamed) {
  LaunchedJob& job = running();
  const pid_t daemon = job.find(Kind::daemon, -1, "127.0.0.2");
  ASSERT_GT(daemon, 0) << transcript(job);
  ::kill(daemon, SIGSTOP);
  EXPECT_TRUE(job.wait_for("host 127.0.0.2: process " + std::to_string(daemon), 1, Seconds(10)))
      << transcript(job);
  ::kill(job.launcher(), SIGINT);
  EXPECT_EQ(job.wait(Seconds(5)), 130) << transcript(job);
}

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
