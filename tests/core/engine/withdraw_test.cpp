// An error reaches its caller when nothing arrives in the caller's memory any more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
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
  std::shared_ptr<Submission> submission_;
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

TEST(Withdraw, WhatOthersHaveYetToReceiveIsHelpedForAMoment) {
  Failing rank([](int, bool) { return MemoryUse::reads; });
  const auto took = rank.fail();
  EXPECT_GE(took, 150ms);
  EXPECT_GT(rank.calls(), 1);
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
