#include "core/engine/waits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/core/engine/engine_fixture.h"
#include "tests/support/expect_error.h"
#include "tests/support/logged_lines.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using test::bytes;
using test::floats;
using test::LoggedLines;
using test::ThreadWorld;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

/// A world some of whose ranks are in shutdown(), the others not yet.
class PartlyDepartedWorld : public test::PartlyRunningWorld {
 public:
  /// `absent`: has not called it; `has_engine`: its engine runs all the same.
  PartlyDepartedWorld(std::vector<int> node_sizes, int absent, bool has_engine = true)
      : PartlyRunningWorld(std::move(node_sizes), settings(),
                           has_engine ? std::vector<int>{} : std::vector{absent}),
        absent_(absent) {
    for (int rank = 0; rank < size(); ++rank) {
      if (rank != absent) threads_.emplace_back([this, rank] { engine(rank).depart(); });
    }
  }
  static Settings settings() {
    Settings settings;
    settings.stall_warning = 300ms;
    return settings;
  }
  void depart_at_last() { engine(absent_).depart(); }
  /// Where that is not possible.
  void end() {
    for (int rank = 0; rank < size(); ++rank) {
      engine(rank).end_all(Error(ErrorCode::transport, "the test is over"));
    }
  }

 private:
  int absent_;
  std::vector<std::jthread> threads_;
};

TEST(Departures, WhoHasNotCalledShutdownIsNamedByTheLowestThatHas) {
  const LoggedLines lines;
  PartlyDepartedWorld world({3}, 0);
  EXPECT_TRUE(
      lines.await("s in shutdown() for ranks that have not called it: rank 0 is in its own "
                  "code, and has submitted nothing yet. Is one"));
  EXPECT_TRUE(lines.have("rank 1 has waited"));
  EXPECT_FALSE(lines.have("rank 2 has waited"));
  world.depart_at_last();
}

TEST(Departures, ItsOwnNodeAndTheLowestNodeSpeakOfARank) {
  const LoggedLines lines;
  PartlyDepartedWorld world({1, 1, 2}, 3);
  EXPECT_TRUE(
      lines.await("s in shutdown() for ranks that have not called it: rank 3 is in its own "
                  "code, and has submitted nothing yet. Is one"));
  EXPECT_TRUE(
      lines.await("s in shutdown() for ranks that have not called it, as far as this node "
                  "knows: rank 3. Is one"));
  EXPECT_TRUE(lines.have("rank 0 has waited"));
  EXPECT_TRUE(lines.have("rank 2 has waited"));
  EXPECT_FALSE(lines.have("rank 1 has waited"));
  world.depart_at_last();
}

TEST(Departures, WhereTheRootIsSilentEachNodeSaysWhatItKnows) {
  const LoggedLines lines;
  PartlyDepartedWorld world({2, 2}, 0, /*has_engine=*/false);
  EXPECT_TRUE(
      lines.await("as far as this node knows: rank 0 is in its own code, and has "
                  "submitted nothing yet; rank 2; rank 3. Is one"));
  EXPECT_TRUE(lines.await("as far as this node knows: rank 0; rank 1. Is one"));
  world.end();
}

