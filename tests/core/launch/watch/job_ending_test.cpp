#include "core/launch/watch/job_ending.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <vector>

#include "tests/core/launch/watch/wait_status.h"

namespace hora::launch {
namespace {

using testing::HasSubstr;
using testing::Not;

RankWaits nowhere(int rank) {
  RankWaits waits;
  waits.rank = rank;
  return waits;
}

RankWaits in_init(int rank) {
  RankWaits waits = nowhere(rank);
  waits.initializing = true;
  return waits;
}

RankWaits in_shutdown(int rank) {
  RankWaits waits = nowhere(rank);
  waits.in_shutdown = true;
  return waits;
}

/// A job of two ranks on hosts a and b, which have been started.
class JobEndingTest : public testing::Test {
 protected:
  JobEndingTest() {
    for (int rank = 0; rank < 2; ++rank) {
      RankStarted started;
      started.rank = rank;
      started.pid = 100 + rank;
      ending_.on_rank_started(started, rank == 0 ? "a" : "b");
    }
  }
  void end(int rank, int status, Moment now, bool asked = false, const std::string& words = {}) {
    RankEnded ended;
    ended.rank = rank;
    ended.pid = 100 + rank;
    ended.status = status;
    ended.asked_ns = asked ? 1 : 0;
    ended.last_words = words;
    ended.ended_ns = now.count();
    ending_.on_rank_ended(ended, rank == 0 ? "a" : "b", now);
  }

  const EndingLimits limits_;
  JobEnding ending_{2, limits_};
};

TEST_F(JobEndingTest, IsOverWhenRanksAndMpirunHaveEnded) {
  end(0, exited(0), Moment(100));
  EXPECT_FALSE(ending_.is_over(Moment(100)));
  end(1, exited(0), Moment(200));
  EXPECT_FALSE(ending_.is_over(Moment(200)));
  ending_.on_mpirun_ended(exited(0), Moment(300));
  EXPECT_TRUE(ending_.is_over(Moment(300)));
  EXPECT_FALSE(ending_.cause(Moment(60000)));
}

TEST_F(JobEndingTest, IsOverWithoutAnMpirunThatHangs) {
  for (int rank = 0; rank < 2; ++rank) end(rank, exited(0), Moment(100));
  EXPECT_FALSE(ending_.is_over(Moment(99) + limits_.mpirun_exit));
  EXPECT_TRUE(ending_.is_over(Moment(100) + limits_.mpirun_exit));
}

TEST_F(JobEndingTest, AFailureIsNoEndUntilItIsExplained) {
  end(0, exited(3), Moment(100));
  end(1, exited(0), Moment(100));
  ending_.on_mpirun_ended(exited(3), Moment(100));
  EXPECT_FALSE(ending_.is_over(Moment(60000)));
  const auto cause = ending_.cause(Moment(100));
  ASSERT_TRUE(cause) << "no more ranks are to come";
  EXPECT_EQ(cause->status, 3);
}

TEST_F(JobEndingTest, AnEarlierFailureIsAwaited) {
  end(1, exited(1), Moment(100));
  EXPECT_FALSE(ending_.cause(Moment(99) + limits_.gather));
  end(0, SIGKILL, Moment(200));
  const auto cause = ending_.cause(Moment(100) + limits_.gather);
  ASSERT_TRUE(cause);
  EXPECT_THAT(cause->text, HasSubstr("rank 0 (host a, pid 100) was killed by signal 9"));
  EXPECT_EQ(cause->status, 137);
}

TEST_F(JobEndingTest, AnMpiThatDidNotStartIsNamed) {
  ending_.on_output("\nFramework: pml\nComponent: none\nIt looks like MPI_INIT failed\n");
  end(1, exited(1), Moment(100));
  EXPECT_THAT(ending_.cause(Moment(100) + limits_.gather)->text,
              HasSubstr("ended with exit status 1, 0.0 s after its start; MPI did not start: "));
}

TEST_F(JobEndingTest, WhatFollowsFromAnotherEndIsAwaitedForLonger) {
  end(1, SIGTERM, Moment(100), true);
  EXPECT_FALSE(ending_.cause(Moment(99) + limits_.gather_consequences));
  const auto cause = ending_.cause(Moment(100) + limits_.gather_consequences);
  ASSERT_TRUE(cause);
  EXPECT_THAT(cause->text, HasSubstr("rank 1 (host b"));
}

TEST_F(JobEndingTest, AnMpirunThatAsksRanksToEndWithoutAReasonWasEndedItself) {
  RankEnded ended;
  ended.status = SIGTERM;
  ended.pid = 100;
  ended.asked_ns = 1;
  ended.asked_by_mpi = true;
  JobEnding after_output = ending_;
  for (JobEnding* each : {&ending_, &after_output}) each->on_rank_ended(ended, "a", Moment(100));
  const Moment later = Moment(100) + limits_.gather_consequences;
  ASSERT_TRUE(ending_.cause(later));
  EXPECT_EQ(
      ending_.cause(later)->text,
      "mpirun was ended by SIGTERM, SIGINT or SIGHUP: it told its ranks to end, none of which "
      "had failed");
  EXPECT_EQ(ending_.cause(later)->status, 143);
  ending_.on_output("a peer of rank 3 has disconnected");
  after_output.on_output("ORTE has lost communication with a remote daemon.");
  EXPECT_EQ(after_output.cause(later)->text,
            "mpirun told its ranks to end, none of which had failed:\nORTE has lost "
            "communication with a remote daemon.");
  EXPECT_EQ(after_output.cause(later)->status, 1);
}

TEST_F(JobEndingTest, AKilledDaemonIsTheCauseOfWhatFollows) {
  ending_.on_daemon_ended(SIGKILL, "b", "; its ranks: 1", Moment(100));
  ending_.on_mpirun_ended(exited(1), Moment(150));
  end(1, SIGKILL, Moment(200), true);
  const auto cause = ending_.cause(Moment(100) + limits_.gather);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->text,
            "host b: MPI's daemon there was killed by signal 9 (SIGKILL); its ranks: 1");
  EXPECT_EQ(cause->status, 137);
}

TEST_F(JobEndingTest, AKilledMpirunIsTheCauseOfRanksThatExitShortlyBeforeItIsKnown) {
  end(0, exited(1), Moment(100));
  end(1, exited(1), Moment(101));
  EXPECT_FALSE(ending_.cause(Moment(110))) << "mpirun's end is still to come";
  ending_.on_mpirun_ended(SIGKILL, Moment(150));
  const auto cause = ending_.cause(Moment(150) + limits_.gather);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->text, "mpirun was killed by signal 9 (SIGKILL)");
  EXPECT_EQ(cause->status, 137);
}

