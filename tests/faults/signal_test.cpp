// Promise 14: a signal at any one rank, or at horarun, reaches all ranks.
#include <algorithm>
#include <string>
#include <utility>

#include "tests/faults/fault_test.h"

namespace hora::launch::test {
namespace {

using Kind = JobProcess::Kind;

INSTANTIATE_TEST_SUITE_P(Signal, RunningJob, testing::Values(one_node(), two_hosts()), name_of);

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

TEST_P(RunningJob, ARankThatATerminationKillsIsNamed) {
  LaunchedJob& job = running();
  const pid_t rank = job.rank(2);
  ::kill(rank, SIGTERM);
  expect_cause(143, {rank_text(2, GetParam().host_of_last, rank), "by signal 15 (SIGTERM)"},
               limit());
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
