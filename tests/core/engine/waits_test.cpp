#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/engine/set_engine.h"
#include "tests/core/engine/engine_fixture.h"
#include "tests/support/golden.h"
#include "tests/support/logged_lines.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using namespace test;
using testing::HasSubstr;

Settings settings_with(std::chrono::milliseconds stall_warning, std::chrono::milliseconds timeout) {
  Settings settings;
  settings.stall_warning = stall_warning;
  settings.timeout = timeout;
  return settings;
}

TEST(Departures, ItsOwnNodeAndTheLowestNodeSpeakOfARank) {
  const LoggedLines lines;
  PartlyRunningWorld world({1, 1, 2}, settings_with(300ms, Settings{}.timeout));
  std::vector<std::jthread> departing;
  for (const int rank : {0, 1, 2})
    departing.emplace_back([&, rank] { world.engine(rank).depart(); });
  EXPECT_TRUE(
      lines.await("s in shutdown() for ranks that have not called it: rank 3 is in its own "
                  "code, and has submitted nothing yet. Is one"));
  EXPECT_TRUE(
      lines.await("s in shutdown() for ranks that have not called it, as far as this node "
                  "knows: rank 3. Is one"));
  EXPECT_TRUE(lines.have("rank 0 has waited"));
  EXPECT_TRUE(lines.have("rank 2 has waited"));
  EXPECT_FALSE(lines.have("rank 1 has waited"));
  world.engine(3).depart();
}

/// Rank 0 of two on one host; the other one is a child process that is stopped. HORA_TIMEOUT is
/// 1 s, and 2 s more are horarun's.
class StoppedRank : public testing::Test {
 protected:
  StoppedRank() {
    while (child_ == 0) ::pause();
    ::kill(child_, SIGSTOP);
    ::waitpid(child_, nullptr, WUNTRACED);
    parts_.settings.timeout = 1s;
    parts_.processes = {{0, "a", ::getpid()}, {1, "a", child_}};
  }
  ~StoppedRank() override {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  void depart() { parts_.world.control_block->status(0).departed.store(1); }

  const pid_t child_ = ::fork();
  ThreadWorld world_{{.node_sizes = {2}, .settings = {}, .engines = false}};
  EngineParts parts_ = world_.parts(0);
  const SetMember set_{.parts = parts_.world, .engine = parts_};
  Waits watch_{set_};
};

TEST_F(StoppedRank, EndsTheJobWhereThisOneWaitsInShutdown) {
  for (const auto time : {1s, 10s, 20s, 30s}) EXPECT_FALSE(watch_.stopped_rank(time));
  depart();
  for (const auto time : {100s, 101s, 102s}) EXPECT_FALSE(watch_.stopped_rank(time));
  const auto error = watch_.stopped_rank(103s);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::timeout);
  EXPECT_EQ(error->rank(), 1);
  EXPECT_THAT(error->what(), HasSubstr("rank 1 (host a, pid " + std::to_string(child_) +
                                       ") is stopped (SIGSTOP), and has been for 3.0 s while"));
}

TEST_F(StoppedRank, TimeInWhichThisOneIsStoppedDoesNotCount) {
  depart();
  EXPECT_FALSE(watch_.stopped_rank(1s));
  EXPECT_FALSE(watch_.stopped_rank(1000s)) << "as if 2 s had passed";
  EXPECT_TRUE(watch_.stopped_rank(1001s));
}

TEST(RankStateText, TellsApartStoppedGoneBusyAndWaiting) {
  using enum ProcessState;
  const SharedNote::Note f{"f", 100s};
  std::string texts;
  const auto add = [&](ProcessState state, std::optional<SharedNote::Note> waits_for = {}) {
    texts += rank_state_text({3, "b", 4711}, state, f, waits_for, 112s) + "\n";
  };
  for (const ProcessState state : {stopped, traced, gone, running, sleeping, blocked}) add(state);
  add(sleeping, SharedNote::Note{"g", 101s, ProcessSet(2)});
  add(stopped, f);
  texts += rank_state_text({.rank = 3}, unknown, {}, {}, 112s);
  expect_golden("core/engine/texts.txt", "states of ranks", texts);
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
  const std::function<void(WaitReport&)> cases[] = {
      [](auto& r) {
        r.missing = {2, 4};
      },
      [](auto& r) {
        r = {.name = "x\n\x1b", .set = ProcessSet(3), .limit = {250ms, true}, .missing = {2}};
      },
      [](auto& r) { r.unknown = {0}; },
      [](auto& r) { r.missing = {3}, r.reporter = 0, r.unknown = {2}; },
      [](auto& r) { r.missing = {2}, r.remarks = {"rank 2 sleeps"}; },
      [](auto& r) { r.missing = {2}, r.remarks = {"rank 2 (host a, pid 7) sleeps"}; },
      [](auto& r) { r.missing = {2}, r.remarks.assign(10, "x"); },
      [](auto&) {},
      [](auto& r) { r.decided = true; },
      [](auto& r) {
        r.decided = true, r.unfinished = {2, 3};
      },
      [](auto& r) { r.decided = r.has_other_nodes = true, r.unfinished = {2}; }};
  std::string texts;
  for (const auto& change : cases) {
    WaitReport report{
        .name = "g", .set = kWorld, .limit = {600s, false}, .rank = 1, .root = 0, .reporter = 1};
    change(report);
    texts += timeout_text(report) + "\n";
  }
  expect_golden("core/engine/texts.txt", "timeouts", texts);
}