TEST_F(JobEndingTest, ARankThatASignalEndedBeforeMpirunWasKilledIsTheCause) {
  end(0, SIGSEGV, Moment(100));
  ending_.on_mpirun_ended(SIGKILL, Moment(150));
  const auto cause = ending_.cause(Moment(150) + limits_.gather);
  ASSERT_TRUE(cause);
  EXPECT_THAT(cause->text, HasSubstr("rank 0 (host a, pid 100) was killed by signal 11"));
}

TEST_F(JobEndingTest, ARankThatExitedLongBeforeMpirunWasKilledIsTheCause) {
  end(0, exited(3), Moment(100));
  ending_.on_mpirun_ended(SIGKILL, Moment(101) + limits_.gather);
  const auto cause = ending_.cause(Moment(101) + limits_.gather);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->status, 3);
}

TEST_F(JobEndingTest, ADaemonThatExitsIsNoCause) {
  ending_.on_daemon_ended(exited(1), "b", "", Moment(100));
  EXPECT_FALSE(ending_.cause(Moment(60000)));
}

TEST_F(JobEndingTest, AnMpirunThatEndsBeforeItsRanksHasFailed) {
  ending_.on_output("not for the user");
  ending_.on_mpirun_ended(exited(0), Moment(100));
  EXPECT_FALSE(ending_.cause(Moment(99) + limits_.gather_consequences));
  const auto cause = ending_.cause(Moment(100) + limits_.gather_consequences);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->text, "mpirun ended with exit status 0");
  EXPECT_EQ(cause->status, 1);
}

