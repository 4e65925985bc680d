/// A world of engines for each layout of nodes.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/engine/engine.h"
#include "tests/support/threads/thread_world.h"

namespace hora::internal::test {

/// Each rank on a thread of its own, group by group: makes Part(operation, rank, memory) of every
/// operation, submits all, and then expects all to be right.
template <class Part, class Operation>
void run_groups(ThreadWorld& world, const std::vector<std::vector<Operation>>& groups) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < world.size(); ++rank) {
    threads.emplace_back([&, rank] {
      Engine& engine = world.engine(rank);
      for (const auto& group : groups) {
        std::vector<std::unique_ptr<Part>> parts;
        for (const Operation& operation : group) {
          parts.push_back(std::make_unique<Part>(operation, rank, world.memory(rank)));
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

/// How a rank gives its memory.
enum class Way { waits, handle, window };

inline std::string layout_name(const testing::TestParamInfo<std::vector<int>>& layout) {
  std::string name = "nodes";
  for (const int size : layout.param) name += "_" + std::to_string(size);
  return name;
}

}  // namespace hora::internal::test
