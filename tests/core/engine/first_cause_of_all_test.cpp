// A rank that learns of the job's end frees all ranks: with one cause, whatever they wait for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/core/engine/engine_fixture.h"
#include "tests/support/expect_error.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using test::bytes;
using test::expect_error;
using test::floats;
using test::ThreadWorld;
using testing::HasSubstr;

/// A leader's link that fails from a moment on, as MPI does where it survives the death of a peer.
class FailingLink final : public TreeLink {
 public:
  FailingLink(TreeLink& link, bool can_send) : link_(link), can_send_(can_send) {}
  void fail() { failed_.store(true); }

  void send(int node, std::span<const std::byte> message) override {
    if (failed_.load() && !can_send_) throw Error(ErrorCode::transport, "a second failure");
    link_.send(node, message);
  }
  std::optional<Received> receive() override {
    if (failed_.load()) throw Error(ErrorCode::transport, "node 1 is gone");
    return link_.receive();
  }
  bool flushed() override { return link_.flushed(); }

 private:
  TreeLink& link_;
  const bool can_send_;
  std::atomic<bool> failed_{false};
};

/// Nodes of two ranks whose engines the test makes: that of rank 0 with a link that fails.
class FailingWorld {
 public:
  explicit FailingWorld(std::vector<int> node_sizes, bool threads, bool can_send)
      : world_({.node_sizes = std::move(node_sizes), .settings = {}, .engines = false}) {
    for (int rank = 0; rank < world_.size(); ++rank) {
      EngineParts parts = world_.parts(rank);
      if (rank == 0) {
        link_.emplace(*parts.world.tree, can_send);
        parts.world.tree = &*link_;
      }
      engines_.push_back(std::make_unique<Engine>(parts));
      if (threads) engines_.back()->start_thread();
    }
  }
  ~FailingWorld() {
    for (auto& engine : engines_) engine->stop();
  }
  int size() const { return world_.size(); }
  Engine& engine(int rank) { return *engines_[static_cast<std::size_t>(rank)]; }
  void fail() { link_->fail(); }

 private:
  ThreadWorld world_;
  std::optional<FailingLink> link_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

/// All ranks wait, each for a tensor that no other rank submits; what they get once the link of
/// rank 0 has failed.
std::vector<std::string> freed_from(FailingWorld& world, int ranks) {
  std::vector<std::string> said(static_cast<std::size_t>(ranks));
  std::latch submitted(ranks);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        std::vector<float> values(8, 1.0F), more(8, 1.0F);
        Engine& engine = world.engine(rank);
        const auto begin = std::chrono::steady_clock::now();
        const std::string name = "of " + std::to_string(rank);
        const auto pending = engine.submit(name + ", pending", floats(8), bytes(more));
        submitted.count_down();
        const Error error = expect_error(
            ErrorCode::transport, [&] { engine.submit_and_wait(name, floats(8), bytes(values)); });
        said[static_cast<std::size_t>(rank)] = error.what();
        EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
        expect_error(ErrorCode::transport, HasSubstr(error.what()), [&] { engine.wait(*pending); });
        expect_error(ErrorCode::transport, HasSubstr(error.what()),
                     [&] { engine.submit("later", floats(8), bytes(values)); });
        EXPECT_TRUE(engine.poisoned());
      });
    }
    submitted.wait();
    std::this_thread::sleep_for(200ms);
    world.fail();
  }
  return said;
}

TEST(FirstCauseOfAll, FreesTheLeadersNode) {
  for (const bool threads : {true, false}) {
    FailingWorld world({3, 1}, threads, /*can_send=*/false);
    EXPECT_EQ(freed_from(world, 3), std::vector<std::string>(3, "node 1 is gone"));
  }
}

TEST(FirstCauseOfAll, FreesOtherNodesAlongTheTree) {
  for (const bool threads : {true, false}) {
    FailingWorld world({2, 2, 1, 2}, threads, /*can_send=*/true);
    EXPECT_EQ(freed_from(world, world.size()),
              std::vector<std::string>(static_cast<std::size_t>(world.size()), "node 1 is gone"));
  }
}

// Its engine sleeps: nothing is in flight.
TEST(FirstCauseOfAll, IsWhatARankThatWasComputingGetsFromItsNextCall) {
  FailingWorld world({2, 1}, true, false);
  std::this_thread::sleep_for(100ms);
  world.fail();
  const auto begin = std::chrono::steady_clock::now();
  while (!world.engine(1).poisoned() && std::chrono::steady_clock::now() - begin < 5s) {
    std::this_thread::sleep_for(1ms);
  }
  std::vector<float> values(8, 1.0F);
  expect_error(ErrorCode::transport, HasSubstr("node 1 is gone"),
               [&] { world.engine(1).submit("g", floats(8), bytes(values)); });
}

TEST(FirstCauseOfAll, OfARankThatIsNoLeaderReachesAll) {
  test::ThreadWorldOptions options{.node_sizes = {2, 2, 2}, .settings = {}};
  options.settings.timeout = 0ms;
  ThreadWorld world(options);
  std::vector<std::string> said(6);
  test::on_all_ranks(world, [&](int rank) {
    std::vector<float> values(8, 1.0F);
    const std::string name = "of " + std::to_string(rank);
    Request request{name, floats(8), bytes(values)};
    if (rank == 3) request.timeout = 200ms;
    said[static_cast<std::size_t>(rank)] = expect_error(ErrorCode::timeout, [&] {
                                             world.engine(rank).submit_and_wait(std::move(request));
                                           }).what();
  });
  EXPECT_EQ(said, std::vector<std::string>(6, said[3]));
  EXPECT_THAT(said[3], HasSubstr("tensor \"of 3\" within 200 ms of rank 3"));
}

TEST(FirstCauseOfAll, IsSaidBeforeTheOtherRanksEnginesHaveEnded) {
  FailingWorld world({2, 1}, /*threads=*/false, /*can_send=*/true);
  const Error cause(ErrorCode::transport, "rank 0 has ended the job: odd", 0);
  EXPECT_FALSE(world.engine(1).is_logged(cause.what()));
  world.engine(0).end_all(cause);
  EXPECT_FALSE(world.engine(1).poisoned());
  EXPECT_TRUE(world.engine(1).is_logged(std::string("uncaught exception: ") + cause.what()));
  EXPECT_FALSE(world.engine(1).is_logged("an exception of rank 1"));
}

}  // namespace
}  // namespace hora::internal
