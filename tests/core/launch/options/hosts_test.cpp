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

HostSlots given(const std::string& name, int slots) {
  return {.name = name, .slots = slots};
}

HostSlots bare(const std::string& name) {
  return {.name = name, .slots = 1, .counted = false};
}

/// "a:2 b:1+/4": with `+` where the slots are not counted, and the limit after `/`; or the error.
std::string text_of(const tl::expected<std::vector<HostSlots>, std::string>& hosts) {
  if (!hosts) return hosts.error();
  std::string text;
  for (const HostSlots& host : *hosts) {
    text += (text.empty() ? "" : " ") + host.name + ":" + std::to_string(host.slots) +
            (host.counted ? "" : "+") +
            (host.limit < kMostRanks ? "/" + std::to_string(host.limit) : "");
  }
  return text;
}

struct Case {
  std::string text;
  const char* outcome;  ///< or a part of it
};

TEST(HostList, HasItsOutcome) {
  for (const auto& [text, outcome] :
       std::vector<Case>{{"a:2,b:3", "a:2 b:3"},
                         {"a,b", "a:1+ b:1+"},
                         {"node-1.lan_x:2, 10.0.0.2:1", "node-1.lan_x:2 10.0.0.2:1"},
                         {"[fe80::1]:2,[::1]", "fe80::1:2 ::1:1+"},
                         {"fe80::1:2", "in brackets, as in [fe80::1] or [fe80::1]:2"},
                         {"[fe80::1", "in brackets, as in"},
                         {"[localhost]:2", "in brackets, as in"},
                         {"[::1]2", "in brackets, as in"},
                         {"a:2,b:1,a:3", "a:5 b:1"},
                         {"a,a,b", "a:2 b:1+"},
                         {"", "empty"},
                         {"a,", "empty"},
                         {":2", "empty"},
                         {std::string(254, 'a'), "253"},
                         {std::string(253, 'a'), "a:1+"},
                         {"a:65536", "a:65536"},
                         {"a:65536,b", "more than 65536 slots"},
                         {"a:40000,a:40000", "more than 65536 slots"}}) {
    EXPECT_THAT(text_of(parse_host_list(text)), HasSubstr(outcome)) << text;
  }
  for (const char* wrong : {"-oProxyCommand=x", "-o", "a b", "user@host", "a;b", "$(id)", "a/b",
                            "a\nb", "`id`", "h\xc3\xb6st", "a%eth0", "a'b"}) {
    EXPECT_THAT(text_of(parse_host_list(wrong)), HasSubstr("a name ")) << wrong;
  }
  for (const char* wrong :
       {"a:", "a:0", "a:-1", "a:x", "a:2x", "a:65537", "a:99999999999999999999", "a: 2"}) {
    EXPECT_THAT(text_of(parse_host_list(wrong)), HasSubstr("a whole number from 1 to 65536"));
  }
}

TEST(Hostfile, HasItsOutcome) {
  for (const auto& [text, outcome] : std::vector<Case>{
           {"# cluster\n\naa slots=2\n  bb\tslots = 3 # big\ncc\n", "aa:2 bb:3 cc:1+"},
           {"a slots=2 max_slots=4\nb max-slots=3\nc slots_max=2 slots=1", "a:2/4 b:3/3 c:1/2"},
           {"a:2\n[::1]:3\nb\n", "a:2 ::1:3 b:1+"},
           {"fe80::1 slots=2", "fe80::1:2"},
           {"fe80::1:2", "in brackets"},
           {"\xef\xbb\xbf"
            "a slots=2\r\n\r\nb:1\r\n",
            "a:2 b:1"},
           {"a\na\nb\nb\n", "a:2 b:2"},
           {"a slots=2\nb slots=x\n", "hosts.txt:2: host \"b\": \"x\" is no number of slots"},
           {"a slots=2 slots=3", "given twice"},
           {"a:2 slots=3", "given twice"},
           {"a slots=4 max_slots=2", "less than slots=4"},
           {"a user=b", "\"user=b\" after host \"a\" is unknown; expected slots=NUMBER"},
           {"a 2", "expected slots=NUMBER"},
           {"=", "a name has"},
           {"^a", "a name has"},
           {"# nothing\n", "no host is named"},
           {std::string("a\0b", 3), "\\x00"}}) {
    EXPECT_THAT(text_of(parse_hostfile(text, "hosts.txt")), HasSubstr(outcome)) << text;
  }
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

std::string url_of(const tl::expected<RendezvousPlace, std::string>& place) {
  return place ? to_url(*place) : "refused: " + place.error();
}

TEST(RendezvousPlace, IsAnAddressOrAFolder) {
  for (const char* url : {"tcp://a:29400", "tcp://[fe80::1]:65535", "file:///shared/job 1"}) {
    EXPECT_EQ(url_of(parse_rendezvous(url)), url);
  }
  EXPECT_EQ(url_of(parse_rendezvous("tcp://10.0.0.1:1/")), "tcp://10.0.0.1:1");
  for (const char* url :
       {"", "a:1", "http://a:1", "tcp://a", "tcp://:1", "tcp://a:0", "tcp://a:65536", "tcp://a:x",
        "tcp://-o:1", "tcp://a b:1", "tcp://fe80::1:1", "tcp://[fe80::1", "file://host/x",
        "file://", "file://x", "tcp://a:1/x"}) {
    EXPECT_FALSE(parse_rendezvous(url)) << url;
  }
}

TEST(RendezvousPlace, EndpointsAreTorchruns) {
  for (const auto& [endpoint, url] : std::vector<Case>{{"a:1", "tcp://a:1"},
                                                       {"a", "tcp://a:29400"},
                                                       {"localhost:0", "tcp://localhost:0"},
                                                       {"[::1]:5", "tcp://[::1]:5"},
                                                       {"[::1]", "tcp://[::1]:29400"},
                                                       {"tcp://a:7", "tcp://a:7"}}) {
    EXPECT_EQ(url_of(parse_endpoint(endpoint)), url);
  }
  EXPECT_FALSE(parse_endpoint("a:x"));
  EXPECT_FALSE(parse_endpoint(""));
}

/// Where nodes meet by the environment, wrong values included: command_lines.txt.
TEST(RendezvousFromEnvironment, IsNothingWhereSomethingIsMissing) {
  using Environment = std::vector<const char*>;
  for (const Environment& environment :
       {Environment{}, Environment{"MASTER_ADDR=a"}, Environment{"MASTER_ADDR=a", "WORLD_SIZE=2"},
        Environment{"WORLD_SIZE=2", "RANK=0"},
        Environment{"MASTER_ADDR=", "WORLD_SIZE=2", "RANK=0"},
        Environment{"MASTER_ADDRESS=a", "WORLD_SIZE=2", "RANK=0"},
        Environment{"MASTER_ADDR=a", "NNODES=2", "RANK=0", nullptr}}) {
    EXPECT_EQ(rendezvous_from_environment(environment).value(), std::nullopt);
  }
}

}  // namespace
}  // namespace hora::launch
