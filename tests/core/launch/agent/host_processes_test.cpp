#include "core/launch/agent/host_processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/launch/control/child_process.h"

namespace hora::launch {
namespace {

using internal::ProcessState;
using testing::ElementsAre;
using testing::Field;

TEST(DescendantsOf, AreFoundThroughEndedParents) {
  const std::vector<ProcessStat> all{
      {1, 0, ProcessState::sleeping, "init"},  {5, 1, ProcessState::sleeping, "other"},
      {2, 1, ProcessState::sleeping, "agent"}, {3, 2, ProcessState::gone, "ended"},
      {4, 3, ProcessState::running, "rank"},   {6, 4, ProcessState::stopped, "child"}};
  EXPECT_THAT(descendants_of(2, all),
              ElementsAre(Field(&ProcessStat::pid, 4), Field(&ProcessStat::pid, 6)));
}

TEST(DescendantsOf, AProcessThatIsItsOwnParentEndsTheSearch) {
  const std::vector<ProcessStat> all{{2, 2, ProcessState::sleeping, "loop"},
                                     {3, 2, ProcessState::sleeping, "child"}};
  EXPECT_THAT(descendants_of(2, all), ElementsAre(Field(&ProcessStat::pid, 3)));
}

TEST(DescendantsOf, ThisProcessHasThoseThatItStarted) {
  const auto child = start_child({.arguments = {"sleep", "100"}});
  ASSERT_TRUE(child);
  const auto descendants = descendants_of(::getpid());
  EXPECT_THAT(descendants, testing::Contains(Field(&ProcessStat::pid, *child)));
  ::kill(*child, SIGKILL);
  ::waitpid(*child, nullptr, 0);
}

TEST(KillDescendants, EndsThoseThatAreStoppedAndTheirChildren) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  Pipe pipe = make_pipe();
  // The pipe ends when both processes that hold it have ended.
  const auto child = start_child(
      {.arguments = {"sh", "-c", "sleep 100 & kill -STOP $$"}, .output = pipe.write.get()});
  ASSERT_TRUE(child);
  pipe.write.reset();
  kill_descendants(std::chrono::seconds(20));
  char byte = 0;
  EXPECT_EQ(::read(pipe.read.get(), &byte, 1), 0);
  EXPECT_THAT(descendants_of(::getpid()), testing::IsEmpty());
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

}  // namespace
}  // namespace hora::launch