TEST_F(JobEndingTest, WhoLeftBeforeInitIsNamedWhereOthersStayInside) {
  ending_.on_rank_waits(in_init(0), Moment(50));
  end(1, exited(0), Moment(100), false, "bye");
  EXPECT_FALSE(ending_.cause(Moment(99) + limits_.init_alone));
  const auto cause = ending_.cause(Moment(100) + limits_.init_alone);
  ASSERT_TRUE(cause);
  EXPECT_THAT(cause->text, HasSubstr("rank 1 (host b, pid 101) ended with exit status 0"));
  EXPECT_THAT(cause->text, HasSubstr(", before it called hora::init, in which the others waited "
                                     "for it; last words: bye"));
  EXPECT_EQ(cause->status, 1);
  ending_.on_rank_waits(nowhere(0), Moment(150));
  EXPECT_FALSE(ending_.cause(Moment(60000)));
}

TEST_F(JobEndingTest, WhoIsLateForInitIsNamedAndEndsTheJobAtLast) {
  ending_.on_rank_waits(in_init(0), Moment(100));
  EXPECT_FALSE(ending_.late_for_init(Moment(99) + limits_.waits.init_warning));
  EXPECT_EQ(ending_.late_for_init(Moment(100) + limits_.waits.init_warning),
            "rank 1 (host b, pid 101) has not called hora::init, in which other ranks wait: 0");
  const Moment end = Moment(100) + limits_.waits.init + limits_.gather_consequences;
  EXPECT_FALSE(ending_.cause(end - Moment(1)));
  const auto cause = ending_.cause(end);
  ASSERT_TRUE(cause);
  EXPECT_THAT(cause->text, HasSubstr("wait: 0; longer than HORA_INIT_TIMEOUT allows, 300 s"));
  EXPECT_EQ(cause->status, 1);
}

TEST_F(JobEndingTest, WhoHasEndedIsNotLateForInit) {
  EndingLimits limits;
  limits.waits.init = Moment(1000);
  JobEnding ending(2, limits);
  RankStarted started;
  ending.on_rank_started(started, "a");
  ending.on_rank_waits(in_init(0), Moment(100));
  RankEnded ended;
  ended.rank = 1;
  ended.pid = 101;
  ending.on_rank_ended(ended, "b", Moment(200));
  EXPECT_FALSE(ending.late_for_init(Moment(60000)));
  EXPECT_FALSE(ending.cause(Moment(199) + limits.init_alone)) << "though that is longer";
  EXPECT_THAT(ending.cause(Moment(200) + limits.init_alone)->text, HasSubstr("before it called"));
}

TEST_F(JobEndingTest, AnInitOfAllThatDoesNotEndIsSaid) {
  for (int rank = 0; rank < 2; ++rank) ending_.on_rank_waits(in_init(rank), Moment(100));
  const auto text = ending_.late_for_init(Moment(100) + limits_.waits.init_warning);
  ASSERT_TRUE(text);
  EXPECT_THAT(*text, HasSubstr("every rank that runs is still inside hora::init"));
}

TEST_F(JobEndingTest, InitWithoutLimitsMayTakeAnyTime) {
  EndingLimits limits;
  limits.waits = {.init_warning = Moment(0), .init = Moment(0), .stopped = Moment(0)};
  JobEnding ending(1, limits);
  RankStarted started;
  ending.on_rank_started(started, "a");
  ending.on_rank_waits(in_init(0), Moment(100));
  EXPECT_FALSE(ending.late_for_init(Moment(10000000)));
  EXPECT_FALSE(ending.cause(Moment(10000000)));
}

TEST_F(JobEndingTest, WhoIsStoppedWhileOthersAreInShutdownEndsTheJob) {
  ending_.on_rank_stopped(1, true, Moment(100));
  EXPECT_FALSE(ending_.cause(Moment(500000))) << "nobody waits there";
  ending_.on_rank_waits(in_shutdown(0), Moment(500000));
  EXPECT_FALSE(ending_.cause(Moment(499999) + limits_.waits.stopped));
  const auto cause = ending_.cause(Moment(500000) + limits_.waits.stopped);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->text,
            "rank 1 (host b, pid 101) is stopped (SIGSTOP or SIGTSTP), and other ranks wait in "
            "shutdown(): 0; longer than HORA_TIMEOUT allows, 60 s");
  EXPECT_EQ(cause->status, 1);
}