/// A process that waits for its end.
class Child {
 public:
  Child() : pid_(::fork()) {
    while (pid_ == 0) ::pause();
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  pid_t pid() const { return pid_; }
  void stop() const {
    ::kill(pid_, SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }
  void go_on() const {
    ::kill(pid_, SIGCONT);
    ::waitpid(pid_, nullptr, WCONTINUED);
  }

 private:
  pid_t pid_;
};

/// Rank 0 of two on one host; the other one is a child process. HORA_TIMEOUT is 1 s, and 2 s more
/// are horarun's.
class StoppedRank : public testing::Test {
 protected:
  StoppedRank() {
    parts_.settings.timeout = 1s;
    parts_.processes = {{0, "a", ::getpid()}, {1, "a", child_.pid()}};
  }
  void depart() { parts_.world.control_block->status(0).departed.store(1); }

  const Child child_;
  ThreadWorld world_{{.node_sizes = {2}, .settings = {}, .engines = false}};
  EngineParts parts_ = world_.parts(0);
  Waits watch_{parts_.world, parts_, kWorld};
};

TEST_F(StoppedRank, EndsTheJobWhereThisOneWaitsInShutdown) {
  child_.stop();
  for (const auto time : {1s, 10s, 20s, 30s}) EXPECT_FALSE(watch_.stopped_rank(time));
  depart();
  for (const auto time : {100s, 101s, 102s}) EXPECT_FALSE(watch_.stopped_rank(time));
  const auto error = watch_.stopped_rank(103s);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::timeout);
  EXPECT_EQ(error->rank(), 1);
  EXPECT_THAT(error->what(), HasSubstr("rank 1 (host a, pid " + std::to_string(child_.pid()) +
                                       ") is stopped (SIGSTOP), and has been for 3.0 s while"));
}

TEST_F(StoppedRank, TimeInWhichItRunsDoesNotCount) {
  depart();
  for (int second = 1; second < 20; ++second) {
    if (second % 3 == 0) {
      child_.go_on();
    } else if (second % 3 == 1) {
      child_.stop();
    }
    EXPECT_FALSE(watch_.stopped_rank(std::chrono::seconds(second)));
  }
}

TEST_F(StoppedRank, TimeInWhichThisOneIsStoppedDoesNotCount) {
  depart();
  child_.stop();
  EXPECT_FALSE(watch_.stopped_rank(1s));
  EXPECT_FALSE(watch_.stopped_rank(1000s)) << "as if 2 s had passed";
  EXPECT_TRUE(watch_.stopped_rank(1001s));
}

TEST_F(StoppedRank, OfAnotherHostIsNotSeen) {
  depart();
  child_.stop();
  parts_.processes[1].host = "b";
  for (const auto time : {1s, 2s, 3s, 4s, 5s}) EXPECT_FALSE(watch_.stopped_rank(time));
}

TEST_F(StoppedRank, WithoutALimitMayStaySo) {
  depart();
  child_.stop();
  parts_.settings.timeout = 0s;
  for (const auto time : {1s, 2s, 3s, 4s, 5s}) EXPECT_FALSE(watch_.stopped_rank(time));
}

RankFacts facts(ProcessState state) {
  return {.process = {.rank = 3, .host = "b", .pid = 4711},
          .state = state,
          .submitted = SharedNote::Note{"f", 100s}};
}

TEST(RankStateText, TellsApartStoppedGoneBusyAndWaiting) {
  EXPECT_EQ(rank_state_text(facts(ProcessState::stopped), 112s),
            "rank 3 (host b, pid 4711) is stopped (SIGSTOP), and has last submitted tensor \"f\", "
            "12.0 s ago");
  EXPECT_THAT(rank_state_text(facts(ProcessState::traced), 112s), HasSubstr("by a debugger, and"));
  EXPECT_THAT(rank_state_text(facts(ProcessState::gone), 112s), HasSubstr("4711) has ended, and"));
  EXPECT_THAT(rank_state_text(facts(ProcessState::running), 112s),
              HasSubstr("runs its own code, and"));
  EXPECT_THAT(rank_state_text(facts(ProcessState::sleeping), 112s),
              HasSubstr("own code, asleep (it"));
  EXPECT_THAT(rank_state_text(facts(ProcessState::blocked), 112s), HasSubstr("inside the kernel"));
  EXPECT_THAT(rank_state_text(facts(ProcessState::unknown), 112s),
              HasSubstr("is in its own code, and"));
}

TEST(RankStateText, ARankThatWaitsInHoraSaysForWhat) {
  RankFacts waits = facts(ProcessState::sleeping);
  waits.waits_for = SharedNote::Note{"f", 101s};
  EXPECT_THAT(rank_state_text(waits, 112s),
              HasSubstr(" waits in hora for tensor \"f\", for 11.0 s,"));
  waits.state = ProcessState::stopped;
  EXPECT_THAT(rank_state_text(waits, 112s), HasSubstr(" is stopped (SIGSTOP)"));
}

TEST(RankStateText, LeavesOutWhatIsNotKnown) {
  EXPECT_EQ(rank_state_text({.process = {.rank = 3}}, 112s),
            "rank 3 is in its own code, and has submitted nothing yet");
  EXPECT_THAT(rank_state_text({.process = {.rank = 3, .host = "b"}}, 1s),
              HasSubstr("rank 3 (host b)"));
}

TEST(RemarksText, NamesTheFirstOfMany) {
  EXPECT_EQ(remarks_text({}), "");
  const std::vector<std::string> nine(9, "r");
  EXPECT_EQ(remarks_text(std::span(nine).first(2)), "r; r");
  EXPECT_EQ(remarks_text(std::span(nine).first(8)), "r; r; r; r; r; r; r; r");
  EXPECT_EQ(remarks_text(nine), "r; r; r; r; r; r; r; r; and 1 more ranks");
}

TEST(TimeLimit, IsTheCallsOrTheSettings) {
  EXPECT_EQ(TimeLimit::of(0ms, 600s).length, 600s);
  EXPECT_FALSE(TimeLimit::of(0ms, 600s).is_of_call);
  EXPECT_EQ(TimeLimit::of(5ms, 600s).length, 5ms);
  EXPECT_TRUE(TimeLimit::of(5ms, 0ms).is_of_call);
  EXPECT_EQ(TimeLimit::of(std::chrono::milliseconds::max(), 600s).length, 0ms);
}

TEST(TimeLimit, EndsAfterItsLengthOrNever) {
  EXPECT_EQ(TimeLimit::of(5ms, 600s).end(7s), 7s + 5ms);
  EXPECT_EQ(TimeLimit::of(0ms, 0ms).end(7s), Duration::max());
  const auto longest = std::chrono::milliseconds::max() - 1ms;
  EXPECT_EQ(TimeLimit::of(longest, 600s).end(7s), Duration::max()) << "beyond the clock";
  EXPECT_LT(TimeLimit::of(24h, 600s).end(Duration(300LL * 24h)), Duration::max());
}

TEST(TimeLimit, ThoseWhoKnowLessLeaveALittleTimeToTheOthers) {
  EXPECT_EQ(report_order(true, true), 0);
  EXPECT_EQ(report_order(false, true), 1);
  EXPECT_EQ(report_order(false, false), 2);
  EXPECT_EQ(TimeLimit::of(0ms, 60s).end(7s, 2), 69s);
  EXPECT_EQ(TimeLimit::of(0ms, 160ms).end(7s, 1), 7s + 260ms);
  EXPECT_EQ(TimeLimit::of(0ms, 0ms).end(7s, 2), Duration::max());
}

TEST(TimeLimit, TheRootIsToldALittleBeforeItsEnd) {
  EXPECT_EQ(TimeLimit::of(0ms, 60s).notice(7s), 65s);
  EXPECT_EQ(TimeLimit::of(0ms, 160ms).notice(7s), 7s + 120ms);
  EXPECT_EQ(TimeLimit::of(0ms, 0ms).notice(7s), Duration::max());
  EXPECT_EQ(TimeLimit::of(0ms, 60s).expiry(7s, 65s + 100us), (Expiry{60s, 2s, false}));
  EXPECT_EQ(TimeLimit::of(160ms, 60s).expiry(7s, 8s), (Expiry{160ms, 0ms, true})) << "late";
}

WaitReport one() {
  return {.name = "g", .set = kWorld, .limit = {600s, false}, .rank = 1, .root = 0, .reporter = 1};
}

TEST(TimeoutText, NamesWhoLacksIt) {
  WaitReport timed_out = one();
  timed_out.missing = {2, 4};
  EXPECT_EQ(timeout_text(timed_out),
            "ranks 2, 4 did not come to tensor \"g\" within 600 s of rank 1. Do all ranks call the "
            "same collectives? Is one of them slow, stopped or "
            "gone? Where a rank may work alone for longer (a validation, a checkpoint), raise "
            "HORA_TIMEOUT (0: never), or give the call a timeout");
  timed_out.set = ProcessSet(3);
  timed_out.limit = {250ms, true};
  EXPECT_THAT(timeout_text(timed_out), HasSubstr("tensor \"g\" of process set 3 within 250 ms of"));
  EXPECT_THAT(timeout_text(timed_out),
              EndsWith("raise the timeout of this call (0: HORA_TIMEOUT)"));
}

TEST(TimeoutText, SaysWhatIsNotKnownAndWhoKnows) {
  WaitReport timed_out = one();
  timed_out.unknown = {0};
  EXPECT_THAT(timeout_text(timed_out),
              HasSubstr("it: whether rank 0 has is not known on this one: see the warnings of rank "
                        "0 (HORA_STALL_WARNING). Do all"));
  timed_out.missing = {3};
  timed_out.reporter = 0;
  timed_out.unknown = {2};
  EXPECT_THAT(timeout_text(timed_out),
              HasSubstr("rank 1, and whether rank 2 has is not known on this one: nothing has come "
                        "from their nodes. Do all"));
}

TEST(TimeoutText, HasTheFirstRemarks) {
  WaitReport timed_out = one();
  timed_out.missing = {2};
  timed_out.remarks = {"rank 2 sleeps"};
  EXPECT_THAT(timeout_text(timed_out), HasSubstr("of rank 1; rank 2 sleeps. Do all"));
  timed_out.remarks = {"rank 2 (host a, pid 7) sleeps"};
  EXPECT_THAT(timeout_text(timed_out),
              StartsWith("rank 2 (host a, pid 7) did not come to tensor \"g\" within 600 s of rank "
                         "1; it sleeps. Do all"));
  timed_out.remarks.assign(10, "x");
  EXPECT_THAT(timeout_text(timed_out),
              HasSubstr("1; x; x; x; x; x; x; x; x; and 2 more ranks. Do"));
}

TEST(TimeoutText, WhereAllHaveSubmittedItNamesTheRootOrWhoHasNotFinished) {
  WaitReport timed_out = one();
  EXPECT_THAT(timeout_text(timed_out),
              HasSubstr("every rank has submitted it, and rank 0 has not decided it. Do all"));
  timed_out.decided = true;
  EXPECT_THAT(timeout_text(timed_out), HasSubstr("its result is about to be taken over. Is one"));
  timed_out.unfinished = {2, 3};
  EXPECT_THAT(timeout_text(timed_out),
              HasSubstr("it is under way: of this node ranks 2, 3 have not finished it. Is one"));
  timed_out.has_other_nodes = true;
  EXPECT_THAT(timeout_text(timed_out),
              HasSubstr("not finished it, and data of other nodes may be missing. Is one"));
}

TEST(TimeoutText, NoNameForgesALine) {
  WaitReport timed_out = one();
  timed_out.name = "x\nhora critical: \x1b[2J";
  EXPECT_THAT(timeout_text(timed_out), StartsWith("tensor \"x\\nhora critical: \\x1b[2J\" is"));
}

class PartlyStoppedWorld : public test::PartlyRunningWorld {
 public:
  PartlyStoppedWorld(std::vector<int> node_sizes, const std::vector<int>& stopped,
                     std::chrono::milliseconds stall_warning = 200ms)
      : PartlyRunningWorld(std::move(node_sizes), settings(stall_warning), stopped) {}
  ~PartlyStoppedWorld() { stop(); }
  static Settings settings(std::chrono::milliseconds stall_warning) {
    Settings settings;
    settings.stall_warning = stall_warning;
    settings.timeout = 0ms;
    return settings;
  }
  /// Leaves the collective open.
  void submit(int rank, const std::string& name) {
    auto& values = values_.emplace_back(8, 1.0F);
    open_.push_back(engine(rank).submit(name, floats(8), bytes(values)));
  }

