// Promises 2 and 3: who hangs, or is not heard from, is named, and the job ends. With limits of
// some seconds in place of minutes, which steps keep to on a machine that is busy otherwise.
#include <signal.h>

#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "core/launch/text.h"
#include "tests/faults/fault_test.h"

namespace hora::launch::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using Kind = JobProcess::Kind;

class Hang : public FaultTest, public testing::WithParamInterface<std::tuple<Layout, int>> {
 protected:
  void SetUp() override {
    if (!is_possible(std::get<0>(GetParam()))) GTEST_SKIP() << kNoHosts;
  }
  int rank() const { return std::get<1>(GetParam()); }
  std::string number() const { return std::to_string(rank()); }
  LaunchedJob& hang(const std::string& fault, const std::string& phase,
                    const std::vector<std::string>& limits) {
    std::vector<std::string> arguments = std::get<0>(GetParam()).arguments;
    arguments.insert(arguments.end(), limits.begin(), limits.end());
    return launch(arguments, {fault, phase, number()});
  }
  /// The job has failed by itself, and its last line begins with the rank that it waited for.
  void expect_awaited() {
    const auto status = job_->wait();
    ASSERT_TRUE(status) << transcript(*job_);
    EXPECT_NE(*status, 0) << transcript(*job_);
    EXPECT_THAT(job_->error_lines("horarun: ").back(),
                AllOf(StartsWith("horarun: rank " + number() + " (host "),
                      HasSubstr(" did not come to tensor \"step5\" within 3 s"),
                      HasSubstr(" ended the job, ")))
        << transcript(*job_);
    EXPECT_THAT(job_->error(), testing::Not(HasSubstr("host emulated-")))
        << "a host's own name, in place of horarun's";
  }
};
std::string name_of_hang(const testing::TestParamInfo<std::tuple<Layout, int>>& info) {
  return std::get<0>(info.param).name + "_rank_" + std::to_string(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Hang, Hang,
                         testing::Values(std::tuple(virtual_nodes(), 0),
                                         std::tuple(two_hosts(), 3)),
                         name_of_hang);

/// A rank that is stopped cannot tell the others of its host.
class StoppedRank : public Hang {};
INSTANTIATE_TEST_SUITE_P(Hang, StoppedRank,
                         testing::Values(std::tuple(one_node(), 3), std::tuple(virtual_nodes(), 0),
                                         std::tuple(two_hosts(), 0), std::tuple(two_hosts(), 3)),
                         name_of_hang);

TEST_P(StoppedRank, IsNamedWhileDataMovesAndTheJobEnds) {
  LaunchedJob& job = hang("stop", "data", {"--timeout", "3s"});
  const auto status = job.wait(Seconds(30));
  ASSERT_TRUE(status) << transcript(job);
  EXPECT_NE(*status, 0);
  // Stopped before the data was complete, or after: then the last line begins with it as well.
  EXPECT_FALSE(job.error_lines("horarun: rank " + number() + " (host ").empty()) << transcript(job);
  EXPECT_EQ(job.error_lines("is stopped (SIGSTOP or SIGTSTP)").size(), 1) << transcript(job);
}

TEST_P(Hang, ARankInItsOwnCodeAndASkippedTensorAreNamed) {
  for (const char* fault : {"spin", "skip"}) {
    hang(fault, "negotiation", {"--stall-warning", "1s", "--timeout", "3s"});
    expect_awaited();
  }
}

TEST_P(Hang, WhoDoesNotCallInitIsNamedAndTheJobEnds) {
  LaunchedJob& job = hang("spin", "init", {"--stall-warning", "1s", "--init-timeout", "3s"});
  const std::string late = "horarun: rank " + number() + " (host ";
  ASSERT_TRUE(job.wait_for(late, 1, Seconds(20))) << transcript(job);
  EXPECT_THAT(job.error_lines(late).front(), HasSubstr("has not called hora::init"));
  EXPECT_EQ(job.wait(Seconds(25)), 1) << transcript(job);
  EXPECT_THAT(job.error_lines(late).back(), HasSubstr("longer than HORA_INIT_TIMEOUT allows, 3 s"));
}

TEST_P(StoppedRank, InInitAndInPlaceOfShutdownIsNamedAndTheJobEnds) {
  for (const auto& [phase, limit, last] :
       {std::tuple("init", "--init-timeout", "has not called hora::init"),
        std::tuple("shutdown", "--timeout", "other ranks wait in shutdown(): ")}) {
    LaunchedJob& job = hang("stop", phase, {limit, "3s"});
    EXPECT_EQ(job.wait(Seconds(30)), 1) << transcript(job);
    const auto lines = job.error_lines("horarun: rank " + number() + " (host ");
    ASSERT_EQ(lines.size(), 2U) << transcript(job);
    EXPECT_THAT(lines[0], HasSubstr("is stopped (SIGSTOP or SIGTSTP); the others wait"));
    EXPECT_THAT(lines[1], HasSubstr(last));
    EXPECT_THAT(lines[1], HasSubstr("TIMEOUT allows, 3 s"));
  }
}

TEST_P(Hang, ARankThatRunsOnWhileOthersAreInShutdownIsNamedAndLeftAlone) {
  LaunchedJob& job = hang("spin", "shutdown", {"--stall-warning", "1s", "--timeout", "3s"});
  const std::string known = " runs its own code, and has last submitted tensor \"step19\"";
  ASSERT_TRUE(job.wait_for(known, 1, Seconds(25))) << transcript(job);
  const std::string line = job.error_lines(known).front();
  EXPECT_THAT(line, HasSubstr("s in shutdown() for ranks that have not called it"));
  EXPECT_THAT(line, HasSubstr(": rank " + number() + " (host ")) << "and no other";
  EXPECT_FALSE(job.wait(Seconds(5))) << "longer than HORA_TIMEOUT\n" << transcript(job);
  interrupt(Seconds(10));
}

TEST_F(FaultTest, UnderMpirunARankThatIsStoppedInPlaceOfShutdownIsNamedAndTheJobEnds) {
  std::vector<std::string> arguments = split_words(HORA_MPIRUN_FLAGS).value();
  arguments.insert(arguments.end(), {"-n", "3", FAULT_RANK, "stop", "shutdown", "1"});
  LaunchedJob& job = start_mpirun(arguments, "HORA_TIMEOUT=3s");
  const auto status = job.wait(Seconds(30));
  ASSERT_TRUE(status) << transcript(job);
  EXPECT_NE(*status, 0);
  const auto lines = job.error_lines("while other ranks wait for it in shutdown()");
  ASSERT_FALSE(lines.empty()) << transcript(job);
  EXPECT_THAT(lines.front(), AllOf(HasSubstr("rank 1 (host "),
                                   HasSubstr("is stopped (SIGSTOP), and has been for ")));
}

TEST_P(Hang, AWarningComesFirst) {
  LaunchedJob& job = hang("spin", "negotiation", {"--stall-warning", "1s"});
  ASSERT_TRUE(job.wait_for(": ready", 4)) << transcript(job);
  EXPECT_TRUE(job.wait_for("has not been submitted by ranks " + number(), 1, Seconds(20)))
      << transcript(job);
  interrupt(Seconds(10));
}

/// With the limits that a user has who sets none: takes more than a minute.
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

/// Promise 3: where one side is not heard from any more, everything ends within 35 s. Of one job a
/// host hangs, meanwhile of another one the launcher.
TEST_F(TwoHosts, AHostThatHangsIsNamedAndWithoutItsLauncherAJobEnds) {
  constexpr Seconds kLimit{36};  // and a second for a busy machine
  LaunchedJob& job = running();
  std::vector<std::string> arguments = two_hosts().arguments;
  arguments.insert(arguments.end(), {FAULT_RANK, "none", "-", "-", "0"});
  LaunchedJob other({arguments});
  ASSERT_TRUE(other.wait_for(": ready", 4)) << transcript(other);

  const auto begin = Clock::now();
  ::kill(other.launcher(), SIGSTOP);
  std::vector<pid_t> stopped;
  for (const JobProcess& process : job.processes()) {
    if (process.host != "127.0.0.2") continue;
    ::kill(process.pid, SIGSTOP);
    stopped.push_back(process.pid);
  }
  EXPECT_EQ(job.wait(kLimit), 69) << transcript(job);
  const auto ranks_here = job.processes();
  EXPECT_TRUE(std::ranges::none_of(ranks_here, [](const JobProcess& each) {
    return each.kind == Kind::rank && each.host != "127.0.0.2";
  })) << transcript(job);
  EXPECT_THAT(job.error(), HasSubstr("host 127.0.0.2 has not been heard from for 30 s"));
  EXPECT_THAT(job.error(), HasSubstr("its ranks: 2, 3"));
  // When it goes on, it ends what it runs.
  for (const pid_t process : stopped) ::kill(process, SIGCONT);
  EXPECT_TRUE(job.wait_for_no_process(Seconds(5))) << transcript(job);

  const auto only_launcher = [&] {
    const auto left = other.processes();
    return std::ranges::all_of(left, [](const auto& each) { return each.kind == Kind::launcher; });
  };
  while (Clock::now() < begin + kLimit && !only_launcher()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_TRUE(only_launcher()) << transcript(other);
  ::kill(other.launcher(), SIGCONT);
  EXPECT_EQ(other.wait(Seconds(10)), 69) << transcript(other);
  EXPECT_EQ(other.leftovers(), "") << transcript(other);
}

}  // namespace
}  // namespace hora::launch::test
