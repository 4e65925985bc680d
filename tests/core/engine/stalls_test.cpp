// What is said of collectives that do not end, and by whom.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
using testing::HasSubstr;

/// A world whose ranks in `stopped` have engines that never run, as if their processes had been
/// stopped; what they submit they have submitted before.
class PartlyStoppedWorld {
 public:
  PartlyStoppedWorld(std::vector<int> node_sizes, std::vector<int> stopped,
                     std::chrono::milliseconds stall_warning = 200ms)
      : world_({.node_sizes = std::move(node_sizes),
                .settings = settings(stall_warning),
                .engines = false}) {
    for (int rank = 0; rank < world_.size(); ++rank) {
      engines_.push_back(std::make_unique<Engine>(world_.parts(rank)));
      if (std::ranges::find(stopped, rank) == stopped.end()) engines_.back()->start_thread();
    }
  }
  ~PartlyStoppedWorld() {
    for (auto& engine : engines_) engine->stop();
  }
  static Settings settings(std::chrono::milliseconds stall_warning) {
    Settings settings;
    settings.stall_warning = stall_warning;
    settings.timeout = 0ms;
    return settings;
  }
  int size() const { return world_.size(); }
  Engine& engine(int rank) { return *engines_[static_cast<std::size_t>(rank)]; }
  /// Leaves the collective open.
  void submit(int rank, const std::string& name) {
    auto& values = values_.emplace_back(8, 1.0F);
    open_.push_back(engine(rank).submit(name, floats(8), bytes(values)));
  }

 private:
  std::deque<std::vector<float>> values_;
  ThreadWorld world_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<std::shared_ptr<Submission>> open_;
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
