#include "core/launch/network/choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(NetworkChoice, NamesMayDifferBetweenHosts) {
  const Hosts hosts{host("a", {interface("eth0", "10.77.0.1/24")}),
                    host("b", {interface("ens3", "10.77.0.2/24")})};
  const NetworkChoice choice = choose_network(hosts, reachable(hosts, {}));
  EXPECT_THAT(choice.interfaces, ElementsAre(ElementsAre("eth0"), ElementsAre("ens3")));
  EXPECT_THAT(choice.subnets, ElementsAre("10.77.0.0/24"));
  EXPECT_EQ(choice.line, "network: 10.77.0.0/24 (a: eth0, b: ens3)");
  EXPECT_EQ(to_string(choice.addresses[1]), "10.77.0.2");
  EXPECT_FALSE(choice.warning);
}

TEST(NetworkChoice, BridgesOfContainersDropOut) {
  const Hosts hosts{host("a", {docker0(), interface("eth0", "10.77.0.1/24", 1000)}),
                    host("b", {docker0(), interface("eth0", "10.77.0.2/24", 1000)})};
  const NetworkChoice choice = choose_network(hosts, reachable(hosts, {"docker0"}));
  EXPECT_EQ(choice.line, "network: 10.77.0.0/24 (a: eth0, b: eth0)");
}

TEST(NetworkChoice, InterfacesThatAreDownAreNoCandidates) {
  const Hosts hosts{host("a", {down(interface("ib0", "10.1.0.1/24", 100'000)),
                               interface("eth0", "10.77.0.1/24")}),
                    host("b", {down(interface("ib0", "10.1.0.2/24", 100'000)),
                               interface("eth0", "10.77.0.2/24")})};
  EXPECT_EQ(candidates_of(hosts[0]).size(), 1U);
  EXPECT_THAT(choose_network(hosts, reachable(hosts, {})).subnets, ElementsAre("10.77.0.0/24"));
}

TEST(NetworkChoice, TheFastestIsChosenByItsSlowestHost) {
  const Hosts hosts{host("a", {interface("eth0", "10.1.0.1/24", 100'000),
                               interface("eth1", "10.2.0.1/24", 25'000)}),
                    host("b", {interface("eth0", "10.1.0.2/24", 1000),
                               interface("eth1", "10.2.0.2/24", 25'000)})};
  EXPECT_EQ(choose_network(hosts, reachable(hosts, {})).line,
            "network: 10.2.0.0/24 (a: eth1, b: eth1)");
}

TEST(NetworkChoice, HardwareOfUnknownSpeedGoesBeforeATunnel) {
  const Hosts hosts{
      host("a", {interface("wg0", "10.9.0.1/24", 0, false), interface("eth0", "10.77.0.1/24")}),
      host("b", {interface("wg0", "10.9.0.2/24", 0, false), interface("eth0", "10.77.0.2/24")})};
  EXPECT_THAT(choose_network(hosts, reachable(hosts, {})).subnets, ElementsAre("10.77.0.0/24"));
}

TEST(NetworkChoice, OneSubnetGoesBeforeRoutedOnes) {
  const Hosts hosts{
      host("a", {interface("eth0", "10.1.0.1/24"), interface("eth1", "10.3.0.1/24")}),
      host("b", {interface("eth0", "10.2.0.2/24"), interface("eth1", "10.3.0.2/24")})};
  EXPECT_THAT(choose_network(hosts, reachable(hosts, {})).subnets, ElementsAre("10.3.0.0/24"));
}

TEST(NetworkChoice, RoutedSubnetsAreAllNamed) {
  const Hosts hosts{host("a", {interface("eth0", "10.1.0.1/31")}),
                    host("b", {interface("eth0", "10.1.0.3/31")}),
                    host("c", {interface("eth0", "10.1.0.5/31")})};
  const NetworkChoice choice = choose_network(hosts, reachable(hosts, {}));
  EXPECT_THAT(choice.subnets, ElementsAre("10.1.0.0/31", "10.1.0.2/31", "10.1.0.4/31"));
}

TEST(NetworkChoice, IPv6AloneIsEnough) {
  const Hosts hosts{host("a", {interface("eth0", "fd00::1/64")}),
                    host("b", {interface("eth0", "fd00::2/64")})};
  EXPECT_THAT(choose_network(hosts, reachable(hosts, {})).subnets, ElementsAre("fd00::/64"));
}

TEST(NetworkChoice, ASubnetWithAnUnusedInterfaceIsNamedByItsAddresses) {
  const Hosts hosts{host("a", {interface("eth0", "10.0.0.1/8"), interface("br0", "10.9.0.1/24")}),
                    host("b", {interface("eth0", "10.0.0.2/8")})};
  const NetworkChoice choice = choose_network(hosts, reachable(hosts, {"br0"}));
  EXPECT_THAT(choice.subnets, ElementsAre("10.0.0.1/32", "10.0.0.2/32"));
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

}  // namespace
}  // namespace hora::launch
