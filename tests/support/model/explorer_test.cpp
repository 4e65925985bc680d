// The explorer finds what C++ allows, and nothing that it forbids.
#include "tests/support/model/explorer.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "tests/support/model/atomic.h"

namespace hora::internal {
namespace {

using model::Program;
using std::memory_order;
using std::memory_order_acquire;
using std::memory_order_relaxed;
using std::memory_order_release;
using std::memory_order_seq_cst;

struct Shared {
  Atomic<std::uint32_t> x, y, z;
  Plain<std::uint32_t> data;
};

using Results = std::set<std::pair<std::uint32_t, std::uint32_t>>;

/// The pairs of results that two threads can have.
template <class First, class Second>
Results results_of(First first, Second second) {
  Results results;
  const auto outcome = model::explore([&] {
    auto shared = std::make_shared<Shared>();
    auto got = std::make_shared<std::array<std::uint32_t, 2>>();
    return Program{
        .threads = {[=] { (*got)[0] = first(*shared); }, [=] { (*got)[1] = second(*shared); }},
        .at_end = [=, &results] { results.emplace((*got)[0], (*got)[1]); }};
  });
  EXPECT_EQ(outcome.failure, std::nullopt);
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
  const auto outcome = model::explore([] {
    auto s = std::make_shared<Shared>();
    return Program{.threads = {[s] {
                                 s->data = 5;
                                 s->x.store(1, memory_order_release);
                               },
                               [s] {
                                 std::uint32_t one = 1;
                                 s->x.compare_exchange_strong(one, 2, memory_order_relaxed);
                               },
                               [s] {
                                 if (s->x.load(memory_order_acquire) != 2) return;
                                 if (s->data != 5) model::fail("another value");
                               }}};
  });
  EXPECT_EQ(outcome.failure, std::nullopt);
}

TEST(Explorer, SeesOneOrderOfAWord) {
  const auto outcome = model::explore([] {
    auto s = std::make_shared<Shared>();
    return Program{.threads = {[s] {
                                 s->x.store(1, memory_order_relaxed);
                                 s->x.store(2, memory_order_relaxed);
                               },
                               [s] {
                                 const auto first = s->x.load(memory_order_relaxed);
                                 if (s->x.load(memory_order_relaxed) < first) {
                                   model::fail("backwards");
                                 }
                               }}};
  });
  EXPECT_EQ(outcome.failure, std::nullopt);
}

std::optional<std::string> hand_over(memory_order store, memory_order load) {
  return model::explore([=] {
           auto s = std::make_shared<Shared>();
           return Program{.threads = {[=] {
                                        s->data = 1;
                                        s->x.store(1, store);
                                      },
                                      [=] {
                                        while (s->x.load(load) == 0) model::spin();
                                        if (s->data != 1) model::fail("another value");
                                      }}};
         })
      .failure;
}

TEST(Explorer, FindsDataThatIsNotHandedOver) {
  EXPECT_EQ(hand_over(memory_order_release, memory_order_acquire), std::nullopt);
  EXPECT_NE(hand_over(memory_order_relaxed, memory_order_acquire), std::nullopt);
  EXPECT_NE(hand_over(memory_order_release, memory_order_relaxed), std::nullopt);
}

TEST(Explorer, FindsThatNoThreadCanProceed) {
  const auto outcome = model::explore([] {
    auto s = std::make_shared<Shared>();
    return Program{.threads = {[s] {
                     while (s->x.load() == 0) model::spin();
                   }}};
  });
  EXPECT_EQ(outcome.failure, "no thread can proceed: thread 0 spins");
}

// Three threads of two steps on words of their own: one execution stands for all 90 orders.
TEST(Explorer, RunsIndependentStepsInOneOrder) {
  const auto outcome = model::explore([] {
    auto s = std::make_shared<Shared>();
    const auto two_steps = [s](Atomic<std::uint32_t> Shared::*word) {
      return [s, word] {
        ((*s).*word).store(1);
        ((*s).*word).load();
      };
    };
    return Program{
        .threads = {two_steps(&Shared::x), two_steps(&Shared::y), two_steps(&Shared::z)}};
  });
  EXPECT_EQ(outcome.executions, 1u);
}

}  // namespace
}  // namespace hora::internal
