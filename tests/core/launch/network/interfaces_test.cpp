#include "core/launch/network/interfaces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/core/launch/network/hosts_under_test.h"

namespace hora::launch {
namespace {

using test::docker0;
using test::down;
using test::host;
using test::interface;
using test::reachable;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

using Hosts = std::vector<HostNetwork>;

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

struct ChoiceCase {
  const char* name;
  std::vector<std::vector<Interface>> interfaces;  ///< by host: a, b, c
  std::vector<std::string> local;                  ///< interfaces that reach no other host
  const char* line;
};

TEST(NetworkChoice, IsTheFastestThatJoinsAllHosts) {
  const std::vector<ChoiceCase> cases{
      {"names may differ between hosts",
       {{interface("eth0", "10.77.0.1/24")}, {interface("ens3", "10.77.0.2/24")}},
       {},
       "10.77.0.0/24 (a: eth0, b: ens3)"},
      {"bridges of containers drop out",
       {{docker0(), interface("eth0", "10.77.0.1/24", 1000)},
        {docker0(), interface("eth0", "10.77.0.2/24", 1000)}},
       {"docker0"},
       "10.77.0.0/24 (a: eth0, b: eth0)"},
      {"interfaces that are down are no candidates",
       {{down(interface("ib0", "10.1.0.1/24", 100'000)), interface("eth0", "10.77.0.1/24")},
        {down(interface("ib0", "10.1.0.2/24", 100'000)), interface("eth0", "10.77.0.2/24")}},
       {},
       "10.77.0.0/24 (a: eth0, b: eth0)"},
      {"the slowest host counts",
       {{interface("eth0", "10.1.0.1/24", 100'000), interface("eth1", "10.2.0.1/24", 25'000)},
        {interface("eth0", "10.1.0.2/24", 1000), interface("eth1", "10.2.0.2/24", 25'000)}},
       {},
       "10.2.0.0/24 (a: eth1, b: eth1)"},
      {"hardware of unknown speed goes before a tunnel",
       {{interface("wg0", "10.9.0.1/24", 0, false), interface("eth0", "10.77.0.1/24")},
        {interface("wg0", "10.9.0.2/24", 0, false), interface("eth0", "10.77.0.2/24")}},
       {},
       "10.77.0.0/24 (a: eth0, b: eth0)"},
      {"one subnet goes before routed ones",
       {{interface("eth0", "10.1.0.1/24"), interface("eth1", "10.3.0.1/24")},
        {interface("eth0", "10.2.0.2/24"), interface("eth1", "10.3.0.2/24")}},
       {},
       "10.3.0.0/24 (a: eth1, b: eth1)"},
      {"routed subnets are all named",
       {{interface("eth0", "10.1.0.1/31")},
        {interface("eth0", "10.1.0.3/31")},
        {interface("eth0", "10.1.0.5/31")}},
       {},
       "10.1.0.0/31,10.1.0.2/31,10.1.0.4/31 (a: eth0, b: eth0, c: eth0)"},
      {"IPv6 alone is enough",
       {{interface("eth0", "fd00::1/64")}, {interface("eth0", "fd00::2/64")}},
       {},
       "fd00::/64 (a: eth0, b: eth0)"},
      {"a subnet with an unused interface is named by its addresses",
       {{interface("eth0", "10.0.0.1/8"), interface("br0", "10.9.0.1/24")},
        {interface("eth0", "10.0.0.2/8")}},
       {"br0"},
       "10.0.0.1/32,10.0.0.2/32 (a: eth0, b: eth0)"}};
  for (const ChoiceCase& each : cases) {
    Hosts hosts;
    for (const auto& of_host : each.interfaces) {
      hosts.push_back(host(std::string(1, static_cast<char>('a' + hosts.size())), of_host));
    }
    const NetworkChoice choice = choose_network(hosts, reachable(hosts, each.local));
    EXPECT_EQ(choice.line, std::string("network: ") + each.line) << each.name;
    EXPECT_FALSE(choice.warning) << each.name;
    EXPECT_EQ(choice.addresses.size(), hosts.size()) << each.name;
  }
}

TEST(NetworkChoice, OneWayIsNotEnough) {
  const Hosts hosts{
      host("a", {interface("eth0", "10.1.0.1/24"), interface("eth1", "10.2.0.1/24")}),
      host("b", {interface("eth0", "10.1.0.2/24"), interface("eth1", "10.2.0.2/24")})};
  Reachability reachability;
  reachability.add(0, 0, 1, 0);
  reachability.add(0, 1, 1, 1);
  reachability.add(1, 1, 0, 1);
  EXPECT_THAT(choose_network(hosts, reachability).subnets, ElementsAre("10.2.0.0/24"));
}

TEST(NetworkChoice, EveryPairOfHostsMustBeJoined) {
  // c is on the second network alone.
  const Hosts hosts{
      host("a", {interface("e0", "10.1.0.1/24", 9000), interface("e1", "10.2.0.1/24")}),
      host("b", {interface("e0", "10.1.0.2/24", 9000), interface("e1", "10.2.0.2/24")}),
      host("c", {interface("e1", "10.2.0.3/24")})};
  Reachability reachability;
  const auto both_ways = [&](std::size_t i, std::size_t a, std::size_t j, std::size_t b) {
    reachability.add(i, a, j, b);
    reachability.add(j, b, i, a);
  };
  both_ways(0, 0, 1, 0);
  both_ways(0, 1, 1, 1);
  both_ways(0, 1, 2, 0);
  both_ways(1, 1, 2, 0);
  EXPECT_EQ(choose_network(hosts, reachability).line, "network: 10.2.0.0/24 (a: e1, b: e1, c: e1)");
}

TEST(NetworkChoice, OneMachineUsesLoopback) {
  Hosts hosts{host("127.0.0.2", {interface("eth0", "10.77.0.1/24")}),
              host("127.0.0.3", {interface("eth0", "10.77.0.1/24")})};
  hosts[1].stack = hosts[0].stack;
  const NetworkChoice choice = choose_network(hosts, {});
  EXPECT_THAT(choice.interfaces, ElementsAre(ElementsAre("lo"), ElementsAre("lo")));
  EXPECT_EQ(choice.line, "network: loopback (all hosts are one machine)");
  EXPECT_EQ(choose_network(std::span(hosts).first(1), {}).line, choice.line);
}

TEST(NetworkChoice, WhereUdpIsBlockedWhatNoTwoHostsShareIsUsedWithAWarning) {
  const Hosts hosts{host("a", {docker0(), interface("eth0", "10.77.0.1/24"),
                               interface("eth1", "192.168.9.1/24")}),
                    host("b", {docker0(), interface("ens3", "10.77.0.2/24")})};
  const NetworkChoice choice = choose_network(hosts, {});
  EXPECT_EQ(choice.line, "network: 10.77.0.0/24 (a: eth0, b: ens3)");
  EXPECT_THAT(choice.warning.value_or(""),
              AllOf(HasSubstr("UDP may be blocked"), HasSubstr("--network-interfaces"),
                    HasSubstr("host b has lo (127.0.0.1/8), docker0")));
}

TEST(NetworkChoice, HostsThatNothingReachesAreNamed) {
  const Hosts hosts{host("a", {interface("eth0", "10.1.0.1/24")}),
                    host("b", {interface("eth0", "10.1.0.2/24")}),
                    host("c", {interface("eth0", "10.8.0.3/24")})};
  Reachability reachability;
  reachability.add(0, 0, 1, 0);
  reachability.add(1, 0, 0, 0);
  const NetworkChoice choice = choose_network(hosts, reachability);
  EXPECT_THAT(choice.warning.value_or(""), HasSubstr("a and c, b and c;"));
  EXPECT_EQ(choice.interfaces.size(), 3U);
}

TEST(NetworkChoice, AHostWithoutAnyNetworkIsNamed) {
  const Hosts hosts{host("a", {interface("eth0", "10.1.0.1/24")}),
                    host("b", {down(interface("eth0", "10.1.0.2/24"))})};
  const NetworkChoice choice = choose_network(hosts, {});
  EXPECT_THAT(choice.warning.value_or(""), AllOf(HasSubstr("host b has no network interface"),
                                                 HasSubstr("eth0 (10.1.0.2/24, down)")));
  EXPECT_THAT(choice.interfaces, ElementsAre(ElementsAre(), ElementsAre()));
}

TEST(NetworkChoice, ManyHostsAreChosenFrom) {
  Hosts hosts;
  for (int i = 1; i <= 60; ++i) {
    const std::string last = std::to_string(i);
    hosts.push_back(host("n" + last, {docker0(), interface("eth0", "10.1.0." + last + "/24"),
                                      interface("ib0", "10.2.0." + last + "/24", 200'000)}));
  }
  EXPECT_THAT(choose_network(hosts, reachable(hosts, {"docker0"})).subnets,
              ElementsAre("10.2.0.0/24"));
}

Hosts two_hosts() {
  return {
      host("a", {docker0(), interface("eth0", "10.77.0.1/24"), interface("ib0", "10.1.0.1/16")}),
      host("b", {docker0(), interface("ens3", "10.77.0.2/24"), interface("ib0", "10.1.0.2/16")})};
}

/// `named` as the user writes it, with commas.
tl::expected<NetworkChoice, std::string> choose(const Hosts& hosts, const std::string& named) {
  std::vector<std::string> items;
  std::size_t from = 0;
  for (std::size_t i = 0; i <= named.size(); ++i) {
    if (i < named.size() && named[i] != ',') continue;
    items.push_back(named.substr(from, i - from));
    from = i + 1;
  }
  return choose_named(hosts, items);
}

std::string error_of(const Hosts& hosts, const std::string& named) {
  const auto choice = choose(hosts, named);
  EXPECT_FALSE(choice) << named;
  return choice ? "" : choice.error();
}

TEST(NamedInterfaces, AreUsedOnEveryHost) {
  const auto choice = choose(two_hosts(), "ib0");
  ASSERT_TRUE(choice) << choice.error();
  EXPECT_EQ(choice->line, "network: 10.1.0.0/16 (a: ib0, b: ib0)");
}

TEST(NamedInterfaces, MayHaveAnotherNameOnEachHost) {
  const auto choice = choose(two_hosts(), "eth0,ens3");
  ASSERT_TRUE(choice) << choice.error();
  EXPECT_THAT(choice->interfaces, ElementsAre(ElementsAre("eth0"), ElementsAre("ens3")));
  const auto several = choose(two_hosts(), "eth0,ens3,ib0");
  ASSERT_TRUE(several) << several.error();
  EXPECT_EQ(several->line, "network: 10.77.0.0/24,10.1.0.0/16 (a: eth0+ib0, b: ens3+ib0)");
}

TEST(NamedInterfaces, MayBeASubnet) {
  const auto choice = choose(two_hosts(), "10.77.0.0/24");
  ASSERT_TRUE(choice) << choice.error();
  EXPECT_THAT(choice->interfaces, ElementsAre(ElementsAre("eth0"), ElementsAre("ens3")));
}

TEST(NamedInterfaces, AWrongNameIsAnErrorWithTheHostAndWhatItHas) {
  EXPECT_THAT(error_of(two_hosts(), "eth0"),
              AllOf(HasSubstr("--network-interfaces eth0: host b has no such interface"),
                    HasSubstr("ens3 (10.77.0.2/24)"), HasSubstr("ib0 (10.1.0.2/16)")));
  EXPECT_THAT(error_of(two_hosts(), "ib0,ib1"), HasSubstr("no host has \"ib1\""));
  EXPECT_THAT(error_of(two_hosts(), "10.78.0.0/24"), HasSubstr("host a has no such interface"));
}

TEST(NamedInterfaces, WhatIsDownOrHasNoAddressIsSaid) {
  Hosts hosts = two_hosts();
  hosts[1].interfaces.back() = down(hosts[1].interfaces.back());
  EXPECT_THAT(error_of(hosts, "ib0"), HasSubstr("host b has ib0, but it is down"));
  hosts[1].interfaces.back() = interface("ib0", "");
  EXPECT_THAT(error_of(hosts, "ib0"), HasSubstr("host b has ib0, but it has no address"));
}

TEST(NamedInterfaces, LoopbackJoinsOneMachineOnly) {
  Hosts hosts = two_hosts();
  EXPECT_THAT(error_of(hosts, "lo"), HasSubstr("host b is another machine than a"));
  hosts[1].stack = hosts[0].stack;
  EXPECT_TRUE(choose(hosts, "lo"));
}

TEST(NamedInterfaces, OtherTextsAreErrors) {
  for (const char* named : {"", ",", "eth0,", "10.0.0.0/99", "a/b"}) {
    EXPECT_THAT(error_of(two_hosts(), named), HasSubstr("neither an interface's name"));
  }
  EXPECT_THAT(error_of(two_hosts(), "e\x1b[0m"), HasSubstr("\\x1b"));
}

}  // namespace
}  // namespace hora::launch
