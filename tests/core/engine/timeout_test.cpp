// Collectives that take longer than they may.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

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

// The engine's thread, asleep since before the call, is to wake as well.
TEST(Timeout, IsNoticedInTimeWhenThatThreadHasLeft) {
  auto shortest = 10s + 0ns;
  for (int attempt = 0; attempt < 10 && shortest > 200ms; ++attempt) {
    ThreadWorld world(with_timeout({2}, 600s));
    std::vector<float> a(8, 1.0F), b(8, 1.0F), c(8, 1.0F);
    std::atomic<bool> in_time = true;
    const auto first = [&in_time](Engine& engine, std::vector<float>& values) {
      try {
        engine.submit_and_wait(sum_of(values, "first"));
      } catch (const Error& error) {
        EXPECT_EQ(error.tensor(), "g");
        in_time = false;
      }
    };
    std::jthread leaves([&] { first(world.engine(1), a); });
    std::this_thread::sleep_for(30ms);
    const auto begin = std::chrono::steady_clock::now();
    const auto submission = world.engine(1).submit(sum_of(b, "g", 50ms));
    first(world.engine(0), c);
    leaves.join();
    if (!in_time) continue;  // "g" has ended before
    while (!submission->finished()) std::this_thread::sleep_for(1ms);
    expect_error(ErrorCode::timeout, [&] { world.engine(1).wait(*submission); });
    shortest =
        std::min<std::chrono::nanoseconds>(shortest, std::chrono::steady_clock::now() - begin);
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

  ThreadWorld stepped(with_timeout({2}, 50ms, false));
  const auto polled = stepped.engine(0).submit(sum_of(values, "g"));
  while (!polled->finished()) stepped.engine(0).progress();
  expect_error(ErrorCode::timeout, [&] { stepped.engine(0).wait(*polled); });
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
