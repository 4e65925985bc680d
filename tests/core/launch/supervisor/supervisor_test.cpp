#include "core/launch/supervisor/supervisor.h"

#include <signal.h>

#include "tests/core/launch/supervisor/supervised_job.h"

namespace hora::launch {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class SupervisorTest : public test::SupervisedJob {};

TEST_F(SupervisorTest, WhoLeftForGoodWhileOthersAreInsideInitIsNamed) {
  start();
  RankWaits inside;
  inside.initializing = true;
  inside.rank = 0;
  message(0, inside);
  end(2, exited(0));
  pass(Moment(4500));
  EXPECT_THAT(said_, IsEmpty());
  pass(Moment(1000));
  ASSERT_EQ(said_.size(), 1U);
  EXPECT_THAT(said_[0], HasSubstr("rank 2 (host b, pid 102) ended with exit status 0"));
  EXPECT_THAT(said_[0], HasSubstr("before it called hora::init, in which the others waited"));
  lost(0);
  lost(1);
  EXPECT_EQ(finished_, 1);
}

TEST_F(SupervisorTest, RanksMayEndWithoutInitWhereNoneIsInside) {
  start();
  RankWaits inside;
  inside.initializing = true;
  inside.rank = 0;
  message(0, inside);
  inside.initializing = false;
  message(0, inside);
  end(2, exited(0));
  pass(Moment(9000));
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(SupervisorTest, NobodyWaitsForAStoppedRankThatIsTheOnlyOne) {
  JobPlan plan;
  plan.hosts = {{"a", 1, {"horarun", "--agent"}}};
  supervisor_.emplace(plan, now_);
  RankStopped stopped;
  stopped.stopped = true;
  message(0, stopped);
  pass(Moment(1100));
  EXPECT_THAT(said_, ElementsAre("rank 0 (host a) is stopped (SIGSTOP or SIGTSTP)"));
}

class NetworkCheck : public SupervisorTest {
 protected:
  /// The first check, whose hosts answer each other.
  NetworkCheck() {
    start();
    pass(Moment(100));
    try_networks();
    sent_.clear();
  }
  void wait_long() {
    RankOverdue overdue;
    overdue.rank = 1;
    overdue.overdue = true;
    message(0, overdue);
  }
  /// The next one: both agents answer, but not over the network, whose interfaces may be down.
  void check_cut_network(bool is_up = true) {
    pass(Moment(2500));
    tell_networks(is_up);
    for (std::size_t host = 0; host < 2; ++host)
      message(host, to_message(std::vector<ProbePair>()));
  }
};

TEST_F(NetworkCheck, ACutNetworkIsNamedWithItsHosts) {
  wait_long();
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(said_, IsEmpty());
    check_cut_network(/*is_up=*/i != 1);
  }
  EXPECT_THAT(said_, ElementsAre(HasSubstr("hosts a and b reach each other no more over the ranks' "
                                           "network: 10.77.0.0/24 (a: eth0, b: ens3)")));
  EXPECT_THAT(hosts_sent<EndAll>(), ElementsAre(0, 1));
}

TEST_F(NetworkCheck, IsMadeOnlyWhileRanksWaitLong) {
  pass(Moment(10000));
  EXPECT_THAT(hosts_sent<TellNetwork>(), IsEmpty());
}

TEST_F(NetworkCheck, OfAHostThatDoesNotAnswerOrAnswersAgainEndsNothing) {
  wait_long();
  check_cut_network(), check_cut_network();
  pass(Moment(2500));
  try_networks();
  check_cut_network(), check_cut_network();
  pass(Moment(9000));  // neither agent tells its network
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(SupervisorTest, EndsWithZeroWhenAllRanksEndedWell) {
  start();
  for (int rank = 0; rank < 4; ++rank) end(rank, exited(0));
  end_mpirun(exited(0));
  pass(Moment(100));
  EXPECT_THAT(hosts_sent<EndAll>(), ElementsAre(0, 1));
  lost(0);
  EXPECT_FALSE(finished_);
  lost(1);
  EXPECT_EQ(finished_, 0);
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(SupervisorTest, AnMpirunThatHangsAfterTheRanksIsEnded) {
  start();
  for (int rank = 0; rank < 4; ++rank) end(rank, exited(0));
  pass(Moment(4000));
  EXPECT_THAT(hosts_sent<EndAll>(), IsEmpty());
  pass(Moment(2000));
  EXPECT_THAT(hosts_sent<EndAll>(), ElementsAre(0, 1));
}

TEST_F(SupervisorTest, TheCulpritIsNamedOnceAndItsStatusReturned) {
  start();
  end(2, SIGKILL);
  end(3, SIGTERM, true);
  pass(Moment(400));
  EXPECT_THAT(said_, IsEmpty());
  pass(Moment(200));
  EXPECT_THAT(said_, ElementsAre(HasSubstr("rank 2 (host b, pid 102) was killed by signal 9")));
  EXPECT_EQ(last_end().signal, SIGTERM);
  end(0, exited(1));
  end(1, exited(1));
  end_mpirun(exited(137));
  lost(0, {.how = "it has closed the connection"});
  lost(1);
  EXPECT_EQ(said_.size(), 1U);
  EXPECT_EQ(finished_, 137);
}

TEST_F(SupervisorTest, WhereAllWereAskedToEndAnotherCauseIsAwaited) {
  start();
  end(0, SIGTERM, true);
  pass(Moment(1000));
  EXPECT_THAT(said_, IsEmpty());
  end(2, exited(5));
  pass(Moment(1000));
  EXPECT_THAT(said_, ElementsAre(HasSubstr("rank 2 (host b, pid 102) ended with exit status 5")));
}

TEST_F(SupervisorTest, AKilledMpirunIsTheCause) {
  start();
  for (int rank = 0; rank < 4; ++rank) end(rank, SIGTERM, true);
  end_mpirun(SIGKILL);
  pass(Moment(100));
  EXPECT_EQ(finished_, std::nullopt);
  pass(Moment(1000));
  EXPECT_THAT(said_, ElementsAre("mpirun was killed by signal 9 (SIGKILL)"));
  lost(0);
  lost(1);
  EXPECT_EQ(finished_, 137);
}

TEST_F(SupervisorTest, AKilledDaemonIsTheCause) {
  start();
  ProcessEnded daemon;
  daemon.process = 1;
  daemon.status = SIGKILL;
  message(1, daemon);
  pass(Moment(1000));
  EXPECT_THAT(said_, ElementsAre("host b: MPI's daemon there was killed by signal 9 (SIGKILL); its "
                                 "ranks: 2, 3"));
}

TEST_F(SupervisorTest, WhoLeftBeforeInitIsTheCauseOfWhatMpiEnds) {
  start();
  end(2, exited(0));
  ProcessOutput output;
  const std::string text =
      "mpiexec has exited due to process rank 2 with PID 0 on\nnode b exiting improperly.";
  output.bytes.assign(text.begin(), text.end());
  message(0, output);
  for (const int rank : {0, 1, 3}) end(rank, SIGTERM, true);
  end_mpirun(exited(1));
  pass(Moment(3000));
  EXPECT_THAT(said_, ElementsAre(HasSubstr("rank 2 (host b, pid 102) ended with exit status 0")));
  EXPECT_THAT(said_, ElementsAre(HasSubstr("before it called hora::init")));
}

TEST_F(SupervisorTest, AnMpirunThatCrashesAfterARankHasFailedIsNotTheCause) {
  start();
  end(1, exited(3));
  end_mpirun(SIGSEGV);
  pass(Moment(1000));
  EXPECT_THAT(said_, ElementsAre(HasSubstr("rank 1 (host a, pid 101) ended with exit status 3")));
}

TEST_F(SupervisorTest, ALostHostIsNamedWithItsRanks) {
  start();
  lost(1, {.how = "ssh ended with exit status 255: Connection reset"});
  EXPECT_THAT(said_, ElementsAre("host b: its agent has ended (ssh ended with exit status 255: "
                                 "Connection reset); its ranks: 2, 3"));
  lost(0);
  EXPECT_EQ(finished_, 69);
}

TEST_F(SupervisorTest, ASilentHostIsNamed) {
  start();
  heartbeats(Moment(60000));
  EXPECT_THAT(said_, IsEmpty());
  for (int i = 0; i < 8; ++i) {
    pass(Moment(4000));
    message(0, Heartbeat{});
  }
  ASSERT_EQ(said_.size(), 1U);
  EXPECT_THAT(said_[0], HasSubstr("host b has not been heard from for 30 s"));
  EXPECT_THAT(said_[0], HasSubstr("its ranks: 2, 3"));
  EXPECT_FALSE(finished_);
  lost(0);
  EXPECT_EQ(finished_, 69) << "a silent host is not waited for";
}

TEST_F(SupervisorTest, AnInterruptIsPassedOnAndASecondOneKills) {
  start();
  signal(SIGINT);
  EXPECT_EQ(last_end().signal, SIGINT);
  EXPECT_GT(last_end().grace_ms, 0U);
  end(0, SIGINT);
  pass(Moment(600));
  EXPECT_EQ(said_.size(), 1U);
  signal(SIGINT);
  EXPECT_EQ(last_end().grace_ms, 0U);
  lost(0);
  lost(1);
  EXPECT_EQ(finished_, 128 + SIGINT);
}

TEST_F(SupervisorTest, AgentsThatDoNotEndAreGivenUp) {
  start();
  signal(SIGINT);
  pass(Moment(12000));
  EXPECT_EQ(finished_, 128 + SIGINT);
}

TEST_F(SupervisorTest, ATerminationLeavesTimeToSave) {
  start();
  signal(SIGTERM);
  EXPECT_EQ(last_end().signal, SIGTERM);
  EXPECT_EQ(last_end().grace_ms, 30000U);
  EXPECT_THAT(said_, ElementsAre("ending the job after signal 15 (SIGTERM), within 30 s; a second "
                                 "one ends it at once"));
  heartbeats(Moment(35000));
  EXPECT_FALSE(finished_);
  heartbeats(Moment(5000));
  EXPECT_EQ(finished_, 128 + SIGTERM);
}

TEST_F(SupervisorTest, TheStatusWithWhichRanksLeaveAfterATerminationIsTheJobs) {
  start();
  signal(SIGTERM);
  for (int rank = 0; rank < 3; ++rank) leave(rank, exited(75));
  leave(3, SIGTERM);  // by MPI, after hora::shutdown
  lost(0);
  lost(1);
  EXPECT_EQ(finished_, 75);
  EXPECT_EQ(said_.size(), 1U);
}

TEST_F(SupervisorTest, RanksThatDoNotAgreeOnAStatusLeaveThatOfTheTermination) {
  start();
  signal(SIGTERM);
  for (int rank = 0; rank < 3; ++rank) leave(rank, exited(75));
  leave(3, exited(1));
  lost(0);
  lost(1);
  EXPECT_EQ(finished_, 128 + SIGTERM);
}

TEST_F(SupervisorTest, ARankThatIsKilledBeforeItLeavesSpoilsTheStatusOfTheOthers) {
  start();
  signal(SIGTERM);
  for (int rank = 0; rank < 3; ++rank) leave(rank, exited(75));
  end(3, SIGTERM, /*asked=*/true);
  lost(0);
  lost(1);
  EXPECT_EQ(finished_, 128 + SIGTERM);
}

TEST_F(SupervisorTest, UserSignalsReachAllRanksOnce) {
  start();
  sent_.clear();
  signal(SIGUSR1);
  ASSERT_THAT(hosts_sent<SignalRanks>(), ElementsAre(0, 1));
  EXPECT_EQ(std::get<SignalRanks>(sent_[0].message).except, -1);
  sent_.clear();
  RankSignalled signalled;
  signalled.rank = 3;
  signalled.number = SIGUSR2;
  message(1, signalled);
  ASSERT_THAT(hosts_sent<SignalRanks>(), ElementsAre(0, 1));
  EXPECT_EQ(std::get<SignalRanks>(sent_[0].message).except, 3);
  EXPECT_EQ(std::get<SignalRanks>(sent_[0].message).number, SIGUSR2);
}

TEST_F(SupervisorTest, AStoppedRankIsNamedOnce) {
  start();
  RankStopped stopped;
  stopped.rank = 1;
  stopped.stopped = true;
  message(0, stopped);
  pass(Moment(5000));
  EXPECT_THAT(said_, ElementsAre(HasSubstr("rank 1 (host a) is stopped")));
  stopped.stopped = false;
  message(0, stopped);
  EXPECT_THAT(said_.back(), HasSubstr("rank 1 runs again"));
}

TEST_F(SupervisorTest, AStoppedRankForWhichOthersWaitInShutdownIsTheCause) {
  start();
  RankWaits waits;
  waits.in_shutdown = true;
  waits.rank = 3;
  message(1, waits);
  RankStopped stopped;
  stopped.rank = 1;
  stopped.stopped = true;
  message(0, stopped);
  heartbeats(Moment(55000));
  EXPECT_THAT(said_, ElementsAre(HasSubstr("rank 1 (host a) is stopped")));
  heartbeats(Moment(10000));
  ASSERT_EQ(said_.size(), 2U);
  EXPECT_THAT(said_[1], HasSubstr("rank 1 (host a, pid 101) is stopped"));
  EXPECT_THAT(said_[1], HasSubstr("other ranks wait in shutdown(): 3;"));
  for (std::size_t host = 0; host < 2; ++host) lost(host);
  EXPECT_EQ(finished_, 1);
}

TEST_F(SupervisorTest, RanksOutOfRangeAreIgnored) {
  start();
  for (const int rank : {-1, 4, 1 << 30}) {
    end(rank < 0 ? 0 : 0, exited(0));
    RankStarted started;
    started.rank = rank;
    message(0, started);
    RankStopped stopped;
    stopped.rank = rank;
    message(0, stopped);
    RankEnded ended;
    ended.rank = rank;
    message(0, ended);
  }
  EXPECT_THAT(said_, IsEmpty());
}

}  // namespace
}  // namespace hora::launch
