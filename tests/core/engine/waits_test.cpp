#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/engine/set_engine.h"
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
using testing::HasSubstr;

/// A world some of whose ranks are in shutdown(), the others not yet.
class PartlyDepartedWorld : public test::PartlyRunningWorld {
 public:
  /// `absent`: has not called it; its engine runs all the same.
  PartlyDepartedWorld(std::vector<int> node_sizes, int absent)
      : PartlyRunningWorld(std::move(node_sizes), settings()), absent_(absent) {
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

 private:
  int absent_;
  std::vector<std::jthread> threads_;
};

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

TEST_F(StoppedRank, TimeInWhichThisOneIsStoppedDoesNotCount) {
  depart();
  child_.stop();
  EXPECT_FALSE(watch_.stopped_rank(1s));
  EXPECT_FALSE(watch_.stopped_rank(1000s)) << "as if 2 s had passed";
  EXPECT_TRUE(watch_.stopped_rank(1001s));
}

TEST(RankStateText, TellsApartStoppedGoneBusyAndWaiting) {
  const SharedNote::Note f{"f", 100s};
  const auto text = [&](ProcessState state, std::optional<SharedNote::Note> waits_for = {}) {
    return rank_state_text({3, "b", 4711}, state, f, waits_for, 112s);
  };
  EXPECT_EQ(text(ProcessState::stopped),
            "rank 3 (host b, pid 4711) is stopped (SIGSTOP), and has last submitted tensor \"f\", "
            "12.0 s ago");
  EXPECT_THAT(text(ProcessState::traced), HasSubstr("by a debugger, and"));
  EXPECT_THAT(text(ProcessState::gone), HasSubstr("4711) has ended, and"));
  EXPECT_THAT(text(ProcessState::running), HasSubstr("runs its own code, and"));
  EXPECT_THAT(text(ProcessState::sleeping), HasSubstr("own code, asleep (it"));
  EXPECT_THAT(text(ProcessState::blocked), HasSubstr("inside the kernel"));
  EXPECT_THAT(text(ProcessState::sleeping, SharedNote::Note{"g", 101s, ProcessSet(2)}),
              HasSubstr(" waits in hora for tensor \"g\" of process set 2, for 11.0 s, and"));
  EXPECT_THAT(text(ProcessState::stopped, f), HasSubstr(" is stopped (SIGSTOP), and"));
  EXPECT_EQ(rank_state_text({.rank = 3}, ProcessState::unknown, {}, {}, 112s),
            "rank 3 is in its own code, and has submitted nothing yet");
}

TEST(TimeLimit, EndsAfterItsLengthOrNever) {
  const auto never = std::chrono::milliseconds::max();
  EXPECT_EQ(TimeLimit::of(5ms, 600s).end(7s), 7s + 5ms);
  EXPECT_EQ(TimeLimit::of(0ms, 600s).end(7s), 607s);
  EXPECT_EQ(TimeLimit::of(0ms, 0ms).end(7s), Duration::max());
  EXPECT_EQ(TimeLimit::of(never, 600s).end(7s), Duration::max());
  EXPECT_EQ(TimeLimit::of(never - 1ms, 600s).end(7s), Duration::max()) << "beyond the clock";
  EXPECT_LT(TimeLimit::of(24h, 600s).end(Duration(300LL * 24h)), Duration::max());
  EXPECT_EQ(TimeLimit::of(0ms, 60s).end(7s, 2), 69s) << "others know more";
  EXPECT_EQ(TimeLimit::of(0ms, 160ms).end(7s, 1), 7s + 260ms);
  EXPECT_EQ(TimeLimit::of(0ms, 60s).notice(7s), 65s) << "before its end";
  EXPECT_EQ(TimeLimit::of(0ms, 160ms).notice(7s), 7s + 120ms);
  EXPECT_EQ(TimeLimit::of(0ms, 0ms).notice(7s), Duration::max());
  EXPECT_EQ(TimeLimit::of(0ms, 60s).expiry(7s, 65s + 100us), (Expiry{60s, 2s, false}));
  EXPECT_EQ(TimeLimit::of(160ms, 60s).expiry(7s, 8s), (Expiry{160ms, 0ms, true})) << "late";
}

TEST(TimeoutText, NamesWhoLacksItAndWhatIsKnownOfThem) {
  const auto text = [](const std::function<void(WaitReport&)>& change) {
    WaitReport report{
        .name = "g", .set = kWorld, .limit = {600s, false}, .rank = 1, .root = 0, .reporter = 1};
    change(report);
    return timeout_text(report);
  };
  EXPECT_EQ(text([](auto& r) {
              r.missing = {2, 4};
            }),
            "ranks 2, 4 did not come to tensor \"g\" within 600 s of rank 1. Do all ranks call the "
            "same collectives? Is one of them slow, stopped or "
            "gone? Where a rank may work alone for longer (a validation, a checkpoint), raise "
            "HORA_TIMEOUT (0: never), or give the call a timeout");
  const std::pair<std::function<void(WaitReport&)>, const char*> cases[] = {
      {[](auto& r) {
         r = {.name = "x\n\x1b", .set = ProcessSet(3), .limit = {250ms, true}, .missing = {2}};
       },
       "rank 2 did not come to tensor \"x\\n\\x1b\" of process set 3 within 250 ms of rank 0. Do "
       "all "
       "ranks call the same collectives? Is one of them slow, stopped or gone? Where a rank may "
       "work alone for longer (a validation, a checkpoint), raise the timeout of this call (0: "
       "HORA_TIMEOUT)"},
      {[](auto& r) { r.unknown = {0}; },
       "it: whether rank 0 has is not known on this one: see the warnings of rank 0 "
       "(HORA_STALL_WARNING). Do all"},
      {[](auto& r) { r.missing = {3}, r.reporter = 0, r.unknown = {2}; },
       "rank 1, and whether rank 2 has is not known on this one: nothing has come from their "
       "nodes. Do all"},
      {[](auto& r) { r.missing = {2}, r.remarks = {"rank 2 sleeps"}; },
       "of rank 1; rank 2 sleeps. Do all"},
      {[](auto& r) { r.missing = {2}, r.remarks = {"rank 2 (host a, pid 7) sleeps"}; },
       "rank 2 (host a, pid 7) did not come to tensor \"g\" within 600 s of rank 1; it sleeps. Do"},
      {[](auto& r) { r.missing = {2}, r.remarks.assign(10, "x"); },
       "1; x; x; x; x; x; x; x; x; and 2 more ranks. Do"},
      {[](auto&) {}, "every rank has submitted it, and rank 0 has not decided it. Do all"},
      {[](auto& r) { r.decided = true; }, "its result is about to be taken over. Is one"},
      {[](auto& r) {
         r.decided = true, r.unfinished = {2, 3};
       },
       "it is under way: of this node ranks 2, 3 have not finished it. Is one"},
      {[](auto& r) { r.decided = r.has_other_nodes = true, r.unfinished = {2}; },
       "not finished it, and data of other nodes may be missing. Is one"}};
  for (const auto& [change, expected] : cases) EXPECT_THAT(text(change), HasSubstr(expected));
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

}  // namespace
}  // namespace hora::internal
