/// Engines of whole worlds, for tests that choose the world's options.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/engine/engine.h"
#include "tests/support/threads/thread_world.h"

namespace hora::internal::test {

inline Signature floats(std::int64_t count, ReduceOp op = ReduceOp::sum) {
  Signature signature;
  signature.op = op;
  signature.shape = {count};
  return signature;
}

inline std::byte* bytes(std::vector<float>& values) {
  return reinterpret_cast<std::byte*>(values.data());
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

/// How a rank gives its memory.
enum class Way { waits, handle, window };

/// One rank's part of a collective.
class Part {
 public:
  Part(Way way, NodeMemory& memory, std::vector<std::byte> own)
      : way_(way), memory_(memory), own_(std::move(own)), data_(own_.data()) {
    if (way_ != Way::window) return;
    data_ = memory_.allocate(own_.size()).data;
    std::ranges::copy(own_, data_);
  }
  virtual ~Part() {
    if (way_ == Way::window) memory_.release(data_);
  }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  void submit(Engine& engine) {
    if (way_ == Way::waits) {
      engine.submit_and_wait(request());
    } else {
      operation_ = engine.submit(request());
    }
  }
  void expect_right(Engine& engine) {
    if (operation_) engine.wait(*operation_);
    check();
  }

 protected:
  virtual Request request() = 0;
  virtual void check() = 0;
  std::span<std::byte> data() const { return {data_, own_.size()}; }

 private:
  Way way_;
  NodeMemory& memory_;
  std::vector<std::byte> own_;
  std::byte* data_;
  std::shared_ptr<Operation> operation_;
};

/// By rank. `is_last`: of the collectives that are submitted together: a caller that waits cannot
/// bring the next one.
inline std::vector<Way> random_ways(std::mt19937_64& random, int ranks, bool is_last) {
  std::vector<Way> ways;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto way = static_cast<Way>(random() % 3);
    ways.push_back(way == Way::waits && !is_last ? Way::handle : way);
  }
  return ways;
}

/// Each rank on a thread of its own, group by group: makes OnePart(collective, rank, memory) of
/// every collective, submits all, and then expects all to be right.
template <class OnePart, class Collective>
void run_groups(ThreadWorld& world, const std::vector<std::vector<Collective>>& groups) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < world.size(); ++rank) {
    threads.emplace_back([&, rank] {
      Engine& engine = world.engine(rank);
      for (const auto& group : groups) {
        std::vector<std::unique_ptr<Part>> parts;
        for (const Collective& collective : group) {
          parts.push_back(std::make_unique<OnePart>(collective, rank, world.memory(rank)));
        }
        for (const auto& part : parts) part->submit(engine);
        for (const auto& part : parts) part->expect_right(engine);
      }
    });
  }
}

/// The parameter: ranks of each node.
class OnLayouts : public testing::TestWithParam<std::vector<int>> {
 protected:
  OnLayouts() : world_({.node_sizes = GetParam(), .settings = settings()}) {}

  /// Small chunks: several a tensor.
  static Settings settings() {
    Settings result;
    result.chunk_size = 1024;
    return result;
  }
  void on_all_ranks(const std::function<void(int, Engine&)>& body) {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < world_.size(); ++rank) {
      threads.emplace_back([&, rank] { body(rank, world_.engine(rank)); });
    }
  }

  ThreadWorld world_;
};

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
