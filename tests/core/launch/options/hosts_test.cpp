#include "core/launch/options/hosts.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/seed.h"

namespace hora::launch {
namespace {

HostSlots given(const std::string& name, int slots) {
  return {.name = name, .slots = slots};
}

HostSlots bare(const std::string& name) {
  return {.name = name, .slots = 1, .counted = false};
}

TEST(Layout, FillsHostByHostThenSharesEvenlyUpToTheLimits) {
  struct Case {
    std::vector<HostSlots> hosts;
    int np;
    bool oversubscribe;
    std::vector<HostRanks> ranks;  ///< empty: refused
  };
  const std::vector three{given("a", 2), given("b", 3), given("c", 2)};
  for (const Case& each :
       std::vector<Case>{{three, 4, false, {{"a", 0, 2}, {"b", 2, 2}}},
                         {three, 7, false, {{"a", 0, 2}, {"b", 2, 3}, {"c", 5, 2}}},
                         {{bare("a"), bare("b")}, 7, false, {{"a", 0, 4}, {"b", 4, 3}}},
                         {{given("a", 2), bare("b")}, 7, false, {{"a", 0, 2}, {"b", 2, 5}}},
                         {{{"a", 1, true, 2}, given("b", 1)}, 8, true, {{"a", 0, 2}, {"b", 2, 6}}},
                         {{{"a", 1, true, 2}}, 3, true, {}}}) {
    const auto layout = lay_out_ranks(each.hosts, each.np, each.oversubscribe);
    EXPECT_EQ(layout.value_or(std::vector<HostRanks>()), each.ranks) << each.np;
  }
}

TEST(Layout, EveryRankHasOneHostWithinItsLimit) {
  auto random = internal::test::generator();
  for (int round = 0; round < 2000; ++round) {
    std::vector<HostSlots> hosts(1 + random() % 6);
    for (HostSlots& host : hosts) {
      host.name = std::string(1, static_cast<char>('a' + (&host - hosts.data())));
      host.slots = 1 + static_cast<int>(random() % 5);
      host.counted = random() % 2 == 0;
      if (random() % 2 == 0) host.limit = host.slots + static_cast<int>(random() % 3);
    }
    const bool oversubscribe = random() % 2 == 0;
    const int np = 1 + static_cast<int>(random() % 40);
    long long room = 0;
    for (const HostSlots& host : hosts) {
      room += oversubscribe || !host.counted ? host.limit : host.slots;
    }
    const auto layout = lay_out_ranks(hosts, np, oversubscribe);
    ASSERT_EQ(layout.has_value(), np <= room);
    int next = 0;
    for (const HostRanks& part : layout.value_or(std::vector<HostRanks>())) {
      ASSERT_EQ(part.first, next);
      ASSERT_GT(part.ranks, 0);
      const auto host = std::ranges::find(hosts, part.name, &HostSlots::name);
      ASSERT_LE(part.ranks, oversubscribe || !host->counted ? host->limit : host->slots);
      next += part.ranks;
    }
    ASSERT_EQ(next, layout ? np : 0);
  }
}

TEST(Layout, TheLargestJobIsQuick) {
  std::vector<HostSlots> hosts;
  for (int i = 0; i < kMostRanks; ++i) hosts.push_back(given("h" + std::to_string(i), 1));
  EXPECT_EQ(lay_out_ranks(hosts, kMostRanks, false)->size(), static_cast<std::size_t>(kMostRanks));
}

}  // namespace
}  // namespace hora::launch
