// Promise 2: who hangs is named, and the job ends. With limits of some seconds in place of minutes,
// which steps keep to on a machine that is busy otherwise.
#include <string>
#include <tuple>
#include <vector>

#include "core/launch/text.h"
#include "tests/faults/fault_test.h"

namespace hora::launch::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

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
                      HasSubstr(" did not come to tensor \"step5\" within 5 s"),
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
                         testing::Values(std::tuple(one_node(), 3), std::tuple(virtual_nodes(), 0),
                                         std::tuple(two_hosts(), 0), std::tuple(two_hosts(), 3)),
                         name_of_hang);

TEST_P(Hang, AStoppedRankIsNamedWhileDataMovesAndTheJobEnds) {
  LaunchedJob& job = hang("stop", "data", {"--timeout", "5s"});
  const auto status = job.wait(Seconds(30));
  ASSERT_TRUE(status) << transcript(job);
  EXPECT_NE(*status, 0);
  // Stopped before the data was complete, or after: then the last line begins with it as well.
  EXPECT_FALSE(job.error_lines("horarun: rank " + number() + " (host ").empty()) << transcript(job);
  EXPECT_EQ(job.error_lines("is stopped (SIGSTOP or SIGTSTP)").size(), 1) << transcript(job);
}

TEST_P(Hang, ARankInItsOwnCodeAndASkippedTensorAreNamed) {
  for (const char* fault : {"spin", "skip"}) {
    hang(fault, "negotiation", {"--stall-warning", "1s", "--timeout", "5s"});
    expect_awaited();
  }
}

TEST_P(Hang, WhoDoesNotCallInitIsNamedAndTheJobEnds) {
  LaunchedJob& job = hang("spin", "init", {"--stall-warning", "1s", "--init-timeout", "5s"});
  const std::string late = "horarun: rank " + number() + " (host ";
  ASSERT_TRUE(job.wait_for(late, 1, Seconds(20))) << transcript(job);
  EXPECT_THAT(job.error_lines(late).front(), HasSubstr("has not called hora::init"));
  EXPECT_EQ(job.wait(Seconds(25)), 1) << transcript(job);
  EXPECT_THAT(job.error_lines(late).back(), HasSubstr("longer than HORA_INIT_TIMEOUT allows, 5 s"));
}

TEST_P(Hang, ARankThatIsStoppedInPlaceOfShutdownIsNamedAndTheJobEnds) {
  LaunchedJob& job = hang("stop", "shutdown", {"--timeout", "5s"});
  EXPECT_EQ(job.wait(Seconds(25)), 1) << transcript(job);
  const auto lines = job.error_lines("horarun: rank " + number() + " (host ");
  ASSERT_EQ(lines.size(), 2U) << transcript(job);
  EXPECT_THAT(lines[0], HasSubstr("is stopped (SIGSTOP or SIGTSTP); the others wait"));
  EXPECT_THAT(lines[1], HasSubstr("other ranks wait in shutdown(): "));
  EXPECT_THAT(lines[1], HasSubstr("longer than HORA_TIMEOUT allows, 5 s"));
}

TEST_P(Hang, ARankThatRunsOnWhileOthersAreInShutdownIsNamedAndLeftAlone) {
  LaunchedJob& job = hang("spin", "shutdown", {"--stall-warning", "1s", "--timeout", "5s"});
  const std::string known = " runs its own code, and has last submitted tensor \"step19\"";
  ASSERT_TRUE(job.wait_for(known, 1, Seconds(25))) << transcript(job);
  const std::string line = job.error_lines(known).front();
  EXPECT_THAT(line, HasSubstr("s in shutdown() for ranks that have not called it"));
  EXPECT_THAT(line, HasSubstr(": rank " + number() + " (host ")) << "and no other";
  EXPECT_FALSE(job.wait(Seconds(7))) << "longer than HORA_TIMEOUT\n" << transcript(job);
  interrupt(Seconds(10));
}

TEST_F(FaultTest, UnderMpirunARankThatIsStoppedInPlaceOfShutdownIsNamedAndTheJobEnds) {
  const internal::test::TemporaryFolder segments;  // mpirun leaves those of ranks that it kills
  std::vector<std::string> arguments = split_words(HORA_MPIRUN_FLAGS).value();
  arguments.insert(arguments.end(), {"-n", "3", FAULT_RANK, "stop", "shutdown", "1"});
  const std::string folder = segments.path().string();
  LaunchedJob& job =
      start({.arguments = arguments,
             .environment = {"HORA_TIMEOUT=5s", "HORA_RANKS_PER_NODE=2", "PRTE_ALLOW_RUN_AS_ROOT=1",
                             "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                             "OMPI_MCA_btl_vader_backing_directory=" + folder,
                             "OMPI_MCA_btl_sm_backing_directory=" + folder},
             .launcher = HORA_MPIRUN});
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

TEST_F(TwoHosts, ARankThatIsStoppedInInitIsNamedAndTheJobEnds) {
  std::vector<std::string> arguments = two_hosts().arguments;
  arguments.insert(arguments.end(), {"--init-timeout", "5s"});
  LaunchedJob& job = launch(arguments, {"stop", "init", "3"});
  EXPECT_EQ(job.wait(Seconds(30)), 1) << transcript(job);
  const auto lines = job.error_lines("horarun: rank 3 (host 127.0.0.2");
  ASSERT_EQ(lines.size(), 2U) << transcript(job);
  EXPECT_THAT(lines[0], HasSubstr("is stopped (SIGSTOP or SIGTSTP)"));
  EXPECT_THAT(lines[1], HasSubstr("has not called hora::init"));
}

}  // namespace
}  // namespace hora::launch::test
