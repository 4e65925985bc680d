#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
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
  std::vector<std::unique_ptr<LaunchTicketLockMemory>> memory;
  for (std::size_t s = 0; s < sets.size(); ++s) {
    memory.push_back(std::make_unique<LaunchTicketLockMemory>());
  }
  std::vector<std::vector<std::size_t>> got(kRanks);  // sets by rank, in the order of launches
  auto random = test::generator();
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank, seed = random()] {
        struct SetLock {
          SetLock(std::size_t number, const LaunchTicketLock& its_lock)
              : set(number), lock(its_lock) {}
          std::size_t set;
          LaunchTicketLock lock;
          int left = kLaunches;
        };
        std::vector<std::unique_ptr<SetLock>> locks;
        for (std::size_t s = 0; s < sets.size(); ++s) {
          if (std::ranges::find(sets[s], rank) == sets[s].end()) continue;
          const LaunchTicketLock lock(*memory[0], *memory[s], rank == sets[s].front(),
                                      static_cast<int>(sets[s].size()));
          locks.push_back(std::make_unique<SetLock>(s, lock));
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
  const auto common = [&](std::size_t rank, const std::vector<std::size_t>& kept) {
    std::vector<std::size_t> order;
    for (const std::size_t set : got[rank]) {
      if (std::ranges::find(kept, set) != kept.end()) order.push_back(set);
    }
    return order;
  };
  for (std::size_t a = 0; a < kRanks; ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      std::vector<std::size_t> both;
      for (std::size_t s = 0; s < sets.size(); ++s) {
        const auto has = [&](std::size_t rank) {
          return std::ranges::find(sets[s], static_cast<int>(rank)) != sets[s].end();
        };
        if (has(a) && has(b)) both.push_back(s);
      }
      EXPECT_EQ(common(a, both), common(b, both)) << "ranks " << a << " and " << b;
      EXPECT_EQ(common(a, both).size(), both.size() * kLaunches);
    }
  }
}

}  // namespace
}  // namespace hora::internal
