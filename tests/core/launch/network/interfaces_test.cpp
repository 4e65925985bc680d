#include "core/launch/network/interfaces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/core/launch/network/hosts_under_test.h"

namespace hora::launch {
namespace {

TEST(Interfaces, OfThisHostHaveLoopback) {
  const std::vector<Interface> interfaces = this_host_interfaces();
  const auto loopback = std::ranges::find_if(interfaces, &Interface::loopback);
  ASSERT_NE(loopback, interfaces.end());
  EXPECT_FALSE(loopback->hardware);
  EXPECT_GT(loopback->mtu, 1500);
  if (!loopback->usable()) GTEST_SKIP() << "loopback is down here";
  const InterfaceAddress expected{*parse_address("127.0.0.1"), 8};
  EXPECT_THAT(loopback->addresses, testing::Contains(expected));
}

TEST(Interfaces, EachIsListedOnce) {
  std::vector<std::string> names;
  for (const Interface& interface : this_host_interfaces()) names.push_back(interface.name);
  std::ranges::sort(names);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
}

TEST(Interfaces, OneProcessHasOneNetworkStack) {
  EXPECT_EQ(this_network_stack(), this_network_stack());
  EXPECT_GT(this_network_stack().size(), 36U);
}

TEST(Interfaces, AreDescribedWithAddressesAndState) {
  const std::vector<Interface> interfaces{test::interface("eth0", "10.77.0.1/24"),
                                          test::down(test::docker0()), test::interface("ib0", "")};
  EXPECT_EQ(describe(interfaces),
            "eth0 (10.77.0.1/24), docker0 (172.17.0.1/16, down), ib0 (no address)");
  EXPECT_EQ(describe({}), "none");
}

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
