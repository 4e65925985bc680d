#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/launch/network/choice.h"
#include "tests/core/launch/network/hosts_under_test.h"

namespace hora::launch {
namespace {

using test::docker0;
using test::down;
using test::host;
using test::interface;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

using Hosts = std::vector<HostNetwork>;

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
