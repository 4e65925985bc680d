#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/control_block/node_progress.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using Step = StartOrder::Step;

TEST(StartOrder, FollowersStartWhatTheLeaderHasStarted) {
  const auto memory = std::make_unique<StartOrderMemory>();
  StartOrder leader(*memory, true);
  StartOrder follower(*memory, false);
  EXPECT_TRUE(leader.allows(Step::reduce_scatter));
  EXPECT_TRUE(leader.allows(Step::all_gather));
  EXPECT_FALSE(follower.allows(Step::reduce_scatter));
  leader.start(Step::reduce_scatter);
  leader.start(Step::all_gather);
  EXPECT_FALSE(follower.allows(Step::all_gather)) << "not the first one";
  EXPECT_TRUE(follower.allows(Step::reduce_scatter));
  follower.start(Step::reduce_scatter);
  EXPECT_FALSE(follower.allows(Step::reduce_scatter));
  EXPECT_TRUE(follower.allows(Step::all_gather));
}

// The leader stays within what the pipeline's slots allow, and goes round the ring several times.
TEST(StartOrder, IsTheSameOnAllThreads) {
  constexpr std::size_t kSteps = 2 * StartOrderMemory::kCapacity + 100;
  constexpr std::uint64_t kAhead = 64;
  const auto memory = std::make_unique<StartOrderMemory>();
  std::string order;
  auto random = test::generator();
  for (std::size_t i = 0; i < kSteps; ++i) order += random() % 2 == 0 ? 'r' : 'g';
  const auto step_of = [](char c) { return c == 'r' ? Step::reduce_scatter : Step::all_gather; };

  std::vector<std::atomic<std::uint64_t>> followed(2);
  std::vector<std::string> seen(followed.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t f = 0; f < followed.size(); ++f) {
      threads.emplace_back([&, f] {
        StartOrder follower(*memory, false);
        while (seen[f].size() < kSteps) {
          for (const char c : {'r', 'g'}) {
            if (!follower.allows(step_of(c))) continue;
            follower.start(step_of(c));
            seen[f] += c;
            followed[f].fetch_add(1);
          }
          std::this_thread::yield();
        }
      });
    }
    StartOrder leader(*memory, true);
    for (std::size_t i = 0; i < kSteps; ++i) {
      for (const auto& position : followed) {
        while (position.load() + kAhead < i) std::this_thread::yield();
      }
      leader.start(step_of(order[i]));
    }
  }
  for (const std::string& sequence : seen) EXPECT_EQ(sequence, order);
}

}  // namespace
}  // namespace hora::internal
