#include "core/launch/options/hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/support/seed.h"

namespace hora::launch {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

HostSlots given(const std::string& name, int slots) {
  return {.name = name, .slots = slots};
}

HostSlots bare(const std::string& name) {
  return {.name = name, .slots = 1, .counted = false};
}

std::string list_refusal(std::string_view list) {
  const auto hosts = parse_host_list(list);
  EXPECT_FALSE(hosts) << list;
  return hosts ? "" : hosts.error();
}

std::string file_refusal(std::string_view text) {
  const auto hosts = parse_hostfile(text, "hosts.txt");
  EXPECT_FALSE(hosts) << text;
  return hosts ? "" : hosts.error();
}

TEST(HostList, NamesWithAndWithoutSlots) {
  EXPECT_THAT(*parse_host_list("a:2,b:3"), ElementsAre(given("a", 2), given("b", 3)));
  EXPECT_THAT(*parse_host_list("a,b"), ElementsAre(bare("a"), bare("b")));
  EXPECT_THAT(*parse_host_list("node-1.lan_x:2, 10.0.0.2:1"),
              ElementsAre(given("node-1.lan_x", 2), given("10.0.0.2", 1)));
}

TEST(HostList, Ipv6StandsInBrackets) {
  EXPECT_THAT(*parse_host_list("[fe80::1]:2,[::1]"), ElementsAre(given("fe80::1", 2), bare("::1")));
  EXPECT_THAT(list_refusal("fe80::1:2"), HasSubstr("in brackets, as in [fe80::1]:2"));
  EXPECT_THAT(list_refusal("[fe80::1"), HasSubstr("not closed"));
  EXPECT_THAT(list_refusal("[localhost]:2"), HasSubstr("no IPv6 address"));
  EXPECT_THAT(list_refusal("[::1]2"), HasSubstr("after the bracket"));
}

TEST(HostList, SlotsOfAHostThatIsNamedTwiceAreAddedUp) {
  EXPECT_THAT(*parse_host_list("a:2,b:1,a:3"), ElementsAre(given("a", 5), given("b", 1)));
  EXPECT_THAT(*parse_host_list("a,a,b"), ElementsAre(given("a", 2), bare("b")));
}

TEST(HostList, RefusesNamesThatCouldBeSomethingElse) {
  for (const char* wrong : {"-oProxyCommand=x", "-o", "a b", "user@host", "a;b", "$(id)", "a/b",
                            "a\nb", "`id`", "h\xc3\xb6st", "a%eth0", "a'b"}) {
    EXPECT_THAT(list_refusal(wrong), HasSubstr("a name ")) << wrong;
  }
  EXPECT_THAT(list_refusal(""), HasSubstr("empty"));
  EXPECT_THAT(list_refusal("a,"), HasSubstr("empty"));
  EXPECT_THAT(list_refusal(":2"), HasSubstr("empty"));
  EXPECT_THAT(list_refusal(std::string(254, 'a')), HasSubstr("253"));
  EXPECT_TRUE(parse_host_list(std::string(253, 'a')));
}

TEST(HostList, SlotsAreNumbersWithinTheLimit) {
  for (const char* wrong :
       {"a:", "a:0", "a:-1", "a:x", "a:2x", "a:65537", "a:99999999999999999999", "a: 2"}) {
    EXPECT_THAT(list_refusal(wrong), HasSubstr("a whole number from 1 to 65536")) << wrong;
  }
  EXPECT_TRUE(parse_host_list("a:65536"));
  EXPECT_THAT(list_refusal("a:65536,b"), HasSubstr("more than 65536 slots"));
  EXPECT_THAT(list_refusal("a:40000,a:40000"), HasSubstr("more than 65536 slots"));
}

TEST(Hostfile, OpenMpisAndHorovodsForm) {
  EXPECT_THAT(*parse_hostfile("# cluster\n\naa slots=2\n  bb\tslots = 3 # big\ncc\n", "h"),
              ElementsAre(given("aa", 2), given("bb", 3), bare("cc")));
  EXPECT_THAT(*parse_hostfile("a slots=2 max_slots=4\nb max-slots=3\nc slots_max=2 slots=1", "h"),
              ElementsAre(HostSlots{"a", 2, true, 4}, HostSlots{"b", 3, true, 3},
                          HostSlots{"c", 1, true, 2}));
}

TEST(Hostfile, MpichsForm) {
  EXPECT_THAT(*parse_hostfile("a:2\n[::1]:3\nb\n", "h"),
              ElementsAre(given("a", 2), given("::1", 3), bare("b")));
}

TEST(Hostfile, AnAddressWithoutBracketsHasItsSlotsElsewhere) {
  EXPECT_THAT(*parse_hostfile("fe80::1 slots=2", "h"), ElementsAre(given("fe80::1", 2)));
  EXPECT_THAT(file_refusal("fe80::1:2"), HasSubstr("in brackets"));
}

TEST(Hostfile, LinesMayEndAsOnWindows) {
  EXPECT_THAT(*parse_hostfile("\xef\xbb\xbf"
                              "a slots=2\r\n\r\nb:1\r\n",
                              "h"),
              ElementsAre(given("a", 2), given("b", 1)));
}

TEST(Hostfile, AFileOfRepeatedNamesCountsThem) {
  EXPECT_THAT(*parse_hostfile("a\na\nb\nb\n", "h"), ElementsAre(given("a", 2), given("b", 2)));
}

TEST(Hostfile, ErrorsNameTheLine) {
  EXPECT_THAT(file_refusal("a slots=2\nb slots=x\n"),
              AllOf(StartsWith("hosts.txt:2: "), HasSubstr("\"x\""), HasSubstr("slots")));
  EXPECT_THAT(file_refusal("a slots=2 slots=3"), HasSubstr("given twice"));
  EXPECT_THAT(file_refusal("a:2 slots=3"), HasSubstr("given twice"));
  EXPECT_THAT(file_refusal("a slots=4 max_slots=2"), HasSubstr("less than slots=4"));
  EXPECT_THAT(file_refusal("a user=b"), AllOf(HasSubstr("user=b"), HasSubstr("~/.ssh/config")));
  EXPECT_THAT(file_refusal("a 2"), HasSubstr("expected slots=NUMBER"));
  EXPECT_THAT(file_refusal("^a"), HasSubstr("a name has"));
  EXPECT_THAT(file_refusal("# nothing\n"), HasSubstr("no host is named"));
  EXPECT_THAT(file_refusal(std::string("a\0b", 3)), HasSubstr("\\x00"));
}

TEST(Layout, FillsHostByHost) {
  const std::vector hosts = {given("a", 2), given("b", 3), given("c", 2)};
  EXPECT_THAT(*lay_out_ranks(hosts, 4, false),
              ElementsAre(HostRanks{"a", 0, 2}, HostRanks{"b", 2, 2}));
  EXPECT_THAT(*lay_out_ranks(hosts, 7, false),
              ElementsAre(HostRanks{"a", 0, 2}, HostRanks{"b", 2, 3}, HostRanks{"c", 5, 2}));
}

TEST(Layout, MoreRanksThanSlotsAreAnErrorThatSaysWhatToDo) {
  const std::vector hosts = {given("a", 2), HostSlots{"b", 3, true, 4}};
  const auto layout = lay_out_ranks(hosts, 6, false);
  ASSERT_FALSE(layout);
  EXPECT_THAT(layout.error(),
              AllOf(HasSubstr("6 ranks"), HasSubstr("a has 2, b has 3 (at most 4)"),
                    HasSubstr("together 5"), HasSubstr("-np 5"), HasSubstr("--oversubscribe")));
}

TEST(Layout, HostsThatAreNotCountedShareTheRestEvenly) {
  EXPECT_THAT(*lay_out_ranks(std::vector{bare("a"), bare("b")}, 7, false),
              ElementsAre(HostRanks{"a", 0, 4}, HostRanks{"b", 4, 3}));
  EXPECT_THAT(*lay_out_ranks(std::vector{given("a", 2), bare("b")}, 7, false),
              ElementsAre(HostRanks{"a", 0, 2}, HostRanks{"b", 2, 5}));
}

TEST(Layout, OversubscriptionEndsAtTheLimits) {
  const std::vector hosts = {HostSlots{"a", 1, true, 2}, given("b", 1)};
  EXPECT_THAT(*lay_out_ranks(hosts, 8, true),
              ElementsAre(HostRanks{"a", 0, 2}, HostRanks{"b", 2, 6}));
  EXPECT_FALSE(lay_out_ranks(std::vector{HostSlots{"a", 1, true, 2}}, 3, true));
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
