/// A world of engines for each layout of nodes.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "core/engine/engine.h"
#include "tests/support/threads/thread_world.h"

namespace hora::test {

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

}  // namespace hora::test
