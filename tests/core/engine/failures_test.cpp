#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/engine/interfaces.h"
#include "tests/core/engine/engine_fixture.h"
#include "tests/support/expect_error.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using test::bytes;
using test::expect_error;
using test::floats;
using test::on_all_ranks;
using test::ThreadWorld;
using test::ThreadWorldOptions;
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

/// That of rank 0 has a link that fails.
class FailingWorld {
 public:
  FailingWorld(const std::vector<int>& node_sizes, bool threads, bool can_send)
      : world_(node_sizes, {}, threads ? std::vector<int>{} : std::vector{0, 1, 2, 3, 4, 5, 6},
               [&](int rank, EngineParts& parts) {
                 if (rank != 0) return;
                 link_.emplace(*parts.world.tree, can_send);
                 parts.world.tree = &*link_;
               }) {}
  int size() const { return world_.size(); }
  Engine& engine(int rank) { return world_.engine(rank); }
  void fail() { link_->fail(); }

 private:
  std::optional<FailingLink> link_;
  test::PartlyRunningWorld world_;
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
        EXPECT_TRUE(engine.aborted());
      });
    }
    submitted.wait();
    std::this_thread::sleep_for(200ms);
    world.fail();
  }
  return said;
}

TEST(FirstCauseOfAll, FreesOtherNodesAlongTheTree) {
  for (const bool threads : {true, false}) {
    FailingWorld world({2, 2, 1, 2}, threads, /*can_send=*/true);
    EXPECT_EQ(freed_from(world, world.size()),
              std::vector<std::string>(static_cast<std::size_t>(world.size()), "node 1 is gone"));
  }
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
  EXPECT_FALSE(world.engine(1).aborted());
  EXPECT_TRUE(world.engine(1).is_logged(std::string("uncaught exception: ") + cause.what()));
  EXPECT_FALSE(world.engine(1).is_logged("an exception of rank 1"));
}

constexpr auto kEndsWithin = 20s;

/// A device without memory, which fails when it is told to.
class FailingPort final : public DevicePort {
 public:
  enum class Failure { none, of_a_peer, own };
  void fail(Failure failure) { failure_ = failure; }

  BegunOnDevice begin(const std::byte*, void*, std::optional<void*>) override { return {}; }
  std::byte* allocate(std::size_t) override { return nullptr; }
  void release(std::byte*, const WithEngineLock&) noexcept override {}
  bool check() override {
    switch (failure_.load()) {
      case Failure::of_a_peer:
        throw PeerFailure(ErrorCode::transport, "a peer is gone");
      case Failure::own:
        throw Error(ErrorCode::transport, "the cause");
      case Failure::none:
        break;
    }
    return true;
  }
  void abort() noexcept override {}

 private:
  std::atomic<Failure> failure_{Failure::none};
};

using Failure = FailingPort::Failure;

class PeerFailures : public testing::TestWithParam<std::vector<int>> {
 protected:
  PeerFailures() : ports_(16) {}

  ThreadWorldOptions options(bool spans_nodes) {
    ThreadWorldOptions result{.node_sizes = GetParam(), .settings = {}};
    result.settings.log_level = LogLevel::off;
    result.device = [this, spans_nodes](int rank, int, int) {
      return test::RankDevice{.port = &port(rank), .spans_nodes = spans_nodes};
    };
    return result;
  }
  FailingPort& port(int rank) { return ports_[static_cast<std::size_t>(rank)]; }

  /// The error of each rank's collectives, which go on until there is one.
  static std::vector<std::string> errors(ThreadWorld& world) {
    std::vector<std::string> texts(static_cast<std::size_t>(world.size()));
    const auto end = std::chrono::steady_clock::now() + kEndsWithin;
    on_all_ranks(world, [&](int rank) {
      std::vector<float> values(4, 1.0F);
      try {
        while (std::chrono::steady_clock::now() < end) {
          world.engine(rank).submit_and_wait("x", floats(4), bytes(values));
        }
      } catch (const Error& error) {
        texts[static_cast<std::size_t>(rank)] = error.what();
      }
    });
    return texts;
  }