 private:
  std::deque<std::vector<float>> values_;
  std::vector<std::shared_ptr<Operation>> open_;
};

TEST(Stalls, TheRootSaysWhatIsKnownOfThoseThatLackIt) {
  const LoggedLines lines;
  PartlyStoppedWorld world({2, 2}, {});
  world.submit(3, "f");
  for (const int rank : {0, 1, 2}) world.submit(rank, "g");
  EXPECT_TRUE(
      lines.await("tensor \"g\" is waited for by ranks 0-2 and has not been submitted "
                  "by ranks 3"));
  EXPECT_TRUE(lines.await("rank 3 is in its own code, and has last submitted tensor \"f\", "))
      << "on another node than the root";
}

TEST(Stalls, WhereTheRootIsSilentEachNodeSpeaksForItself) {
  const LoggedLines lines;
  PartlyStoppedWorld world({2, 2}, {0});
  for (const int rank : {1, 2, 3}) world.submit(rank, "g");
  EXPECT_TRUE(
      lines.await("s after rank 1 has submitted it: whether ranks 0, 2, 3 have is not "
                  "known on this one: rank 0, which would know, does not answer; rank "
                  "0 is in its own code, and has submitted nothing yet"));
  EXPECT_TRUE(
      lines.await("s after rank 2 has submitted it: whether ranks 0, 1 have is not "
                  "known on this one: rank 0, which would know, does not answer"));
  EXPECT_FALSE(lines.have("s after rank 3 has submitted it")) << "one of a node is enough";
}

TEST(Stalls, OfWhatIsDecidedTheLowestRankThatWaitsNamesWhoDoesNotGoOn) {
  const LoggedLines lines;
  PartlyStoppedWorld world({4}, {2});
  for (const int rank : {0, 1, 2, 3}) world.submit(rank, "g");
  EXPECT_TRUE(
      lines.await("s after rank 0 has submitted it: every rank has submitted it, and "
                  "it is under way: of this node rank 2 has not finished it; rank 2 "
                  "is in its own code, and has last submitted tensor \"g\""));
  std::this_thread::sleep_for(1s);
  EXPECT_FALSE(lines.have("s after rank 1 has submitted it"));
  EXPECT_FALSE(lines.have("s after rank 3 has submitted it"));
}

TEST(Stalls, OfASleeperThatIsDecidedElsewhereOtherNodesAreBlamed) {
  const LoggedLines lines;
  PartlyStoppedWorld world({1, 2}, {2});
  for (const int rank : {0, 1, 2}) world.submit(rank, "g");
  EXPECT_TRUE(lines.await("of this node rank 2 has not finished it"));
}

TEST(Stalls, WithNothingToSayNothingIsSaid) {
  const LoggedLines lines;
  // Rounds that take longer in all, and each much less.
  PartlyStoppedWorld world({2, 1}, {}, 1s);
  for (int i = 0; i < 30; ++i) {
    std::vector<std::vector<float>> own(3, std::vector<float>(8, 1.0F));
    std::vector<std::jthread> threads;  // join before the values go
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        world.engine(rank).submit_and_wait("g", floats(8),
                                           bytes(own[static_cast<std::size_t>(rank)]));
      });
    }
    std::this_thread::sleep_for(50ms);
  }
  EXPECT_FALSE(lines.have("has submitted it"));
  EXPECT_FALSE(lines.have("is waited for by"));
}

