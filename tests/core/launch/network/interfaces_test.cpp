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

}  // namespace
}  // namespace hora::launch
