// Collectives that fail, or take longer than they may.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/text.h"
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

constexpr auto kNever = std::chrono::milliseconds::max();

ThreadWorldOptions with_timeout(std::vector<int> node_sizes, std::chrono::milliseconds timeout,
                                bool threads = true) {
  ThreadWorldOptions options{
      .node_sizes = std::move(node_sizes), .settings = {}, .engine_threads = threads};
  options.settings.timeout = timeout;
  return options;
}

Request sum_of(std::vector<float>& values, std::string_view name,
               std::chrono::milliseconds timeout = 0ms) {
  Request request{name, floats(static_cast<std::int64_t>(values.size())), bytes(values)};
  request.timeout = timeout;
  return request;
}

Error timeout_of(Engine& engine, Request request) {
  const Error error =
      expect_error(ErrorCode::timeout, [&] { engine.submit_and_wait(std::move(request)); });
  EXPECT_TRUE(engine.aborted());
  return error;
}

class TimeoutOnLayouts : public test::EngineFixture {};
INSTANTIATE_TEST_SUITE_P(Layouts, TimeoutOnLayouts,
                         testing::Values(std::vector{2}, std::vector{3}, std::vector{1, 1},
                                         std::vector{2, 1}),
                         test::layout_name);

TEST_P(TimeoutOnLayouts, OfAPeerThatNeverSubmitsEndsEverythingInFlight) {
  for (const bool threads : {true, false}) {
    ThreadWorld world(with_timeout(GetParam(), 300ms, threads));
    const int last = world.size() - 1;
    std::vector<std::string> said(static_cast<std::size_t>(world.size()));
    on_all_ranks(world, [&](int rank) {
      if (rank == last) return;
      Engine& engine = world.engine(rank);
      std::vector<float> a(8, 1.0F), b(8, 1.0F);
      const auto other = engine.submit(sum_of(b, "other", kNever));
      const Error error = timeout_of(engine, sum_of(a, "g"));
      said[static_cast<std::size_t>(rank)] = error.what();
      EXPECT_THAT(error.what(), testing::ContainsRegex(
                                    "tensor \"g\" (within 300 ms of|is not complete 300 ms after) "
                                    "rank " +
                                    std::to_string(error.rank())));
      EXPECT_EQ(error.tensor(), "g");
      expect_error(ErrorCode::timeout, HasSubstr("tensor \"g\""), [&] { engine.wait(*other); });
      expect_error(ErrorCode::timeout, HasSubstr("tensor \"g\""),
                   [&] { engine.submit(sum_of(a, "later")); });
    });
    for (int rank = 1; rank < last; ++rank) {
      EXPECT_EQ(said[static_cast<std::size_t>(rank)], said.front()) << "no second cause";
    }
  }
}

// Without being woken, the engine's thread would sleep for half a second: that of a rank that is no
// leader, as a leader is woken by its own report.
TEST(Timeout, OfACallThatIsShorterThanTheSettingsIsNoticedInTime) {
  auto shortest = 10s + 0ns;
  for (int attempt = 0; attempt < 10 && shortest > 200ms; ++attempt) {
    ThreadWorld world(with_timeout({2}, 600s));
    std::this_thread::sleep_for(30ms);
    std::vector<float> values(8, 1.0F);
    const auto begin = std::chrono::steady_clock::now();
    const auto submission = world.engine(1).submit(sum_of(values, "g", 50ms));
    while (!submission->finished()) std::this_thread::sleep_for(1ms);
    const Error error =
        expect_error(ErrorCode::timeout, [&] { world.engine(1).wait(*submission); });
    EXPECT_THAT(error.what(), HasSubstr("raise the timeout of this call"));
    shortest =
        std::min<std::chrono::nanoseconds>(shortest, std::chrono::steady_clock::now() - begin);
    EXPECT_GE(shortest, 50ms);
  }
  EXPECT_LE(shortest, 200ms);
}

TEST(Timeout, WithoutAnEngineThreadAHandleIsReadyOnceSomeoneMakesProgress) {
  ThreadWorld world(with_timeout({2}, 50ms, false));
  std::vector<float> values(8, 1.0F);
  Engine& engine = world.engine(0);
  const auto submission = engine.submit(sum_of(values, "g"));
  EXPECT_FALSE(engine.wait_for(*submission, 1ms));
  EXPECT_TRUE(engine.wait_for(*submission, 20s));
  expect_error(ErrorCode::timeout, [&] { engine.wait(*submission); });
}

/// Ranks that never submit; the texts that all others get, of a name that is new or known.
std::string said_without(const std::vector<int>& absent, bool known) {
  ThreadWorld world(with_timeout({2, 2}, 2s));
  std::vector<std::string> said(4);
  on_all_ranks(world, [&](int rank) {
    std::vector<float> values(8, 1.0F);
    world.engine(rank).submit_and_wait(sum_of(values, known ? "g" : "start", kNever));
    if (std::ranges::find(absent, rank) != absent.end()) return;
    said[static_cast<std::size_t>(rank)] =
        timeout_of(world.engine(rank), sum_of(values, "g")).what();
  });
  std::erase(said, "");
  EXPECT_EQ(said, std::vector<std::string>(4 - absent.size(), said.front())) << "one cause";
  return said.front();
}

/// The root has heard of all nodes before it speaks, be it itself the one that lacks it.
std::string named_by_root(const std::vector<int>& absent) {
  std::string text = named_ranks(absent) + " did not come to tensor \"g\" within 2 s of rank .";
  for (const int rank : absent) {
    text += "; rank " + std::to_string(rank) + " is in its own code, and has last submitted tensor";
    text += rank == absent.back() ? "" : " \"[^\"]*\", [0-9.]+ s ago";
  }
  return text;
}

// A root that gets no time on a processor for longer than its grace is not waited for.
TEST(Timeout, OfSeveralNodesNamesAllRanksThatLackIt) {
  std::vector<std::jthread> worlds;
  for (const bool known : {false, true}) {
    for (const std::vector<int>& absent :
         std::vector<std::vector<int>>{{3}, {2, 3}, {0}, {0, 1}, {1, 2}}) {
      worlds.emplace_back([known, absent] {
        const testing::Matcher<const std::string&> names_all =
            testing::ContainsRegex(named_by_root(absent));
        std::string text;
        for (int attempt = 0; attempt < 4 && !testing::Value(text, names_all); ++attempt) {
          text = said_without(absent, known);
        }
        EXPECT_THAT(text, names_all);
      });
    }
  }
}

TEST(Timeout, OfWhatIsUnderWayNamesWhoHasNotFinished) {
  ThreadWorld world(with_timeout({2}, 100ms, false));
  std::vector<float> a(8, 1.0F), b(8, 1.0F);
  const auto never_steps = world.engine(1).submit(sum_of(b, "g"));
  const Error error = timeout_of(world.engine(0), sum_of(a, "g"));
  EXPECT_THAT(error.what(), HasSubstr("every rank has submitted it, and it is under way: of this "
                                      "node rank 1 has not finished it; rank 1 is"));
}

}  // namespace
}  // namespace hora::internal
