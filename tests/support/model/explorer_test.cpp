// The explorer finds what C++ allows, and nothing that it forbids.
#include "tests/support/model/explorer.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/model/atomic.h"

namespace hora::internal {
namespace {

using std::memory_order;
using std::memory_order_acquire;
using std::memory_order_relaxed;
using std::memory_order_release;
using std::memory_order_seq_cst;

struct Shared {
  Atomic<std::uint32_t> x, y;
  Plain<std::uint32_t> data;
};

/// Runs the threads in every order; the first failure.
std::optional<std::string> failure_of(const std::vector<std::function<void(Shared&)>>& threads,
                                      const std::function<void()>& at_end = {}) {
  const auto program = [&] {
    auto shared = std::make_shared<Shared>();
    model::Program all{.threads = {}, .at_begin = {}, .at_end = at_end};
    for (const auto& thread : threads) all.threads.emplace_back([=] { thread(*shared); });
    return all;
  };
  return model::explore(program).failure;
}

using Results = std::set<std::pair<std::uint32_t, std::uint32_t>>;

/// The pairs of results that two threads can have.
template <class First, class Second>
Results results_of(First first, Second second) {
  Results results;
  std::pair<std::uint32_t, std::uint32_t> got;
  EXPECT_EQ(failure_of({[&](Shared& s) { got.first = first(s); },
                        [&](Shared& s) { got.second = second(s); }},
                       [&] { results.insert(got); }),
            std::nullopt);
  return results;
}

Results store_buffering(memory_order store, memory_order load) {
  return results_of(
      [=](Shared& s) {
        s.x.store(1, store);
        return s.y.load(load);
      },
      [=](Shared& s) {
        s.y.store(1, store);
        return s.x.load(load);
      });
}

TEST(Explorer, StoresMayPassLoadsButInTheTotalOrder) {
  const Results in_order = {{0, 1}, {1, 0}, {1, 1}};
  Results any = in_order;
  any.emplace(0, 0);
  EXPECT_EQ(store_buffering(memory_order_seq_cst, memory_order_seq_cst), in_order);
  EXPECT_EQ(store_buffering(memory_order_seq_cst, memory_order_acquire), any);
  EXPECT_EQ(store_buffering(memory_order_release, memory_order_seq_cst), any);
  EXPECT_EQ(store_buffering(memory_order_release, memory_order_acquire), any);
}

Results message_passing(memory_order store, memory_order load) {
  return results_of(
      [=](Shared& s) {
        s.x.store(1, memory_order_relaxed);
        s.y.store(1, store);
        return 0u;
      },
      [=](Shared& s) {
        const std::uint32_t flag = s.y.load(load);
        return flag * 2 + s.x.load(memory_order_relaxed);
      });
}

TEST(Explorer, AcquireSeesWhatReleaseTells) {
  EXPECT_EQ(message_passing(memory_order_release, memory_order_acquire),
            (Results{{0, 0}, {0, 1}, {0, 3}}));
  EXPECT_EQ(message_passing(memory_order_relaxed, memory_order_acquire),
            (Results{{0, 0}, {0, 1}, {0, 2}, {0, 3}}));
  EXPECT_EQ(message_passing(memory_order_release, memory_order_relaxed),
            (Results{{0, 0}, {0, 1}, {0, 2}, {0, 3}}));
}

TEST(Explorer, UpdatesLoseNothingAndPassOnWhatTheySee) {
  const Results results = results_of([](Shared& s) { return s.x.fetch_add(1); },
                                     [](Shared& s) { return s.x.fetch_add(1); });
  EXPECT_EQ(results, (Results{{0, 1}, {1, 0}}));
  // A release sequence: the third thread acquires the first one's store over the second's update.
  EXPECT_EQ(failure_of({[](Shared& s) {
                          s.data = 5;
                          s.x.store(1, memory_order_release);
                        },
                        [](Shared& s) {
                          std::uint32_t one = 1;
                          s.x.compare_exchange_strong(one, 2, memory_order_relaxed);
                        },
                        [](Shared& s) {
                          if (s.x.load(memory_order_acquire) != 2) return;
                          if (s.data != 5) model::fail("another value");
                        }}),
            std::nullopt);
}

TEST(Explorer, SeesOneOrderOfAWord) {
  EXPECT_EQ(failure_of({[](Shared& s) {
                          s.x.store(1, memory_order_relaxed);
                          s.x.store(2, memory_order_relaxed);
                        },
                        [](Shared& s) {
                          const auto first = s.x.load(memory_order_relaxed);
                          if (s.x.load(memory_order_relaxed) < first) model::fail("backwards");
                        }}),
            std::nullopt);
}

std::optional<std::string> hand_over(memory_order store, memory_order load) {
  return failure_of({[=](Shared& s) {
                       s.data = 1;
                       s.x.store(1, store);
                     },
                     [=](Shared& s) {
                       while (s.x.load(load) == 0) model::spin();
                       if (s.data != 1) model::fail("another value");
                     }});
}

TEST(Explorer, FindsDataThatIsNotHandedOver) {
  EXPECT_EQ(hand_over(memory_order_release, memory_order_acquire), std::nullopt);
  EXPECT_NE(hand_over(memory_order_relaxed, memory_order_acquire), std::nullopt);
  EXPECT_NE(hand_over(memory_order_release, memory_order_relaxed), std::nullopt);
}

}  // namespace
}  // namespace hora::internal
