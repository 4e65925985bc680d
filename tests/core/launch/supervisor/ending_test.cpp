#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "core/flight/flight_recorder.h"
#include "core/launch/guard/guard.h"
#include "core/launch/supervisor/supervisor.h"

namespace hora::launch {
namespace {

using testing::HasSubstr;
using testing::Not;

/// The status of a process that has ended by exit(`status`), as waitpid(2) gives it.
constexpr int exited(int status) {
  return status << 8;
}

RankEnded ended(int rank, int status, std::int64_t time = 0) {
  RankEnded result;
  result.rank = rank;
  result.pid = 4711;
  result.status = status;
  result.ended_ns = time;
  result.lived_ms = 12345;
  return result;
}

/// ended() with changes.
template <class Change>
RankEnded changed(int rank, int status, const Change& change) {
  RankEnded result = ended(rank, status);
  change(result);
  return result;
}

TEST(EndingText, SaysHowARankEndedAndWhatItHasSaid) {
  const std::vector<std::pair<RankEnded, std::string>> cases{
      {changed(3, SIGKILL,
               [](auto& rank) {
                 rank.phase = "epoch 2, step 7";
                 rank.last_words = "loss 1.5\nloss 1.4";
               }),
       "rank 3 (host b, pid 4711) was killed by signal 9 (SIGKILL), 12.3 s after its start, in "
       "epoch 2, step 7; last words: loss 1.5 | loss 1.4"},
      {changed(0, exited(3), [](auto& rank) { rank.cause = "no such file: data\x1b[31m"; }),
       "rank 0 (host b, pid 4711) ended with exit status 3, 12.3 s after its start; its first "
       "error: no such file: data[31m"},
      // main() has said more of the error that it caught.
      {changed(2, exited(12),
               [](auto& rank) {
                 rank.cause = "an exception left the scope";
                 rank.last_words = "loss 1.5\ntrain: no data on rank 2";
               }),
       "rank 2 (host b, pid 4711) ended with exit status 12, 12.3 s after its start; its first "
       "error: an exception left the scope; last words: train: no data on rank 2"},
      {changed(2, exited(12),
               [](auto& rank) {
                 rank.cause = "no data on rank 2";
                 rank.last_words = "loss 1.5\ntrain: no data on rank 2";
               }),
       "rank 2 (host b, pid 4711) ended with exit status 12, 12.3 s after its start; its first "
       "error: no data on rank 2"},
      {changed(3, SIGKILL,
               [](auto& rank) {
                 rank.out_of_memory = true;
                 rank.last_words = "loss 1.5";
               }),
       "rank 3 (host b, pid 4711) was killed by signal 9 (SIGKILL), 12.3 s after its start; the "
       "kernel has killed it for lack of memory (oom_kill of its cgroup has grown): start fewer "
       "ranks on this host, or raise the limit (docker run --memory, sbatch --mem); last words: "
       "loss 1.5"},
      {changed(1, exited(127),
               [](auto& rank) {
                 rank.pid = 0;
                 rank.failure = "./train: Permission denied";
               }),
       "rank 1 (host b) could not be started: ./train: Permission denied"}};
  for (const auto& [rank, text] : cases) EXPECT_EQ(ending_text(rank, "b"), text);
}

TEST(EndedWell, NeedsAShutdownWhereThereWasAnInit) {
  RankEnded rank = ended(1, exited(0));
  EXPECT_TRUE(ended_well(rank));
  rank.initialized = true;
  EXPECT_FALSE(ended_well(rank));
  EXPECT_EQ(exit_status(rank), 1);
  EXPECT_THAT(ending_text(rank, "a"), HasSubstr("without hora::shutdown"));
  rank.cause = "HORA_CHUNK_SIZE=x";
  EXPECT_EQ(
      ending_text(rank, "a"),
      "rank 1 (host a, pid 4711) ended with exit status 0, 12.3 s after its start, after hora "
      "had failed; its first error: HORA_CHUNK_SIZE=x")
      << "on all ranks, of which none waits";
  rank.shut_down = true;
  EXPECT_TRUE(ended_well(rank));
  EXPECT_EQ(exit_status(rank), 0);
  EXPECT_FALSE(ended_well(ended(1, exited(2))));
  EXPECT_FALSE(ended_well(ended(1, SIGSEGV)));
}

/// ended() with a time and changes.
template <class Change>
RankEnded at(std::int64_t time, RankEnded result, const Change& change) {
  result.ended_ns = time;
  change(result);
  return result;
}

TEST(FirstCause, IsTheEarliestThatFollowsFromNoOther) {
  const auto told = [](RankEnded& each) { each.peer_failed = true; };
  const auto asked = [](RankEnded& each) { each.asked_ns = 4; };
  const auto by_parent = [](RankEnded& each) { each.failure = "MPI's process has ended"; };
  const auto by_guard = [](RankEnded& each) {
    each.failure = "its guard was killed";
    each.guard_killed = true;
  };
  const auto error_at = [](std::int64_t time, std::int64_t asked_at = 0) {
    return [=](RankEnded& each) {
      each.cause = "no data on rank 2";
      each.cause_ns = time;
      each.asked_ns = asked_at;
    };
  };
  struct Case {
    std::vector<RankEnded> ended;
    std::optional<std::size_t> first;
    bool is_consequence = false;  ///< the first
  };
  const std::vector<Case> cases{
      {{ended(0, exited(0), 1), ended(1, exited(1), 30), ended(2, exited(1), 20)}, 2},
      {{ended(0, exited(0), 1)}, std::nullopt},
      {{at(1, ended(0, SIGTERM), asked), at(2, ended(1, exited(143)), asked),
        ended(2, exited(3), 30)},
       2},
      {{at(1, ended(0, SIGTERM), asked)}, 0, true},
      {{at(1, ended(0, SIGKILL), by_parent), ended(1, SIGPIPE, 2), ended(2, exited(3), 30)}, 2},
      {{ended(1, SIGPIPE, 2)}, 0, true},
      // All end by the exception of one, which may outlive those that it has told.
      {{at(1, ended(0, SIGABRT), told), ended(1, exited(1), 300), at(2, ended(2, SIGABRT), told)},
       1},
      // MPI ends the others as soon as the first of them has ended.
      {{at(3, ended(0, exited(10)), told), at(5, ended(2, SIGTERM), error_at(2, 4))}, 1},
      {{at(3, ended(0, exited(10)), told), at(5, ended(2, SIGTERM), error_at(5, 4))}, 0, true},
      {{at(1, ended(0, exited(1)), told), at(2, ended(1, SIGKILL), by_guard),
        at(1, ended(2, SIGKILL), by_parent), ended(3, SIGABRT, 3)},
       1},
      // An error is as old as its record; a signal comes before errors.
      {{at(10, ended(0, exited(1)), error_at(9)), at(20, ended(1, exited(1)), error_at(5))}, 1},
      {{at(10, ended(0, exited(1)), error_at(9)), at(20, ended(1, exited(1)), error_at(10))}, 0},
      {{at(10, ended(0, exited(1)), error_at(9)), at(20, ended(1, SIGSEGV), error_at(10))}, 1},
      {{at(10, ended(0, exited(1)), error_at(9)), at(20, ended(1, SIGPIPE), error_at(10))}, 0}};
  for (const Case& each : cases) {
    const std::string name = fmt::format("case {}", &each - cases.data());
    EXPECT_EQ(first_cause(each.ended), each.first) << name;
    if (each.first) {
      EXPECT_EQ(is_likely_consequence(each.ended[*each.first]), each.is_consequence) << name;
    }
  }
}

TEST(FirstCauseText, BeginsWithTheRankThatOthersHaveWaitedFor) {
  std::vector<RankEnded> all{ended(0, SIGTERM), ended(1, SIGABRT), ended(2, SIGABRT),
                             ended(3, SIGABRT)};
  for (RankEnded& each : all) {
    each.peer_failed = true;
    each.cause = "rank 0 (host a, pid 4) did not come to tensor \"x\" within 60 s";
  }
  all[0].asked_ns = 7;
  all[3].phase = "epoch 2";
  EXPECT_EQ(first_cause_text(all, all[3], "a"),
            "rank 0 (host a, pid 4) did not come to tensor \"x\" within 60 s; ranks 1-3 ended the "
            "job, 12.3 s after its start, in epoch 2");
  EXPECT_EQ(first_cause_text(all, ended(2, exited(3)), "a"), ending_text(ended(2, exited(3)), "a"));
}

RankSeen seen(int rank, internal::RecordState state) {
  RankSeen seen;
  seen.rank = rank;
  seen.state = static_cast<std::uint8_t>(state);
  return seen;
}

RankSeen in_init(int rank) {
  return seen(rank, internal::RecordState::starting);
}

RankSeen in_shutdown(int rank) {
  return seen(rank, internal::RecordState::in_shutdown);
}

/// A job of two ranks on hosts a and b, which have been started.
class JobEndingTest : public testing::Test {
 protected:
  JobEndingTest() {
    for (int rank = 0; rank < 2; ++rank) {
      ending_.on_rank_started(RankStarted{{}, rank, 100 + rank}, rank == 0 ? "a" : "b");
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

  /// The cause that is known at that time, and not before.
  EndCause cause_at(Moment time) const {
    EXPECT_FALSE(ending_.cause(time - Moment(1)));
    return ending_.cause(time).value_or(EndCause{"none", -1});
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
  end(0, SIGKILL, Moment(200));
  const EndCause cause = cause_at(Moment(100) + limits_.gather);
  EXPECT_THAT(cause.text, HasSubstr("rank 0 (host a, pid 100) was killed by signal 9"));
  EXPECT_EQ(cause.status, 137);
}

TEST_F(JobEndingTest, AnMpiThatDidNotStartIsNamed) {
  ending_.on_output("\nFramework: pml\nComponent: none\nIt looks like MPI_INIT failed\n");
  end(1, exited(1), Moment(100));
  EXPECT_THAT(ending_.cause(Moment(100) + limits_.gather)->text,
              HasSubstr("ended with exit status 1, 0.0 s after its start; MPI did not start: "));
}

TEST_F(JobEndingTest, WhatFollowsFromAnotherEndIsAwaitedForLonger) {
  end(1, SIGTERM, Moment(100), true);
  const EndCause cause = cause_at(Moment(100) + limits_.gather_consequences);
  EXPECT_THAT(cause.text, HasSubstr("rank 1 (host b"));
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

  // The signal finds the rank gone with what had started it.
  ended.asked_by_mpi = false;
  ended.asked_ns = 0;
  ended.status = SIGKILL;
  ended.failure = "MPI's process that started it has ended";
  JobEnding by_parent(2, limits_);
  by_parent.on_rank_ended(ended, "a", Moment(100));
  EXPECT_EQ(by_parent.cause(later)->status, 143);
  by_parent.on_output("mpirun noticed that process rank 0 exited on signal 9 (Killed).");
  EXPECT_THAT(by_parent.cause(later)->text, HasSubstr("was ended: MPI's process"));
}

TEST_F(JobEndingTest, AKilledDaemonIsTheCauseOfWhatFollows) {
  ending_.on_daemon_ended(SIGKILL, "b", "; its ranks: 1", Moment(100));
  ending_.on_mpirun_ended(exited(1), Moment(150));
  end(1, SIGKILL, Moment(200), true);
  const EndCause cause = cause_at(Moment(100) + limits_.gather);
  EXPECT_EQ(cause.text,
            "host b: MPI's daemon there was killed by signal 9 (SIGKILL); its ranks: 1");
  EXPECT_EQ(cause.status, 137);
  JobEnding other(2, limits_);
  other.on_daemon_ended(exited(1), "b", "", Moment(100));
  EXPECT_FALSE(other.cause(Moment(60000))) << "one that exits is no cause";
}

TEST_F(JobEndingTest, AKilledMpirunIsTheCauseOfRanksThatExitShortlyBeforeItIsKnown) {
  end(0, exited(1), Moment(100));
  end(1, exited(1), Moment(101));
  EXPECT_FALSE(ending_.cause(Moment(110))) << "mpirun's end is still to come";
  ending_.on_mpirun_ended(SIGKILL, Moment(150));
  const EndCause cause = cause_at(Moment(150) + limits_.gather);
  EXPECT_EQ(cause.text, "mpirun was killed by signal 9 (SIGKILL)");
  EXPECT_EQ(cause.status, 137);
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

TEST_F(JobEndingTest, AnMpirunThatEndsBeforeItsRanksHasFailed) {
  ending_.on_output("not for the user");
  ending_.on_mpirun_ended(exited(0), Moment(100));
  const EndCause cause = cause_at(Moment(100) + limits_.gather_consequences);
  EXPECT_EQ(cause.text, "mpirun ended with exit status 0");
  EXPECT_EQ(cause.status, 1);
}

TEST_F(JobEndingTest, WhoLeftBeforeInitIsNamedWhereOthersStayInside) {
  ending_.on_rank_seen(in_init(0), Moment(50));
  end(1, exited(0), Moment(100), false, "bye");
  const EndCause cause = cause_at(Moment(100) + limits_.init_alone);
  EXPECT_THAT(cause.text, HasSubstr("rank 1 (host b, pid 101) ended with exit status 0"));
  EXPECT_THAT(cause.text, HasSubstr(", before it called hora::init, in which the others waited "
                                    "for it; last words: bye"));
  EXPECT_EQ(cause.status, 1);
  ending_.on_rank_seen(seen(0, internal::RecordState::initialised), Moment(150));
  EXPECT_FALSE(ending_.cause(Moment(60000)));
}

TEST_F(JobEndingTest, WhoLeftBeforeInitIsTheCauseOfWhatMpiEnds) {
  end(1, exited(0), Moment(100));
  ending_.on_output(
      "mpirun has exited due to process rank 1 with PID 0 on\nnode b exiting improperly.");
  end(0, SIGTERM, Moment(200), true);
  const EndCause cause = cause_at(Moment(200) + limits_.gather_consequences);
  EXPECT_THAT(cause.text, HasSubstr("rank 1 (host b, pid 101) ended with exit status 0"));
  EXPECT_THAT(cause.text, HasSubstr("before it called hora::init"));
}

TEST_F(JobEndingTest, WhoIsLateForInitIsNamedAndEndsTheJobAtLast) {
  ending_.on_rank_seen(in_init(0), Moment(100));
  EXPECT_FALSE(ending_.late_for_init(Moment(99) + limits_.waits.init_warning));
  EXPECT_EQ(ending_.late_for_init(Moment(100) + limits_.waits.init_warning),
            "rank 1 (host b, pid 101) has not called hora::init, in which other ranks wait: 0");
  const EndCause cause = cause_at(Moment(100) + limits_.waits.init + limits_.gather_consequences);
  EXPECT_THAT(cause.text, HasSubstr("wait: 0; longer than HORA_INIT_TIMEOUT allows, 300 s"));
  EXPECT_EQ(cause.status, 1);
}

TEST_F(JobEndingTest, WhoHasEndedIsNotLateForInit) {
  EndingLimits limits;
  limits.waits.init = Moment(1000);
  JobEnding ending(2, limits);
  ending.on_rank_started(RankStarted{}, "a");
  ending.on_rank_seen(in_init(0), Moment(100));
  RankEnded ended;
  ended.rank = 1;
  ended.pid = 101;
  ending.on_rank_ended(ended, "b", Moment(200));
  EXPECT_FALSE(ending.late_for_init(Moment(60000)));
  EXPECT_FALSE(ending.cause(Moment(199) + limits.init_alone)) << "though that is longer";
  EXPECT_THAT(ending.cause(Moment(200) + limits.init_alone)->text, HasSubstr("before it called"));
}

TEST_F(JobEndingTest, AnInitOfAllThatDoesNotEndIsSaid) {
  for (int rank = 0; rank < 2; ++rank) ending_.on_rank_seen(in_init(rank), Moment(100));
  const auto text = ending_.late_for_init(Moment(100) + limits_.waits.init_warning);
  ASSERT_TRUE(text);
  EXPECT_THAT(*text, HasSubstr("every rank that runs is still inside hora::init"));
}

TEST_F(JobEndingTest, WithoutLimitsInitAndShutdownMayTakeAnyTime) {
  EndingLimits limits;
  limits.waits = {.init_warning = Moment(0), .init = Moment(0), .stopped = Moment(0)};
  JobEnding ending(1, limits);
  ending.on_rank_started(RankStarted{}, "a");
  ending.on_rank_seen(in_init(0), Moment(100));
  EXPECT_FALSE(ending.late_for_init(Moment(10000000)));
  EXPECT_FALSE(ending.cause(Moment(10000000)));
  JobEnding in_the_end(2, limits);
  in_the_end.on_rank_seen(in_shutdown(0), Moment(100));
  in_the_end.on_rank_stopped(1, true, Moment(100));
  EXPECT_FALSE(in_the_end.cause(Moment(10000000)));
}

TEST_F(JobEndingTest, WhoIsStoppedWhileOthersAreInShutdownEndsTheJob) {
  ending_.on_rank_stopped(1, true, Moment(100));
  EXPECT_FALSE(ending_.cause(Moment(500000))) << "nobody waits there";
  ending_.on_rank_seen(in_shutdown(0), Moment(500000));
  const EndCause cause = cause_at(Moment(500000) + limits_.waits.stopped);
  EXPECT_EQ(cause.text,
            "rank 1 (host b, pid 101) is stopped (SIGSTOP or SIGTSTP), and other ranks wait in "
            "shutdown(): 0; longer than HORA_TIMEOUT allows, 60 s");
  EXPECT_EQ(cause.status, 1);
}

TEST_F(JobEndingTest, WhoIsStoppedInShutdownItselfEndsTheJob) {
  for (int rank = 0; rank < 2; ++rank) ending_.on_rank_seen(in_shutdown(rank), Moment(100));
  ending_.on_rank_stopped(0, true, Moment(200));
  const EndCause cause = cause_at(Moment(200) + limits_.waits.stopped);
  EXPECT_THAT(cause.text, HasSubstr("rank 0 (host a, pid 100) is stopped"));
  EXPECT_THAT(cause.text, HasSubstr("wait in shutdown(): 1;"));
}

TEST_F(JobEndingTest, WhoRunsOnWhileOthersAreInShutdownMayTakeAnyTime) {
  ending_.on_rank_seen(in_shutdown(0), Moment(100));
  EXPECT_FALSE(ending_.cause(Moment(10000000)));
  ending_.on_rank_stopped(1, true, Moment(10000000));
  ending_.on_rank_stopped(1, false, Moment(10000100));
  EXPECT_FALSE(ending_.cause(Moment(20000000))) << "it runs again";
}

TEST_F(JobEndingTest, AJobThatWasStoppedAsAWholeGoesOn) {
  ending_.on_rank_seen(in_shutdown(0), Moment(100));
  for (int rank = 0; rank < 2; ++rank) ending_.on_rank_stopped(rank, true, Moment(200));
  EXPECT_FALSE(ending_.cause(Moment(10000000)));
  ending_.on_rank_stopped(0, false, Moment(10000000));
  EXPECT_FALSE(ending_.cause(Moment(10000001))) << "the other one may run again in a moment";
  ending_.on_rank_stopped(1, false, Moment(10000002));
  EXPECT_FALSE(ending_.cause(Moment(20000000)));
}

TEST_F(JobEndingTest, OnlyTheEndOfALongOutputIsKept) {
  ending_.on_output("beginning");
  ending_.on_output(std::string(20000, 'x') + "end");
  EXPECT_THAT(ending_.output(), Not(HasSubstr("beginning")));
  EXPECT_TRUE(ending_.output().ends_with("end"));
}

}  // namespace
}  // namespace hora::launch
