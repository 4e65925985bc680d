// Promises 3, 4, 6 and 11: signals to horarun, the sudden end of each process that a job consists
// of, and ranks that shut hora down as they should.
#include <sstream>

#include "tests/faults/fault_test.h"

namespace hora::launch::test {
namespace {

using testing::HasSubstr;
using Kind = JobProcess::Kind;

INSTANTIATE_TEST_SUITE_P(Ending, RunningJob, testing::Values(one_node(), two_hosts()), name_of);

TEST_P(RunningJob, SignalsToHorarunEndItInTime) {
  LaunchedJob& interrupted = running();
  interrupt();
  EXPECT_EQ(interrupted.error_lines("was killed").size(), 0) << interrupted.error();

  LaunchedJob& terminated = running();
  ::kill(terminated.rank(2), SIGSTOP);
  ::kill(terminated.launcher(), SIGTERM);
  EXPECT_EQ(terminated.wait(Seconds(5)), 143) << transcript(terminated);

  LaunchedJob& stopped = running();
  for (int rank = 0; rank < 4; ++rank) ::kill(stopped.rank(rank), SIGSTOP);
  ::kill(stopped.launcher(), SIGINT);
  stopped.read_for(Seconds(0.2));
  interrupt(Seconds(2));

  LaunchedJob& killed = running();
  ::kill(killed.rank(1), SIGSTOP);
  ::kill(killed.launcher(), SIGKILL);
  EXPECT_TRUE(killed.wait_for_no_process(Seconds(5))) << transcript(killed);
  EXPECT_EQ(killed.wait(Seconds(1)), 137);
}

/// The processes that a job consists of besides its ranks.
TEST_P(RunningJob, WhoseSuddenEndItWasIsNamed) {
  struct Case {
    Kind kind;
    int rank, signal, status;
    std::vector<std::string> texts;
  };
  const std::vector<Case> cases{
      {Kind::mpirun, -1, SIGKILL, 137, {"mpirun was killed by signal 9 (SIGKILL)"}},
      {Kind::mpirun, -1, SIGTERM, 143, {"mpirun was ended by SIGTERM"}},
      {Kind::guard, 3, SIGKILL, 137, {"rank 3 (host ", "guard"}},
      {Kind::agent, -1, SIGKILL, 69, {"host " + GetParam().host_of_last, "agent has ended"}},
      {Kind::daemon, -1, SIGKILL, 137, {"127.0.0.2", "daemon"}}};
  for (const Case& each : cases) {
    if (each.kind == Kind::daemon && last_host().empty()) continue;
    SCOPED_TRACE(each.texts.front());
    LaunchedJob& job = running();
    const bool is_first_host = each.kind == Kind::mpirun;
    const pid_t process = job.process(each.kind, each.rank, is_first_host ? "" : last_host());
    ::kill(process, each.signal);
    std::vector<std::string> texts = each.texts;
    if (each.kind == Kind::guard) texts.push_back(std::to_string(process));
    expect_cause(each.status, texts, Seconds(10));
  }
}

TEST_P(RunningJob, AStoppedRankIsNamedAndGoesOn) {
  LaunchedJob& job = running();
  const pid_t rank = job.rank(1);
  ::kill(rank, SIGSTOP);
  EXPECT_TRUE(job.wait_for("rank 1 (host ", 1, Seconds(5))) << transcript(job);
  EXPECT_THAT(job.error(), HasSubstr("is stopped"));
  ::kill(rank, SIGCONT);
  EXPECT_TRUE(job.wait_for("rank 1 runs again", 1, Seconds(5))) << transcript(job);
  interrupt();
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
  const auto lines = lines_of(job.output());
  for (const std::string& line : lines) {
    std::istringstream words(line);
    std::string rank, number, what, then;
    double before = 0, after = 0;
    ASSERT_TRUE(words >> rank >> number >> what >> before >> then >> after) << line;
    EXPECT_LE(after, what == "memory" ? before * 1.01 : before) << line;
  }
  EXPECT_EQ(lines.size(), 6U) << transcript(job);
}

}  // namespace
}  // namespace hora::launch::test
