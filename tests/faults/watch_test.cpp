// Tests what horarun --watch shows of jobs that run.
#include <signal.h>

#include "tests/faults/fault_test.h"

namespace hora::launch::test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::vector<std::string> watched(const Layout& layout) {
  std::vector<std::string> arguments = layout.arguments;
  arguments.insert(arguments.end(), {"--watch", "--watch-interval", "1"});
  return arguments;
}

class Watch : public OnLayouts {};
INSTANTIATE_TEST_SUITE_P(Layouts, Watch, testing::Values(one_node(), virtual_nodes(), two_hosts()),
                         name_of);

TEST_P(Watch, NamesTheRankForWhichTheOthersWait) {
  LaunchedJob& job = launch(watched(GetParam()), {"late", "-", "2", "0"});
  ASSERT_TRUE(job.wait_for("horarun: ")) << transcript(job);
  const std::string name = "most often last: rank 2 (host ";
  EXPECT_TRUE(job.wait_for(name, 2)) << transcript(job);
  const auto lines = job.error_lines(name);
  ASSERT_THAT(lines, Not(IsEmpty())) << transcript(job);
  EXPECT_THAT(lines.back(), HasSubstr(": step "));
  EXPECT_THAT(lines.back(), HasSubstr(" decisions"));
  EXPECT_THAT(lines.back(), HasSubstr(", mostly in \"training\""));
  ::kill(job.launcher(), SIGINT);
  EXPECT_EQ(job.wait(), 128 + SIGINT) << transcript(job);
}

class WatchOfOneNode : public FaultTest {};

TEST_F(WatchOfOneNode, SaysThatARankIsStopped) {
  LaunchedJob& job = launch(watched(one_node()), {"stop", "negotiation", "1", "0"});
  EXPECT_TRUE(job.wait_for("; stopped: rank 1")) << transcript(job);
  ::kill(job.launcher(), SIGINT);
  EXPECT_EQ(job.wait(), 128 + SIGINT) << transcript(job);
}

TEST_F(WatchOfOneNode, AJobThatIsNotWatchedSaysNothing) {
  LaunchedJob& job = launch({"-np", "2"}, {"late", "-", "1", "50"});
  ASSERT_EQ(job.wait(), 0) << transcript(job);
  EXPECT_EQ(job.complaints(), "");
}

}  // namespace
}  // namespace hora::launch::test
