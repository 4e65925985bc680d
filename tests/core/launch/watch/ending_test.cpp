#include "core/launch/watch/ending.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/core/launch/watch/wait_status.h"

namespace hora::launch {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

RankEnded ended(int rank, int status, std::int64_t time = 0) {
  RankEnded result;
  result.rank = rank;
  result.pid = 4711;
  result.status = status;
  result.ended_ns = time;
  result.lived_ms = 12345;
  return result;
}
TEST(EndingText, OfASignal) {
  RankEnded rank = ended(3, SIGKILL);
  rank.phase = "epoch 2, step 7";
  rank.last_words = "loss 1.5\nloss 1.4";
  EXPECT_EQ(
      ending_text(rank, "b"),
      "rank 3 (host b, pid 4711) was killed by signal 9 (SIGKILL), 12.3 s after its start, in "
      "epoch 2, step 7; last words: loss 1.5 | loss 1.4");
}

TEST(EndingText, OfAnExitStatusWithItsCause) {
  RankEnded rank = ended(0, exited(3));
  rank.cause = "no such file: data\x1b[31m";
  EXPECT_EQ(ending_text(rank, "a"),
            "rank 0 (host a, pid 4711) ended with exit status 3, 12.3 s after its start; its first "
            "error: no such file: data[31m");
}

TEST(EndingText, HasWhatMainSaidOfTheErrorThatItCaught) {
  RankEnded rank = ended(2, exited(12));
  rank.cause = "an exception left the scope of hora's context";
  rank.last_words = "loss 1.5\ntrain: no data on rank 2";
  EXPECT_THAT(ending_text(rank, "a"), HasSubstr("context; last words: train: no data on rank 2"));
  rank.cause = "no data on rank 2";
  EXPECT_THAT(ending_text(rank, "a"), EndsWith("its first error: no data on rank 2"));
}

TEST(EndingText, OfAKillForLackOfMemory) {
  RankEnded rank = ended(3, SIGKILL);
  rank.out_of_memory = true;
  rank.last_words = "loss 1.5";
  EXPECT_EQ(
      ending_text(rank, "b"),
      "rank 3 (host b, pid 4711) was killed by signal 9 (SIGKILL), 12.3 s after its start; the "
      "kernel has killed it for lack of memory (oom_kill of its cgroup has grown): start fewer "
      "ranks on this host, or raise the limit (docker run --memory, sbatch --mem); last words: "
      "loss 1.5");
}

TEST(EndingText, OfAProgramThatCannotBeStarted) {
  RankEnded rank = ended(1, exited(127));
  rank.pid = 0;
  rank.failure = "./train: Permission denied";
  EXPECT_EQ(ending_text(rank, "a"),
            "rank 1 (host a) could not be started: ./train: Permission denied");
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

TEST(ExitStatus, IsAsAShellHasIt) {
  EXPECT_EQ(exit_status(ended(0, exited(3))), 3);
  EXPECT_EQ(exit_status(ended(0, SIGSEGV)), 139);
}

TEST(FirstCause, IsTheEarliestOfThoseThatFailed) {
  const std::vector<RankEnded> all{ended(0, exited(0), 1), ended(1, exited(1), 30),
                                   ended(2, exited(1), 20)};
  EXPECT_EQ(first_cause(all), 2U);
  EXPECT_EQ(first_cause(std::span(all).first(1)), std::nullopt);
}

TEST(FirstCause, WhatWasAskedToEndIsAConsequence) {
  std::vector<RankEnded> all{ended(0, SIGTERM, 1), ended(1, exited(143), 2),
                             ended(2, exited(3), 30)};
  all[0].asked_ns = all[1].asked_ns = 1;
  EXPECT_EQ(first_cause(all), 2U);
  EXPECT_TRUE(is_likely_consequence(all[0]));
  EXPECT_FALSE(is_likely_consequence(all[2]));
}

TEST(FirstCause, WhatEndsWithItsParentIsAConsequence) {
  std::vector<RankEnded> all{ended(0, SIGKILL, 1), ended(1, SIGPIPE, 2), ended(2, exited(3), 30)};
  all[0].failure = "MPI's process that started it has ended";
  EXPECT_TRUE(is_likely_consequence(all[0]));
  EXPECT_TRUE(is_likely_consequence(all[1]));
  EXPECT_EQ(first_cause(all), 2U);
}

// All end by the exception of one, which may outlive those that it has told.
TEST(FirstCause, WhoseExceptionItWasComesBeforeThoseThatWereTold) {
  std::vector<RankEnded> all{ended(0, SIGABRT, 1), ended(1, exited(1), 300), ended(2, SIGABRT, 2)};
  all[0].peer_failed = all[2].peer_failed = true;
  EXPECT_TRUE(is_likely_consequence(all[0]));
  EXPECT_EQ(first_cause(all), 1U);
}

// MPI ends the others as soon as the first of them has ended.
TEST(FirstCause, WhoFailedBeforeItWasAskedToEndComesBeforeThoseThatWereTold) {
  std::vector<RankEnded> all{ended(0, exited(10), 3), ended(1, SIGTERM, 4), ended(2, SIGTERM, 5)};
  for (RankEnded& each : all) each.cause = "no data on rank 2";
  all[0].peer_failed = all[1].peer_failed = true;
  all[2].cause_ns = 2;
  all[1].asked_ns = all[2].asked_ns = 4;
  EXPECT_EQ(first_cause(all), 2U);
  EXPECT_FALSE(is_likely_consequence(all[2]));
  all[2].cause_ns = 5;
  EXPECT_EQ(first_cause(all), 0U) << "the error of one that lacks its peers";
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

TEST(FirstCause, AKilledGuardComesBeforeThoseThatMissItsRank) {
  std::vector<RankEnded> all{ended(0, exited(1), 1), ended(1, SIGKILL, 2), ended(2, SIGKILL, 1),
                             ended(3, SIGABRT, 3)};
  all[0].peer_failed = all[1].guard_killed = true;
  all[1].failure = "its guard was killed";
  all[2].failure = "MPI's process that started it has ended";
  EXPECT_FALSE(is_likely_consequence(all[1]));
  EXPECT_EQ(first_cause(all), 1U);
}

TEST(FirstCause, AnErrorIsAsOldAsItsRecord) {
  std::vector<RankEnded> all{ended(0, exited(1), 10), ended(1, exited(1), 20)};
  all[0].cause_ns = 9;
  all[1].cause_ns = 5;
  EXPECT_EQ(first_cause(all), 1U);
}

TEST(FirstCause, WhoWroteToAPeerThatIsGoneComesAfterIt) {
  const std::vector<RankEnded> all{ended(0, SIGPIPE, 1), ended(1, exited(7), 3)};
  EXPECT_EQ(first_cause(all), 1U);
}

TEST(FirstCause, ASignalComesBeforeTheErrorsOfItsPeers) {
  const std::vector<RankEnded> all{ended(0, exited(1), 10), ended(1, SIGSEGV, 20)};
  EXPECT_EQ(first_cause(all), 1U);
}

TEST(FailedMpiInit, NamesTheComponentThatIsMissing) {
  const std::string failed = "It looks like MPI_INIT failed for some reason;\n";
  EXPECT_EQ(failed_mpi_init("Host:      vm\nFramework: pml\nComponent: nonexistent\n-\n" + failed),
            "; MPI did not start: it has no component \"nonexistent\" (--mca pml)");
  EXPECT_EQ(failed_mpi_init(failed), "; MPI did not start: --verbose shows why");
  EXPECT_EQ(failed_mpi_init("Framework: pml\nComponent: x\n"), "");
}

TEST(RankThatLeftBeforeInit, IsInOpenMpisParagraph) {
  const std::string text =
      "mpiexec has exited due to process rank 12 with PID 0 on\nnode b exiting improperly.";
  EXPECT_EQ(rank_that_left_before_init(text), 12);
  EXPECT_EQ(rank_that_left_before_init(text.substr(0, text.find("exiting"))), -1);
  EXPECT_EQ(rank_that_left_before_init("exiting improperly due to process rank x"), -1);
  EXPECT_EQ(rank_that_left_before_init(""), -1);
}

}  // namespace
}  // namespace hora::launch
