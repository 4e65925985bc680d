// Promises 1 and 6: a rank that dies or leaves ends the job, which says who it was.
#include <signal.h>

#include <map>
#include <tuple>

#include "tests/faults/fault_test.h"

namespace hora::launch::test {
namespace {

using testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(Death, OnLayouts,
                         testing::Values(one_node(), virtual_nodes(), two_hosts()), name_of);

TEST_P(OnLayouts, AKilledRankIsNamedAndEverythingEnds) {
  LaunchedJob& job = launch_on(GetParam(), {"none", "-", "-", "0"});
  ASSERT_TRUE(job.wait_for(": ready", 4)) << transcript(job);
  const pid_t rank = job.rank(3);
  ASSERT_GT(rank, 0) << transcript(job);
  ::kill(rank, SIGKILL);
  expect_cause(137,
               {rank_text(3, GetParam().host_of_last, rank), "was killed by signal 9 (SIGKILL)",
                " s after its start"},
               limit());
}

TEST_P(OnLayouts, RankZeroIsNoException) {
  LaunchedJob& job = launch_on(GetParam(), {"none", "-", "-", "0"});
  ASSERT_TRUE(job.wait_for(": ready", 4)) << transcript(job);
  const pid_t rank = job.rank(0);
  ASSERT_GT(rank, 0) << transcript(job);
  ::kill(rank, SIGSEGV);
  expect_cause(139, {"rank 0 (host ", "was killed by signal 11 (SIGSEGV)"}, limit());
}

TEST_P(OnLayouts, AnExceptionsTextIsTheCause) {
  launch_on(GetParam(), {"throw", "data", "2"});
  expect_cause_soon(134, {"rank 2 (host ", "the application's own error"}, limit());
  EXPECT_THAT(job_->error(), testing::Not(testing::HasSubstr("Process received signal")))
      << "MPI's stack of an abort whose reason is known";
}

TEST_P(OnLayouts, WhoseExceptionIsCaughtInMainIsNamedWithItsStatus) {
  launch_on(GetParam(), {"caught", "negotiation", "2"});
  expect_cause_soon(12, {"rank 2 (host ", "exit status 12", "the application's own error"},
                    limit());
}

TEST_P(OnLayouts, TheCulpritsExitStatusIsTheJobs) {
  launch_on(GetParam(), {"exit3", "negotiation", "1"});
  expect_cause_soon(3, {"rank 1 (host ", "exit status 3"}, limit());
}

TEST_P(OnLayouts, LeavingWithExitStatusZeroIsAFailure) {
  launch_on(GetParam(), {"exit0", "negotiation", "2"});
  expect_cause_soon(1, {"rank 2 (host ", "shutdown"}, limit());
}

TEST_P(OnLayouts, WhoCallsMpiAbortIsNamed) {
  launch_on(GetParam(), {"abort", "data", "2"});
  expect_cause_soon(7, {"rank 2 (host ", "exit status 7"}, limit());
}

TEST_P(OnLayouts, AllRanksDieAtOnce) {
  launch_on(GetParam(), {"kill", "data", "all"});
  expect_cause_soon(137, {"rank ", "was killed by signal 9 (SIGKILL)"}, limit());
}

std::string name_of_phase(
    const testing::TestParamInfo<std::tuple<std::string, std::string>>& info) {
  return std::get<0>(info.param) + "_" + std::get<1>(info.param);
}

/// One node: every phase.
class InPhase : public FaultTest,
                public testing::WithParamInterface<std::tuple<std::string, std::string>> {
 protected:
  std::string fault() const { return std::get<0>(GetParam()); }
  std::string phase() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(
    Death, InPhase,
    testing::Combine(testing::Values("kill", "exit0", "exit3", "throw", "abort"),
                     testing::Values("init", "negotiation", "data", "shutdown")),
    name_of_phase);

TEST_P(InPhase, IsNamed) {
  if (fault() == "abort" && phase() == "init") return;  // MPI does not allow that
  launch({"-np", "2"}, {fault(), phase(), "1"});
  const std::map<std::string, int> statuses{
      {"kill", 137}, {"exit0", 1}, {"exit3", 3}, {"throw", 134}, {"abort", 7}};
  // That it does not come to hora::init is known when the others have waited in it for 5 s.
  const bool is_awaited = fault() == "exit0" && phase() == "init";
  expect_cause_soon(statuses.at(fault()), {"rank 1 (host "},
                    Seconds(one_node().limit + (is_awaited ? 5 : 0)));
}

/// Two emulated hosts: a rank of the other host.
class RemoteInPhase : public TwoHosts, public testing::WithParamInterface<std::string> {};
INSTANTIATE_TEST_SUITE_P(Death, RemoteInPhase,
                         testing::Values("init", "negotiation", "data", "shutdown"),
                         [](const auto& phase) { return phase.param; });

TEST_P(RemoteInPhase, AKilledRankIsNamed) {
  launch_on(two_hosts(), {"kill", GetParam(), "3"});
  expect_cause_soon(137, {"rank 3 (host 127.0.0.2, pid ", "by signal 9 (SIGKILL)"},
                    Seconds(two_hosts().limit));
}

TEST_F(FaultTest, ARankMayLeaveAfterShutdownWithAnyStatusAndThatIsTheJobs) {
  launch({"-np", "2"}, {"exit3", "end", "1"});
  expect_cause(3, {"rank 1 (host ", "exit status 3"});
}

TEST_F(FaultTest, AJobWithoutFaultSaysNothing) {
  LaunchedJob& job = launch({"-np", "2"}, {"none", "-", "-"});
  EXPECT_EQ(job.wait(), 0) << transcript(job);
  EXPECT_EQ(job.complaints(), "");
}

TEST_F(FaultTest, OneRankRunsUnderHorarun) {
  LaunchedJob& job = start({.arguments = {"-np", "1", FAULT_RANK, "none", "-", "-"}});
  EXPECT_EQ(job.wait(), 0) << transcript(job);
}

}  // namespace
}  // namespace hora::launch::test
