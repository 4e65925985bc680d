// Collectives that fail, or take longer than they may.
#include <latch>

#include "core/base/text.h"
#include "tests/core/engine/engine_fixture.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using namespace test;
using testing::HasSubstr;

constexpr auto kNever = std::chrono::milliseconds::max();

ThreadWorldOptions with_timeout(std::vector<int> node_sizes, std::chrono::milliseconds timeout,
                                bool threads = true) {
  ThreadWorldOptions options{
      .node_sizes = std::move(node_sizes), .settings = {}, .engine_threads = threads};
  options.settings.timeout = timeout;
  return options;
}

/// A leader's link that fails from a moment on, as MPI does where it survives the death of a peer.
struct FailingLink final : TreeLink {
  void send(int node, std::span<const std::byte> message) override { link->send(node, message); }
  std::optional<Received> receive() override {
    if (failed.load()) throw Error(ErrorCode::transport, "node 1 is gone");
    return link->receive();
  }
  bool flushed() override { return link->flushed(); }

  TreeLink* link = nullptr;
  std::atomic<bool> failed{false};
};

const std::vector<int> kAllOfSeven = {0, 1, 2, 3, 4, 5, 6};

// All ranks wait, each for a tensor that no other rank submits.
TEST(FirstCauseOfAll, FreesOtherNodesAlongTheTree) {
  for (const bool threads : {true, false}) {
    FailingLink link;
    PartlyRunningWorld world({2, 2, 1, 2}, {}, threads ? std::vector<int>{} : kAllOfSeven,
                             [&](int rank, EngineParts& parts) {
                               if (rank == 0) link.link = std::exchange(parts.world.tree, &link);
                             });
    std::latch submitted(world.size());
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < world.size(); ++rank) {
      ranks.emplace_back([&, rank] {
        std::vector<float> values(8, 1.0F), more(8, 1.0F);
        Engine& engine = world.engine(rank);
        const auto begin = now();
        const std::string name = "of " + std::to_string(rank), pending_name = name + ", pending";
        const auto pending = engine.submit(sum_of(more, pending_name));
        submitted.count_down();
        expect_error(ErrorCode::transport, "node 1 is gone",
                     [&] { engine.submit_and_wait(sum_of(values, name)); });
        EXPECT_LT(now() - begin, 5s);
        expect_error(ErrorCode::transport, HasSubstr("node 1 is gone"),
                     [&] { engine.wait(*pending); });
        expect_error(ErrorCode::transport, HasSubstr("node 1 is gone"),
                     [&] { engine.submit(sum_of(values, "later")); });
        EXPECT_TRUE(engine.aborted());
      });
    }
    submitted.wait();
    std::this_thread::sleep_for(200ms);
    link.failed.store(true);
  }
}

TEST(FirstCauseOfAll, OfARankThatIsNoLeaderReachesAll) {
  ThreadWorld world(with_timeout({2, 2, 2}, 0ms));
  std::vector<std::string> said(6);
  on_all_ranks(world, [&](int rank) {
    std::vector<float> values(8, 1.0F);
    const std::string name = "of " + std::to_string(rank);
    const Error error = expect_error(ErrorCode::timeout, [&] {
      world.engine(rank).submit_and_wait(sum_of(values, name, rank == 3 ? 200ms : 0ms));
    });
    said[static_cast<std::size_t>(rank)] = error.what();
  });
  EXPECT_THAT(said, testing::Each(said[3]));
  EXPECT_THAT(said[3], HasSubstr("tensor \"of 3\" within 200 ms of rank 3"));
}

TEST(FirstCauseOfAll, IsSaidBeforeTheOtherRanksEnginesHaveEnded) {
  PartlyRunningWorld world({2, 1}, {}, kAllOfSeven);
  const std::string cause = to_string(identity_of_process(0)) + " has ended the job: odd";
  EXPECT_FALSE(world.engine(1).is_logged(cause));
  world.engine(0).end_all("odd");
  EXPECT_FALSE(world.engine(1).aborted());
  EXPECT_TRUE(world.engine(1).is_logged("uncaught exception: " + cause));
  EXPECT_FALSE(world.engine(1).is_logged("an exception of rank 1"));
}