  std::vector<FailingPort> ports_;
};

TEST_P(PeerFailures, ACauseThatIsFoundLaterHolds) {
  ThreadWorld world(options(true));
  const int culprit = world.size() - 1;
  for (int rank = 0; rank < culprit; ++rank) port(rank).fail(Failure::of_a_peer);
  std::jthread later([&] {
    std::this_thread::sleep_for(300ms);
    port(culprit).fail(Failure::own);
  });
  for (const std::string& text : errors(world)) EXPECT_EQ(text, "the cause");
}

TEST_P(PeerFailures, WithoutACauseItIsReportedOnce) {
  ThreadWorld world(options(true));
  for (int rank = 0; rank < world.size(); ++rank) port(rank).fail(Failure::of_a_peer);
  for (const std::string& text : errors(world)) EXPECT_EQ(text, "a peer is gone");
}

INSTANTIATE_TEST_SUITE_P(Layouts, PeerFailures,
                         testing::Values(std::vector{1, 1}, std::vector{2, 2},
                                         std::vector{1, 1, 1}));

/// A data path in which messages are on their way when the engine fails.
class BusyPath final : public DataPath {
 public:
  /// `use`: of the n-th call, from 1 on.
  BusyPath(DataPath& path, std::function<MemoryUse(int)> use) : path_(path), use_(std::move(use)) {}
  void start(BoundUnit&& unit) override { path_.start(std::move(unit)); }
  bool advance() override { return path_.advance(); }
  std::uint64_t awaited() const override { return path_.awaited(); }
  bool polls() const override { return path_.polls(); }
  MemoryUse withdraw() override { return use_(++calls_); }
  int calls() const { return calls_; }

 private:
  DataPath& path_;
  std::function<MemoryUse(int)> use_;
  int calls_ = 0;
};

/// The first of two ranks, on two nodes, whose collective runs out of time; `use` is told whether
/// the handle is finished.
class Failing {
 public:
  explicit Failing(std::function<MemoryUse(int calls, bool finished)> use)
      : world_({.node_sizes = {1, 1}, .settings = {}, .engines = false}),
        path_(*world_.parts(0).world.data_path, [this, use = std::move(use)](int calls) {
          return use(calls, submission_ && submission_->finished());
        }) {
    EngineParts parts = world_.parts(0);
    parts.world.data_path = &path_;
    parts.abort = [this] { aborted_ = true; };
    engine_ = std::make_unique<Engine>(parts);
  }

  /// How long it takes from the submission to the error.
  std::chrono::steady_clock::duration fail() {
    const auto begin = std::chrono::steady_clock::now();
    Request request{"g", floats(8), bytes(values_)};
    request.timeout = 50ms;
    submission_ = engine_->submit(std::move(request));
    expect_error(ErrorCode::timeout, [&] { engine_->wait(*submission_); });
    return std::chrono::steady_clock::now() - begin;
  }
  int calls() const { return path_.calls(); }
  bool aborted() const { return aborted_; }

 private:
  std::vector<float> values_ = std::vector<float>(8, 1.0F);
  ThreadWorld world_;
  BusyPath path_;
  std::shared_ptr<Operation> submission_;
  std::unique_ptr<Engine> engine_;
  bool aborted_ = false;
};

TEST(Withdraw, AnErrorWaitsForWhatArrives) {
  bool early = false;
  Failing rank([&](int calls, bool finished) {
    early = early || finished;
    return calls < 4 ? MemoryUse::writes : MemoryUse::none;
  });
  rank.fail();
  EXPECT_EQ(rank.calls(), 4);
  EXPECT_FALSE(early);
  EXPECT_FALSE(rank.aborted());
}

TEST(Withdraw, WhereItNeverArrivesTheJobEndsBeforeTheCallerHasTheError) {
  bool early = false;
  Failing rank([&](int, bool finished) {
    early = early || finished;
    return MemoryUse::writes;
  });
  const auto took = rank.fail();
  EXPECT_GE(took, 1s);
  EXPECT_TRUE(rank.aborted());
  EXPECT_FALSE(early);
}

}  // namespace
}  // namespace hora::internal
