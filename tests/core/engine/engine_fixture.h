/// Engines of whole worlds, for tests that choose the world's options.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

#include "core/engine/engine.h"
#include "tests/core/engine/on_layouts.h"
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

}  // namespace hora::internal::test