TEST_F(JobEndingTest, WhoIsStoppedInShutdownItselfEndsTheJob) {
  for (int rank = 0; rank < 2; ++rank) ending_.on_rank_waits(in_shutdown(rank), Moment(100));
  ending_.on_rank_stopped(0, true, Moment(200));
  EXPECT_FALSE(ending_.cause(Moment(199) + limits_.waits.stopped));
  const auto cause = ending_.cause(Moment(200) + limits_.waits.stopped);
  ASSERT_TRUE(cause);
  EXPECT_THAT(cause->text, HasSubstr("rank 0 (host a, pid 100) is stopped"));
  EXPECT_THAT(cause->text, HasSubstr("wait in shutdown(): 1;"));
}

TEST_F(JobEndingTest, WhoRunsOnWhileOthersAreInShutdownMayTakeAnyTime) {
  ending_.on_rank_waits(in_shutdown(0), Moment(100));
  EXPECT_FALSE(ending_.cause(Moment(10000000)));
  ending_.on_rank_stopped(1, true, Moment(10000000));
  ending_.on_rank_stopped(1, false, Moment(10000100));
  EXPECT_FALSE(ending_.cause(Moment(20000000))) << "it runs again";
}

TEST_F(JobEndingTest, AJobThatWasStoppedAsAWholeGoesOn) {
  ending_.on_rank_waits(in_shutdown(0), Moment(100));
  for (int rank = 0; rank < 2; ++rank) ending_.on_rank_stopped(rank, true, Moment(200));
  EXPECT_FALSE(ending_.cause(Moment(10000000)));
  ending_.on_rank_stopped(0, false, Moment(10000000));
  EXPECT_FALSE(ending_.cause(Moment(10000001))) << "the other one may run again in a moment";
  ending_.on_rank_stopped(1, false, Moment(10000002));
  EXPECT_FALSE(ending_.cause(Moment(20000000)));
}

TEST_F(JobEndingTest, ShutdownWithoutALimitMayTakeAnyTime) {
  EndingLimits limits;
  limits.waits.stopped = Moment(0);
  JobEnding ending(2, limits);
  ending.on_rank_waits(in_shutdown(0), Moment(100));
  ending.on_rank_stopped(1, true, Moment(100));
  EXPECT_FALSE(ending.cause(Moment(10000000)));
}

TEST_F(JobEndingTest, OnlyTheEndOfALongOutputIsKept) {
  ending_.on_output("beginning");
  ending_.on_output(std::string(20000, 'x') + "end");
  EXPECT_THAT(ending_.output(), Not(HasSubstr("beginning")));
  EXPECT_TRUE(ending_.output().ends_with("end"));
}

using Assignments = std::vector<SettingAssignment>;

TEST(WaitLimits, AreTheSettingsDefaults) {
  const WaitLimits limits = wait_limits({}, {});
  EXPECT_EQ(limits.init_warning, Settings().stall_warning);
  EXPECT_EQ(limits.init, Settings().init_timeout);
  EXPECT_EQ(limits.stopped, Settings().timeout);
}

TEST(WaitLimits, FlagsComeBeforeTheEnvironment) {
  const Assignments flags{{"HORA_INIT_TIMEOUT", "7s"}, {"HORA_SPIN", "1us"}, {"HORA_TIMEOUT", "0"}};
  const Assignments environment{{"HORA_INIT_TIMEOUT", "9s"}, {"HORA_STALL_WARNING", "300ms"}};
  const WaitLimits limits = wait_limits(flags, environment);
  EXPECT_EQ(limits.init_warning, Moment(300));
  EXPECT_EQ(limits.init, Moment(7000));
  EXPECT_EQ(limits.stopped, Moment(0));
}

TEST(WaitLimits, WhatIsWrongIsTheRanksError) {
  const Assignments environment{{"HORA_INIT_TIMEOUT", "soon"}, {"HORA_STALL_WARNING", "2s"}};
  const WaitLimits limits = wait_limits({}, environment);
  EXPECT_EQ(limits.init_warning, Moment(2000));
  EXPECT_EQ(limits.init, Settings().init_timeout);
}

}  // namespace
}  // namespace hora::launch
