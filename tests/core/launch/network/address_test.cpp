#include "core/launch/network/address.h"

#include <gtest/gtest.h>

#include <cstring>

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
  EXPECT_EQ(with_port(*parse_address("10.0.0.1"), 5), "10.0.0.1:5");
  EXPECT_EQ(with_port(*parse_address("fd00::1"), 5), "[fd00::1]:5");
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

}  // namespace
}  // namespace hora::launch
