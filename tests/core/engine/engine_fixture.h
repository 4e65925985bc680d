/// Engines of whole worlds, for tests that choose the world's options.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/engine/engine.h"
#include "tests/support/expect_error.h"
#include "tests/support/seed.h"
#include "tests/support/threads/thread_world.h"

namespace hora::internal::test {

inline Signature floats(std::int64_t count, ReduceOp op = ReduceOp::sum) {
  return {.op = op, .shape = {count}};
}

inline std::byte* bytes(std::vector<float>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

inline Request sum_of(std::vector<float>& values, std::string_view name,
                      std::chrono::milliseconds timeout = {}) {
  Request request{name, floats(static_cast<std::int64_t>(values.size())), bytes(values)};
  request.timeout = timeout;
  return request;
}

/// Waits for the sum of `count` elements, each `value` on this rank; gives what all have become.
inline float summed(Engine& engine, std::string_view name, std::size_t count = 8,
                    float value = 1.0F, ProcessSet set = kWorld) {
  std::vector<float> values(count, value);
  engine.submit_and_wait(sum_of(values, name), set);
  const auto [least, most] = std::ranges::minmax(values);
  EXPECT_EQ(least, most) << name;
  return most;
}

/// Runs `body(rank)` on a thread for each rank.
inline void on_all_ranks(ThreadWorld& world, const std::function<void(int)>& body) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < world.size(); ++rank) {
    threads.emplace_back([&, rank] { body(rank); });
  }
}

/// The parameter: ranks of each node.
class EngineFixture : public testing::TestWithParam<std::vector<int>> {
 protected:
  static ThreadWorldOptions options(bool threads = true) {
    ThreadWorldOptions result{.node_sizes = GetParam(), .settings = {}, .engine_threads = threads};
    result.settings.chunk_size = 4096;
    return result;
  }
};

inline const auto engine_layouts = testing::Values(
    std::vector{1}, std::vector{2}, std::vector{4}, std::vector{1, 1}, std::vector{2, 2},
    std::vector{3, 1}, std::vector{1, 2, 1}, std::vector{1, 1, 1, 1, 1, 1});

inline std::string layout_name(const testing::TestParamInfo<std::vector<int>>& layout) {
  std::string name = "nodes";
  for (const int size : layout.param) name += "_" + std::to_string(size);
  return name;
}

/// A world whose engines the test makes. Those of ranks in `stopped` never run, as if their
/// processes had been stopped; what they submit they have submitted before.
class PartlyRunningWorld {
 public:
  /// `change`: what an engine is made of.
  PartlyRunningWorld(std::vector<int> node_sizes, const Settings& settings,
                     const std::vector<int>& stopped = {},
                     const std::function<void(int, EngineParts&)>& change = {})
      : world_({.node_sizes = std::move(node_sizes), .settings = settings, .engines = false}) {
    for (int rank = 0; rank < world_.size(); ++rank) {
      EngineParts parts = world_.parts(rank);
      if (change) change(rank, parts);
      engines_.push_back(std::make_unique<Engine>(std::move(parts)));
      if (std::ranges::find(stopped, rank) == stopped.end()) engines_.back()->start_thread();
    }
  }
  ~PartlyRunningWorld() { stop(); }
  void stop() {
    for (auto& engine : engines_) engine->stop();
  }
  int size() const { return world_.size(); }
  Engine& engine(int rank) { return *engines_[static_cast<std::size_t>(rank)]; }

 private:
  ThreadWorld world_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

}  // namespace hora::internal::test