TEST(Stalls, WhoHasNotJoinedIsNamedOnceNothingHappensAnyMore) {
  const LoggedLines lines;
  PartlyStoppedWorld world({3}, {});
  std::vector<std::jthread> threads;
  for (const int rank : {0, 1})
    threads.emplace_back([&, rank] { world.engine(rank).join(kWorld); });
  EXPECT_TRUE(
      lines.await("s in join() for ranks that have not called it: rank 2 is in its own code, "
                  "and has submitted nothing yet. Is one of them"));
  EXPECT_FALSE(lines.have("rank 1 has waited")) << "one of a node is enough";
  world.engine(2).join(kWorld);
}

TEST(Stalls, WhileOneGoesOnTheOthersWaitInJoinInSilence) {
  const LoggedLines lines;
  PartlyStoppedWorld world({3}, {}, 1s);
  std::vector<std::jthread> threads;
  for (const int rank : {0, 1})
    threads.emplace_back([&, rank] { world.engine(rank).join(kWorld); });
  std::vector<float> values(8, 1.0F);
  for (int i = 0; i < 30; ++i) {
    world.engine(2).submit_and_wait("g", floats(8), bytes(values));
    std::this_thread::sleep_for(50ms);
  }
  EXPECT_FALSE(lines.have("in join() for ranks"));
  world.engine(2).join(kWorld);
}

TEST(Stalls, ATimeoutSaysWhatIsKnownOfThem) {
  PartlyStoppedWorld world({2}, {});
  world.submit(1, "f");
  std::vector<float> values(8, 1.0F);
  Request request{"g", floats(8), bytes(values)};
  request.timeout = 300ms;
  const Error error = test::expect_error(
      ErrorCode::timeout, [&] { world.engine(0).submit_and_wait(std::move(request)); });
  EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1 did not come to tensor \"g\" within 300 ms of "
                                            "rank 0; rank 1 is in its own code, and has last "
                                            "submitted tensor \"f\", "),
                                  HasSubstr(" s ago. Do all")));
}

}  // namespace
}  // namespace hora::internal