/// A data path in which messages are on their way when the engine fails: until the n-th call of
/// withdraw().
class BusyPath final : public DataPath {
 public:
  BusyPath(DataPath& path, int quiet_from) : path_(path), quiet_from_(quiet_from) {}
  void start(BoundUnit&& unit) override { path_.start(std::move(unit)); }
  bool advance() override { return path_.advance(); }
  std::uint64_t awaited() const override { return path_.awaited(); }
  bool polls() const override { return path_.polls(); }
  void reduce(const Signature& signature, std::span<const std::byte* const> inputs,
              std::span<std::byte* const> outputs, double pre, double post) override {
    path_.reduce(signature, inputs, outputs, pre, post);
  }
  MemoryUse withdraw() override {
    early = early || (operation && operation->finished());
    return ++calls < quiet_from_ ? MemoryUse::writes : MemoryUse::none;
  }

  std::shared_ptr<Operation> operation;
  int calls = 0;
  bool early = false;  ///< its error was told before

 private:
  DataPath& path_;
  const int quiet_from_;
};

// Where messages never end the job does, before the caller has the error.
TEST(Withdraw, AnErrorWaitsForWhatArrivesOrForTheEndOfTheJob) {
  for (const bool ends : {true, false}) {
    ThreadWorld world({.node_sizes = {1, 1}, .settings = {}, .engines = false});
    EngineParts parts = world.parts(0);
    BusyPath path(*parts.world.data_path, ends ? 4 : std::numeric_limits<int>::max());
    bool aborted = false;
    parts.world.data_path = &path;
    parts.abort = [&] { aborted = true; };
    Engine engine(parts);
    std::vector<float> values(8, 1.0F);
    const auto begin = now();
    path.operation = engine.submit(sum_of(values, "g", 50ms));
    expect_error(ErrorCode::timeout, [&] { engine.wait(*path.operation); });
    EXPECT_FALSE(path.early);
    EXPECT_EQ(aborted, !ends);
    if (ends) {
      EXPECT_EQ(path.calls, 4);
    } else {
      EXPECT_GE(now() - begin, 1s);
    }
  }
}

Error timeout_of(Engine& engine, Request request) {
  const Error error =
      expect_error(ErrorCode::timeout, [&] { engine.submit_and_wait(std::move(request)); });
  EXPECT_TRUE(engine.aborted());
  return error;
}

class TimeoutOnLayouts : public EngineFixture {};
INSTANTIATE_TEST_SUITE_P(Layouts, TimeoutOnLayouts,
                         testing::Values(std::vector{2}, std::vector{3}, std::vector{1, 1},
                                         std::vector{2, 1}),
                         layout_name);

TEST_P(TimeoutOnLayouts, OfAPeerThatNeverSubmitsEndsEverythingInFlight) {
  for (const bool threads : {true, false}) {
    ThreadWorld world(with_timeout(GetParam(), 300ms, threads));
    std::vector<std::string> said(static_cast<std::size_t>(world.size()) - 1);
    on_all_ranks(world, [&](int rank) {
      if (rank == world.size() - 1) return;
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
    EXPECT_THAT(said, testing::Each(said.front())) << "no second cause";
  }
}

// Without being woken, the engine's thread would sleep for half a second: that of a rank that is no
// leader, as a leader is woken by its own report.
TEST(Timeout, OfACallThatIsShorterThanTheSettingsIsNoticedInTime) {
  Duration shortest = 10s;
  for (int attempt = 0; attempt < 10 && shortest > 200ms; ++attempt) {
    ThreadWorld world(with_timeout({2}, 600s));
    std::this_thread::sleep_for(30ms);
    std::vector<float> values(8, 1.0F);
    const Duration begin = now();
    const auto submission = world.engine(1).submit(sum_of(values, "g", 50ms));
    while (!submission->finished()) std::this_thread::sleep_for(1ms);
    expect_error(ErrorCode::timeout, HasSubstr("raise the timeout of this call"),
                 [&] { world.engine(1).wait(*submission); });
    shortest = std::min(shortest, now() - begin);
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

/// Ranks that never submit; the text that all others get, of a name that is new or known.
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
  EXPECT_EQ(said, std::vector(4 - absent.size(), said.front())) << "one cause";
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
