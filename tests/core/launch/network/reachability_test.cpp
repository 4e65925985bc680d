#include "core/launch/network/reachability.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/launch/network/hosts_under_test.h"

namespace hora::launch {
namespace {

TEST(Candidates, AreWhatOtherHostsMayReach) {
  Interface several = test::interface("eth0", "10.0.0.1/24");
  several.addresses.push_back({*parse_address("fe80::1"), 64});
  several.addresses.push_back({*parse_address("fd00::1"), 64});
  const HostNetwork host = test::host("a", {test::down(test::interface("eth1", "10.1.0.1/24")),
                                            test::interface("eth2", ""), several});
  EXPECT_THAT(candidates_of(host),
              testing::ElementsAre(Candidate{3, *parse_address("10.0.0.1"), 24},
                                   Candidate{3, *parse_address("fd00::1"), 64}));
}

TEST(Reachability, IsMutualWhereBothWereAnswered) {
  Reachability reachability;
  EXPECT_TRUE(reachability.empty());
  reachability.add(0, 1, 2, 3);
  EXPECT_FALSE(reachability.empty());
  EXPECT_FALSE(reachability.mutual(0, 1, 2, 3));
  reachability.add(2, 3, 0, 1);
  EXPECT_TRUE(reachability.mutual(0, 1, 2, 3));
  EXPECT_TRUE(reachability.mutual(2, 3, 0, 1));
}

TEST(ProbePartners, AreSymmetricAndJoinAllHosts) {
  for (std::size_t hosts = 1; hosts < 200; hosts += 1 + hosts / 8) {
    std::set<std::size_t> reached{0};
    std::vector<std::size_t> next{0};
    while (!next.empty()) {
      const std::size_t from = next.back();
      next.pop_back();
      for (const std::size_t peer : probe_partners(from, hosts)) {
        EXPECT_NE(peer, from);
        ASSERT_LT(peer, hosts);
        EXPECT_THAT(probe_partners(peer, hosts), testing::Contains(from));
        if (reached.insert(peer).second) next.push_back(peer);
      }
    }
    EXPECT_EQ(reached.size(), hosts);
    EXPECT_LE(probe_partners(0, hosts).size(), 16U);
  }
  EXPECT_THAT(probe_partners(1, 3), testing::ElementsAre(0, 2));
}

}  // namespace
}  // namespace hora::launch
