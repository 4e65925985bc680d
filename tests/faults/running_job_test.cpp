// Promises 4, 6 and 14: signals to horarun, to an agent, or to any one rank.
#include <algorithm>
#include <string>
#include <utility>

#include "tests/faults/fault_test.h"

namespace hora::launch::test {
namespace {

using Kind = JobProcess::Kind;

INSTANTIATE_TEST_SUITE_P(Layouts, RunningJob, testing::Values(one_node(), two_hosts()), name_of);

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

TEST_P(RunningJob, AStoppedRankIsNamedAndGoesOn) {
  LaunchedJob& job = running();
  const pid_t rank = job.rank(1);
  ::kill(rank, SIGSTOP);
  EXPECT_TRUE(job.wait_for("rank 1 (host ", 1, Seconds(5))) << transcript(job);
  EXPECT_THAT(job.error(), testing::HasSubstr("is stopped"));
  ::kill(rank, SIGCONT);
  EXPECT_TRUE(job.wait_for("rank 1 runs again", 1, Seconds(5))) << transcript(job);
  interrupt();
}

constexpr std::pair<int, const char*> kUserSignals[] = {{SIGUSR1, "SIGUSR1"}, {SIGUSR2, "SIGUSR2"}};

/// Every rank has got the signal so often, and not once more.
void expect_got(LaunchedJob& job, const std::string& name, int times) {
  EXPECT_TRUE(job.wait_for(": got " + name, 4 * times, Seconds(5))) << transcript(job);
  job.read_for(Seconds(0.3));
  for (int rank = 0; rank < 4; ++rank) {
    const std::string line = "rank " + std::to_string(rank) + ": got " + name + "\n";
    int got = 0;
    for (auto at = job.output().find(line); at != std::string::npos;
         at = job.output().find(line, at + 1)) {
      ++got;
    }
    EXPECT_EQ(got, times) << line << transcript(job);
  }
}

TEST_P(RunningJob, UserSignalsToHorarunOrAnyOneRankReachAllRanks) {
  LaunchedJob& job = running();
  for (const auto& [number, name] : kUserSignals) {
    ::kill(job.launcher(), number);
    expect_got(job, name, 1);
    for (int rank = 0; rank < 4; ++rank) {
      ::kill(job.rank(rank), number);
      expect_got(job, name, rank + 2);
    }
  }
  interrupt();
}

/// As Slurm does, which signals what it has started: the agents.
TEST_P(RunningJob, UserSignalsToAnAgentReachTheRanksOfItsHost) {
  LaunchedJob& job = running();
  const pid_t agent = job.process(Kind::agent, -1, last_host());
  for (const auto& [number, name] : kUserSignals) {
    ::kill(agent, number);
    EXPECT_TRUE(job.wait_for(std::string(": got ") + name, last_host().empty() ? 4 : 2, Seconds(5)))
        << transcript(job);
    EXPECT_TRUE(job.wait_for(std::string("rank 3: got ") + name, 1, Seconds(0))) << transcript(job);
  }
  interrupt();
}

/// A program whose ranks agree in each step on whether one of them was told to end.
TEST_P(RunningJob, AllRanksLeaveTogetherWhereOneOrAnAgentIsToldToEnd) {
  for (const Kind kind : {Kind::rank, Kind::agent}) {
    LaunchedJob& job = running("leave");
    ::kill(job.process(kind, kind == Kind::rank ? 3 : -1, last_host()), SIGTERM);
    EXPECT_EQ(job.wait(Seconds(10)), 0) << transcript(job);
    EXPECT_TRUE(job.wait_for(": leaves", 4, Seconds(0))) << transcript(job);
    EXPECT_EQ(job.complaints(), "");
  }
}

}  // namespace
}  // namespace hora::launch::test
