#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "core/control_block/node_progress.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

// Overlapping sets of four ranks: whatever two of them have in common gets the sets' launches in
// one order. The ranks poll their sets in random order.
TEST(LaunchTicketLock, GiveEveryDeviceTheSameOrder) {
  constexpr int kRanks = 4;
  constexpr int kLaunches = 400;
  const std::vector<std::vector<int>> sets = {{0, 1, 2, 3}, {0, 1}, {1, 2}, {2, 3}, {0, 2, 3}, {3}};
  std::deque<LaunchTicketLockMemory> memory(sets.size());
  std::vector<std::vector<std::size_t>> got(kRanks);  // sets by rank, in the order of launches
  auto random = test::generator();
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank, seed = random()] {
        struct SetLock {
          std::size_t set;
          LaunchTicketLock lock;
          int left = kLaunches;
        };
        std::vector<std::unique_ptr<SetLock>> locks;
        for (std::size_t s = 0; s < sets.size(); ++s) {
          if (std::ranges::find(sets[s], rank) == sets[s].end()) continue;
          locks.emplace_back(
              new SetLock{s, LaunchTicketLock(memory[0], memory[s], rank == sets[s].front(),
                                              static_cast<int>(sets[s].size()))});
        }
        std::mt19937_64 order(seed);
        while (!locks.empty()) {
          std::ranges::shuffle(locks, order);
          for (const auto& each : locks) {
            if (!each->lock.has_turn()) continue;
            got[static_cast<std::size_t>(rank)].push_back(each->set);
            each->lock.done();
            --each->left;
          }
          std::erase_if(locks, [](const auto& each) { return each->left == 0; });
          std::this_thread::yield();
        }
      });
    }
  }
  for (std::size_t a = 0; a < kRanks; ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      const auto has = [&](std::size_t set, std::size_t rank) {
        return std::ranges::find(sets[set], static_cast<int>(rank)) != sets[set].end();
      };
      std::vector<std::size_t> of_a = got[a], of_b = got[b];
      std::erase_if(of_a, [&](std::size_t set) { return !has(set, b); });
      std::erase_if(of_b, [&](std::size_t set) { return !has(set, a); });
      EXPECT_EQ(of_a, of_b) << "ranks " << a << " and " << b;
      EXPECT_GE(of_a.size(), std::size_t{kLaunches});
    }
  }
}

}  // namespace
}  // namespace hora::internal