/// Ranks in `stopped` do not answer.
class Stalls : public testing::Test {
 protected:
  void start(std::vector<int> node_sizes, const std::vector<int>& stopped = {},
             std::chrono::milliseconds stall_warning = 200ms) {
    world_.emplace(std::move(node_sizes), settings_with(stall_warning, 0ms), stopped);
  }
  Engine& engine(int rank) { return world_->engine(rank); }
  /// Leaves the collective open.
  void submit(int rank, const std::string& name) {
    open_.push_back(engine(rank).submit(sum_of(values_.emplace_back(8, 1.0F), name)));
  }
  void join(int rank) {
    threads_.emplace_back([this, rank] { engine(rank).join(kWorld); });
  }

  const LoggedLines lines_;
  std::deque<std::vector<float>> values_;
  std::vector<std::shared_ptr<Operation>> open_;
  std::optional<PartlyRunningWorld> world_;
  std::vector<std::jthread> threads_;
};

TEST_F(Stalls, TheRootSaysWhatIsKnownOfThoseThatLackIt) {
  start({2, 2});
  submit(3, "f");
  for (const int rank : {0, 1, 2}) submit(rank, "g");
  EXPECT_TRUE(
      lines_.await("tensor \"g\" is waited for by ranks 0-2 and has not been submitted "
                   "by ranks 3"));
  EXPECT_TRUE(lines_.await("rank 3 is in its own code, and has last submitted tensor \"f\", "))
      << "on another node than the root";
}

TEST_F(Stalls, WhereTheRootIsSilentEachNodeSpeaksForItself) {
  start({2, 2}, {0});
  for (const int rank : {1, 2, 3}) submit(rank, "g");
  EXPECT_TRUE(
      lines_.await("s after rank 1 has submitted it: whether ranks 0, 2, 3 have is not "
                   "known on this one: rank 0, which would know, does not answer; rank "
                   "0 is in its own code, and has submitted nothing yet"));
  EXPECT_TRUE(
      lines_.await("s after rank 2 has submitted it: whether ranks 0, 1 have is not "
                   "known on this one: rank 0, which would know, does not answer"));
  EXPECT_FALSE(lines_.have("s after rank 3 has submitted it")) << "one of a node is enough";
}

TEST_F(Stalls, OfWhatIsDecidedTheLowestRankThatWaitsNamesWhoDoesNotGoOn) {
  start({4}, {2});
  for (const int rank : {0, 1, 2, 3}) submit(rank, "g");
  EXPECT_TRUE(
      lines_.await("s after rank 0 has submitted it: every rank has submitted it, and "
                   "it is under way: of this node rank 2 has not finished it; rank 2 "
                   "is in its own code, and has last submitted tensor \"g\""));
  std::this_thread::sleep_for(1s);
  EXPECT_FALSE(lines_.have("s after rank 1 has submitted it"));
  EXPECT_FALSE(lines_.have("s after rank 3 has submitted it"));
}

// Rounds that take longer in all, and each much less.
TEST_F(Stalls, WithNothingToSayNothingIsSaid) {
  start({2, 1}, {}, 1s);
  for (const int rank : {0, 1, 2}) {
    threads_.emplace_back([this, rank] {
      for (int i = 0; i < 30; ++i) {
        if (rank == 1) std::this_thread::sleep_for(50ms);
        summed(engine(rank), "g");
      }
    });
  }
  threads_.clear();
  EXPECT_FALSE(lines_.have("has submitted it"));
  EXPECT_FALSE(lines_.have("is waited for by"));
}

TEST_F(Stalls, WhoHasNotJoinedIsNamedOnceNothingHappensAnyMore) {
  start({3});
  for (const int rank : {0, 1}) join(rank);
  EXPECT_TRUE(
      lines_.await("s in join() for ranks that have not called it: rank 2 is in its own code, "
                   "and has submitted nothing yet. Is one of them"));
  EXPECT_FALSE(lines_.have("rank 1 has waited")) << "one of a node is enough";
  engine(2).join(kWorld);
}

TEST_F(Stalls, WhileOneGoesOnTheOthersWaitInJoinInSilence) {
  start({3}, {}, 1s);
  for (const int rank : {0, 1}) join(rank);
  for (int i = 0; i < 30; ++i) {
    summed(engine(2), "g");
    std::this_thread::sleep_for(50ms);
  }
  EXPECT_FALSE(lines_.have("in join() for ranks"));
  engine(2).join(kWorld);
}

}  // namespace
}  // namespace hora::internal
