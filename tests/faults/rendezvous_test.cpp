// Jobs without ssh: a horarun is started on each node, and they meet.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "tests/faults/fault_test.h"

namespace hora::launch::test {
namespace {

using testing::HasSubstr;

const std::string kToken = "the token of these tests";

class Meeting : public testing::Test {
 protected:
  void SetUp() override {
    if (!hosts_can_have_names()) GTEST_SKIP() << "needs root, for hosts with names of their own";
    ::chmod(folder_.path().c_str(), 0700);
  }
  void TearDown() override {
    for (const auto& node : nodes_) {
      EXPECT_EQ(node->leftovers(), "") << transcript(*node);
    }
  }

  /// Node `number` of two, of two ranks, of the job `id`.
  LaunchedJob& start(int number, const std::string& place, const std::vector<std::string>& program,
                     const std::vector<std::string>& environment = {"HORARUN_TOKEN=" + kToken},
                     const std::string& id = "job", std::vector<std::string> flags = {}) {
    std::vector<std::string> arguments = std::move(flags);
    const std::vector<std::string> more{
        "--rendezvous",     place, "--rendezvous-id", id,
        "--nnodes",         "2",   "--node-rank",     std::to_string(number),
        "--nproc-per-node", "2",   "--start-timeout", "15",
        FAULT_RANK};
    arguments.insert(arguments.end(), more.begin(), more.end());
    arguments.insert(arguments.end(), program.begin(), program.end());
    nodes_.push_back(std::make_unique<LaunchedJob>(
        JobOptions{arguments, environment, {}, "node" + std::to_string(number)}));
    return *nodes_.back();
  }
  /// Two that have met, and go on without end.
  std::pair<LaunchedJob&, LaunchedJob&> running() {
    LaunchedJob& first = start(0, in_folder(), {"none", "-", "-", "0"});
    LaunchedJob& other = start(1, in_folder(), {"none", "-", "-", "0"});
    EXPECT_TRUE(first.wait_for(": ready", 4)) << transcript(first);
    return {first, other};
  }
  std::string in_folder() const { return "file://" + folder_.path().string(); }

  internal::test::TemporaryFolder folder_;
  std::vector<std::unique_ptr<LaunchedJob>> nodes_;
};

TEST_F(Meeting, RunsAJobOnAllNodes) {
  LaunchedJob& other = start(1, in_folder(), {"none", "-", "-"});
  LaunchedJob& first = start(0, in_folder(), {"none", "-", "-"});
  EXPECT_EQ(first.wait(), 0) << transcript(first);
  EXPECT_EQ(other.wait(), 0) << transcript(other);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(first.output(), HasSubstr("rank " + std::to_string(rank) + ": ready"));
  }
  EXPECT_EQ(other.output(), "");
}

TEST_F(Meeting, JobsInOneFolderAreToldApartByTheirIds) {
  // Both nodes 1 wait before a node 0 comes; the jobs do not compete for this machine's cores.
  std::map<std::string, LaunchedJob*> others;
  for (const char* const id : {"a", "b"}) {
    others[id] = &start(1, in_folder(), {"none", "-", "-"}, {"HORARUN_TOKEN=" + kToken}, id);
  }
  for (const char* const id : {"b", "a"}) {
    LaunchedJob& first = start(0, in_folder(), {"none", "-", "-"}, {"HORARUN_TOKEN=" + kToken}, id);
    EXPECT_EQ(first.wait(), 0) << transcript(first);
    EXPECT_EQ(others[id]->wait(), 0) << transcript(*others[id]);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(Meeting, AStopWhileANodeWaitsLeavesNothing) {
  LaunchedJob& first = start(0, in_folder(), {"none", "-", "-"});
  ASSERT_TRUE(first.wait_for(" waits for ")) << transcript(first);
  ::kill(first.launcher(), SIGINT);
  EXPECT_EQ(first.wait(Seconds(5)), 130) << transcript(first);
  EXPECT_THAT(first.error(), HasSubstr("node 0 was stopped during the rendezvous"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(Meeting, TheLossOfARankOrANodeEndsAllNodesAndIsNamed) {
  struct Case {
    int lost;  ///< node; -1: rank 3
    std::vector<std::string> of_first, of_other;
    int status;
  };
  const std::vector<Case> cases{
      {-1,
       {"rank 3 (host node1, pid "},
       {"the job has ended with exit status 137; node 0 (node0)"},
       137},
      {1, {"host node1: its agent has ended", "its ranks: 2, 3"}, {}, 69},
      {0, {}, {"the ranks of this node were ended: node 0 (node0) is gone"}, 69}};
  for (const Case& each : cases) {
    auto [first, other] = running();
    LaunchedJob* const nodes[] = {&first, &other};
    ::kill(each.lost < 0 ? other.rank(3) : nodes[each.lost]->launcher(), SIGKILL);
    for (const int node : {0, 1}) {
      LaunchedJob& job = *nodes[node];
      const bool is_lost = node == each.lost;
      EXPECT_EQ(job.wait(Seconds(10)), is_lost ? 137 : each.status) << transcript(job);
      EXPECT_TRUE(job.wait_for_no_process(Seconds(5))) << transcript(job);
      for (const std::string& text : node == 0 ? each.of_first : each.of_other) {
        EXPECT_THAT(job.error(), HasSubstr(text));
      }
    }
    EXPECT_TRUE(each.lost != 0 || other.error().find("says why") == std::string::npos);
  }
}

TEST_F(Meeting, AnElasticJobGoesOnWithoutARankAndThenWithoutANode) {
  const auto begin = [&](int node) -> LaunchedJob& {
    return start(node, in_folder(), {"none", "-", "-", "0"},
                 {"HORARUN_TOKEN=" + kToken, "FAULTS_PROGRESS=" + folder_.file("step")}, "job",
                 {"--elastic", "--min-np", "2"});
  };
  LaunchedJob &first = begin(0), &other = begin(1);
  ASSERT_TRUE(first.wait_for(": ready", 4)) << transcript(first);
  ::kill(other.rank(3), SIGKILL);
  ASSERT_TRUE(first.wait_for("; 4 ranks on node0, node1 go on at step ")) << transcript(first);
  ::kill(other.launcher(), SIGTERM);
  ASSERT_TRUE(first.wait_for("node1 is to be used no more; 2 ranks on node0 go on at step "))
      << transcript(first);
  EXPECT_EQ(other.wait(Seconds(5)), 0) << transcript(other);
  ::kill(first.launcher(), SIGINT);
  EXPECT_EQ(first.wait(Seconds(10)), 130) << transcript(first);
}

TEST_F(Meeting, AWrongTokenIsRefused) {
  const std::string place = "tcp://127.0.0.1:" + std::to_string(20000 + ::getpid() % 10000);
  LaunchedJob& first = start(0, place, {"none", "-", "-"}, {"HORARUN_TOKEN=0123456789abcdef"});
  LaunchedJob& other = start(1, place, {"none", "-", "-"}, {"HORARUN_TOKEN=fedcba9876543210"});
  EXPECT_NE(other.wait(Seconds(20)).value_or(0), 0) << transcript(other);
  EXPECT_THAT(other.error(), HasSubstr("token"));
  EXPECT_NE(first.wait(Seconds(20)).value_or(0), 0) << transcript(first);
  EXPECT_THAT(first.error(), HasSubstr("node 0 refused a connection from 127.0.0.1"));
  EXPECT_THAT(first.error(), HasSubstr("with the same --rendezvous? Refused last: a connection"));
  EXPECT_THAT(first.output(), testing::Not(HasSubstr("ready")));
}

}  // namespace
}  // namespace hora::launch::test
