/// Ranks as threads that write timelines.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/trace/trace.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/threads/thread_world.h"

namespace hora::internal::test {

inline Signature floats(std::int64_t count) {
  Signature signature;
  signature.shape = {count};
  return signature;
}

inline std::byte* bytes(std::vector<float>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

inline std::string layout_name(const testing::TestParamInfo<std::vector<int>>& info) {
  std::string name = "nodes";
  for (const int size : info.param) name += "_" + std::to_string(size);
  return name;
}

/// Ranks with a trace each.
class TracedWorld {
 public:
  explicit TracedWorld(std::vector<int> node_sizes, bool engine_threads = true) {
    const int size = std::accumulate(node_sizes.begin(), node_sizes.end(), 0);
    for (int rank = 0; rank < size; ++rank) traces_.push_back(std::make_unique<Trace>());
    ThreadWorldOptions options{.node_sizes = std::move(node_sizes),
                               .settings = {},
                               .engine_threads = engine_threads,
                               .trace = [this](int rank) { return Tracer(&trace(rank)); }};
    options.settings.chunk_size = 4096;
    world_ = std::make_unique<ThreadWorld>(options);
  }
  int size() const { return world_->size(); }
  Engine& engine(int rank) { return world_->engine(rank); }
  NodeMemory& memory(int rank) { return world_->memory(rank); }
  Trace& trace(int rank) { return *traces_[static_cast<std::size_t>(rank)]; }
  std::string file(int rank) const { return folder_.file(std::to_string(rank) + ".json"); }
  void start() {
    for (int rank = 0; rank < size(); ++rank) trace(rank).start(file(rank), {rank, size(), 0, "h"});
  }
  void stop() {
    for (int rank = 0; rank < size(); ++rank) trace(rank).stop();
  }
  void on_all_ranks(const std::function<void(int)>& body) {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size(); ++rank) threads.emplace_back([&body, rank] { body(rank); });
  }

 private:
  TemporaryFolder folder_;
  std::vector<std::unique_ptr<Trace>> traces_;
  std::unique_ptr<ThreadWorld> world_;
};

}  // namespace hora::internal::test
