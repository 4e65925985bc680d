#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "core/engine/waits.h"
#include "tests/core/engine/engine_fixture.h"
#include "tests/support/logged_lines.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using test::LoggedLines;
using test::ThreadWorld;
using testing::HasSubstr;

/// A world some of whose ranks are in shutdown(), the others not yet.
class PartlyDepartedWorld {
 public:
  /// `absent`: has not called it; `has_engine`: its engine runs all the same.
  PartlyDepartedWorld(std::vector<int> node_sizes, int absent, bool has_engine = true)
      : absent_(absent),
        world_({.node_sizes = std::move(node_sizes), .settings = settings(), .engines = false}) {
    for (int rank = 0; rank < world_.size(); ++rank) {
      engines_.push_back(std::make_unique<Engine>(world_.parts(rank)));
      if (rank != absent || has_engine) engines_.back()->start_thread();
    }
    for (int rank = 0; rank < world_.size(); ++rank) {
      if (rank == absent) continue;
      threads_.emplace_back([this, rank] { engine(rank).depart(); });
    }
  }
  ~PartlyDepartedWorld() {
    threads_.clear();
    for (auto& engine : engines_) engine->stop();
  }
  static Settings settings() {
    Settings settings;
    settings.stall_warning = 300ms;
    return settings;
  }
  Engine& engine(int rank) { return *engines_[static_cast<std::size_t>(rank)]; }
  void depart_at_last() { engine(absent_).depart(); }
  /// Where that is not possible.
  void end() {
    for (auto& engine : engines_) engine->end_all(Error(ErrorCode::transport, "the test is over"));
  }

 private:
  int absent_;
  ThreadWorld world_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<std::jthread> threads_;
};

TEST(DepartureWatch, WhoHasNotCalledShutdownIsNamedByTheLowestThatHas) {
  const LoggedLines lines;
  PartlyDepartedWorld world({3}, 0);
  EXPECT_TRUE(
      lines.await("s in shutdown() for ranks that have not called it: rank 0 is in its own "
                  "code, and has submitted nothing yet. Is one"));
  EXPECT_TRUE(lines.have("rank 1 has waited"));
  EXPECT_FALSE(lines.have("rank 2 has waited"));
  world.depart_at_last();
}

TEST(DepartureWatch, ItsOwnNodeAndTheLowestNodeSpeakOfARank) {
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

TEST(DepartureWatch, WhereTheRootIsSilentEachNodeSaysWhatItKnows) {
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
  const StallWatch stalls_{parts_.world, parts_, kWorld};
  DepartureWatch watch_{parts_, stalls_};
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

}  // namespace
}  // namespace hora::internal
