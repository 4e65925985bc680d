// Promises 1, 6 and 11: a rank that dies or leaves ends the job, which says who it was; ranks that
// shut hora down as they should.
#include <map>
#include <sstream>
#include <tuple>

#include "tests/faults/fault_test.h"

namespace hora::launch::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Layouts, OnLayouts, testing::Values(virtual_nodes(), two_hosts()),
                         name_of);

TEST_P(OnLayouts, AKilledRankIsNamedAndEverythingEnds) {
  for (const auto& [number, signal, status, how] :
       {std::tuple(3, SIGKILL, 137, "was killed by signal 9 (SIGKILL)"),
        std::tuple(0, SIGSEGV, 139, "was killed by signal 11 (SIGSEGV)")}) {
    LaunchedJob& job = running_on(GetParam());
    const pid_t rank = job.rank(number);
    ::kill(rank, signal);
    const std::string name =
        number == 3 ? rank_text(3, GetParam().host_of_last, rank) : "rank 0 (host ";
    expect_cause(status, {name, how, " s after its start"}, limit());
  }
}

TEST_P(OnLayouts, ARankThatEndsItselfIsNamedWithItsStatus) {
  struct Case {
    std::string fault, phase, rank;
    int status;
    std::vector<std::string> texts;
  };
  const std::vector<Case> cases{
      {"throw", "data", "2", 134, {"rank 2 (host ", "the application's own error"}},
      {"caught", "negotiation", "2", 12, {"rank 2 (host ", "exit status 12", "own error"}},
      {"exit3", "negotiation", "1", 3, {"rank 1 (host ", "exit status 3"}},
      {"exit0", "negotiation", "2", 1, {"rank 2 (host ", "shutdown"}},
      {"abort", "data", "2", 7, {"rank 2 (host ", "exit status 7"}},
      {"kill", "data", "all", 137, {"rank ", "was killed by signal 9 (SIGKILL)"}}};
  for (const Case& each : cases) {
    SCOPED_TRACE(each.fault);
    launch_on(GetParam(), {each.fault, each.phase, each.rank});
    expect_cause_soon(each.status, each.texts, limit());
    EXPECT_THAT(job_->error(), testing::Not(testing::HasSubstr("Process received signal")))
        << "MPI's stack of an abort whose reason is known";
  }
}

/// One node: every phase.
TEST_F(FaultTest, ARankThatEndsItselfInAnyPhaseIsNamed) {
  for (const auto& [fault, status] : std::map<std::string, int>{
           {"kill", 137}, {"exit0", 1}, {"exit3", 3}, {"throw", 134}, {"abort", 7}}) {
    for (const std::string phase : {"init", "negotiation", "data", "shutdown"}) {
      if (fault == "abort" && phase == "init") continue;  // MPI does not allow that
      SCOPED_TRACE(fault + " in " + phase);
      launch({"-np", "2"}, {fault, phase, "1"});
      // That it does not come to hora::init is known when the others have waited in it for 5 s.
      const bool is_awaited = fault == "exit0" && phase == "init";
      expect_cause_soon(status, {"rank 1 (host "},
                        Seconds(one_node().limit + (is_awaited ? 5 : 0)));
    }
  }
}

TEST_F(TwoHosts, ARankThatIsKilledInAnyPhaseIsNamed) {
  for (const std::string phase : {"init", "negotiation", "data", "shutdown"}) {
    SCOPED_TRACE(phase);
    launch_on(two_hosts(), {"kill", phase, "3"});
    expect_cause_soon(137, {"rank 3 (host 127.0.0.2, pid ", "by signal 9 (SIGKILL)"},
                      Seconds(two_hosts().limit));
  }
}

TEST_F(FaultTest, ARankMayLeaveAfterShutdownWithAnyStatusAndThatIsTheJobs) {
  launch({"-np", "2"}, {"exit3", "end", "1"});
  expect_cause(3, {"rank 1 (host ", "exit status 3"});
}

TEST_F(FaultTest, AJobWithoutFaultSaysNothing) {
  for (const char* ranks : {"1", "2"}) {
    LaunchedJob& job = launch({"-np", ranks}, {"none", "-", "-"});
    EXPECT_EQ(job.wait(), 0) << transcript(job);
    EXPECT_EQ(job.complaints(), "");
  }
}

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
