#include "core/launch/network/interfaces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/core/launch/network/hosts_under_test.h"

namespace hora::launch {
namespace {

TEST(Address, IsReadAndPrinted) {
  for (const char* text : {"10.77.0.1", "0.0.0.0", "255.255.255.255", "::1", "::", "fd00::2:1"}) {
    const auto address = parse_address(text);
    ASSERT_TRUE(address) << text;
    EXPECT_EQ(to_string(*address), text);
  }
  EXPECT_EQ(parse_address("::ffff:10.0.0.1"), parse_address("10.0.0.1"));
  for (const char* text :
       {"", "10.77.0", "10.77.0.256", "host", "[::1]", "10.0.0.1:5", "1::2::3"}) {
    EXPECT_FALSE(parse_address(text)) << text;
  }
  EXPECT_FALSE(parse_address(std::string("10.0.0.1\0", 9)));
}

TEST(Address, KnowsItsKind) {
  EXPECT_TRUE(parse_address("127.0.0.2")->is_loopback());
  EXPECT_TRUE(parse_address("::1")->is_loopback());
  EXPECT_FALSE(parse_address("::2")->is_loopback());
  EXPECT_FALSE(parse_address("10.0.0.1")->is_loopback());
  EXPECT_TRUE(parse_address("fe80::1")->is_link_local());
  EXPECT_TRUE(parse_address("169.254.3.4")->is_link_local());
  EXPECT_FALSE(parse_address("fd00::1")->is_link_local());
  EXPECT_TRUE(parse_address("0.0.0.0")->is_unspecified());
  EXPECT_FALSE(parse_address("0.0.0.1")->is_unspecified());
}

TEST(Address, WithAPortIPv6StandsInBrackets) {
  EXPECT_EQ(to_string(Endpoint{*parse_address("10.0.0.1"), 5}), "10.0.0.1:5");
  EXPECT_EQ(to_string(Endpoint{*parse_address("fd00::1"), 5}), "[fd00::1]:5");
}

TEST(Subnet, ContainsWhatSharesItsFirstBits) {
  const auto subnet = parse_subnet("10.77.3.9/22");
  ASSERT_TRUE(subnet);
  EXPECT_EQ(to_string(*subnet), "10.77.0.0/22");
  EXPECT_TRUE(subnet->contains(*parse_address("10.77.3.255")));
  EXPECT_FALSE(subnet->contains(*parse_address("10.77.4.0")));
  EXPECT_FALSE(subnet->contains(*parse_address("::")));
  EXPECT_TRUE(parse_subnet("0.0.0.0/0")->contains(*parse_address("10.77.4.0")));
  EXPECT_TRUE(parse_subnet("10.0.0.1/32")->contains(*parse_address("10.0.0.1")));
  EXPECT_FALSE(parse_subnet("10.0.0.1/32")->contains(*parse_address("10.0.0.0")));
  EXPECT_EQ(to_string(*parse_subnet("fd00::ff/121")), "fd00::80/121");
}

TEST(Subnet, OtherTextsAreNone) {
  for (const char* text : {"", "/", "10.0.0.0", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/-1",
                           "10.0.0.0/8 ", "::/129", "a/8", "10.0.0.0/8/8"}) {
    EXPECT_FALSE(parse_subnet(text)) << text;
  }
  EXPECT_EQ(subnet_of(*parse_address("10.0.0.1"), 99).prefix, 32);
  EXPECT_EQ(subnet_of(*parse_address("10.0.0.1"), -1).prefix, 0);
}

TEST(SocketAddress, HoldsAddressAndPort) {
  for (const char* text : {"10.77.0.1", "fd00::1"}) {
    const SocketAddress address(*parse_address(text), 29500);
    EXPECT_EQ(address.address(), parse_address(text));
    EXPECT_EQ(address.port(), 29500);
  }
  SocketAddress other;
  other.storage.ss_family = AF_UNIX;
  EXPECT_FALSE(other.address());
  EXPECT_FALSE(address_of(nullptr));
}

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
