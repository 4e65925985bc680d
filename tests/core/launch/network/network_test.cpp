#include "core/launch/network/network.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <tuple>

#include "core/launch/text.h"
#include "tests/core/launch/network/hosts_under_test.h"
#include "tests/core/launch/network/trial_of_agents.h"
#include "tests/core/launch/texts.h"
#include "tests/support/seed.h"

namespace hora::launch {
namespace {

using test::docker0;
using test::down;
using test::host;
using test::interface;

using Hosts = std::vector<HostNetwork>;

TEST(Address, IsReadAndPrinted) {
  std::string text;
  for (const std::string_view each :
       split("10.77.0.1|0.0.0.0|255.255.255.255|127.0.0.2|10.0.0.127||"
             "10.77.0|10.77.0.256|host|::1|10.0.0.1:5",
             '|')) {
    const auto address = parse_address(std::string(each));
    text += fmt::format("{}: {}{}{}\n", each, address ? to_string(*address) : "none",
                        address && address->is_loopback() ? ", loopback" : "",
                        address && address->is_unspecified() ? ", unspecified" : "");
  }
  test::expect_texts("addresses", text + to_string(Endpoint{*parse_address("10.0.0.1"), 5}));
  EXPECT_FALSE(parse_address(std::string("10.0.0.1\0", 9)));
}

TEST(Subnet, ContainsWhatSharesItsFirstBits) {
  std::string text;
  for (const auto& [base, prefix, address] : {std::tuple("10.77.3.9", 22, "10.77.3.255"),
                                              {"10.77.3.9", 22, "10.77.4.0"},
                                              {"0.0.0.0", 0, "10.77.4.0"},
                                              {"10.0.0.1", 32, "10.0.0.1"},
                                              {"10.0.0.1", 32, "10.0.0.0"}}) {
    const Subnet subnet = subnet_of(*parse_address(base), prefix);
    text += fmt::format("{} with {}: {}\n", to_string(subnet), address,
                        subnet.contains(*parse_address(address)));
  }
  test::expect_texts("subnets", text);
}

TEST(HostAddresses, OfThisHostHaveLoopback) {
  const std::vector<HostAddress> addresses = this_host_addresses();
  const auto loopback = std::ranges::find_if(addresses, &HostAddress::loopback);
  ASSERT_NE(loopback, addresses.end());
  EXPECT_FALSE(loopback->hardware || loopback->is_candidate());
  EXPECT_GT(loopback->mtu, 1500);
  EXPECT_EQ(this_network_stack(), this_network_stack());
  EXPECT_GT(this_network_stack().size(), 36U);
  if (!loopback->up) GTEST_SKIP() << "loopback is down here";
  EXPECT_EQ(describe({{*loopback}}), "lo (127.0.0.1/8)");
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

/// Hosts a, b, c, ...
Hosts hosts_with(const std::vector<std::vector<HostAddress>>& interfaces) {
  Hosts hosts;
  for (const auto& of_host : interfaces) {
    hosts.push_back(host(std::string(1, static_cast<char>('a' + hosts.size())), of_host));
  }
  return hosts;
}

std::string text_of(const tl::expected<NetworkChoice, std::string>& choice) {
  if (!choice) return "  error: " + choice.error() + "\n";
  std::string text = fmt::format("  {} {} {}", choice->line, choice->interfaces, choice->subnets);
  for (const IpAddress& each : choice->addresses) text += " " + to_string(each);
  return text + "\n" + (choice->warning ? "  warning: " + *choice->warning + "\n" : "");
}

TEST(NetworkChoice, IsTheFastestThatJoinsAllHosts) {
  const auto eth0 = [](const char* at, int speed = 0) { return interface("eth0", at, speed); };
  const auto eth1 = [](const char* at, int speed = 0) { return interface("eth1", at, speed); };
  const auto wg0 = [](const char* address) { return interface("wg0", address, 0, false); };
  const auto ib0 = [](const char* address) { return down(interface("ib0", address, 100'000)); };
  struct Case {
    const char* name;
    std::vector<std::vector<HostAddress>> interfaces;  ///< by host
    std::string local = {};  ///< the interface that reaches no other host, or "all"
    Reachability reached = {};
  };
  std::string text;
  for (const Case& each : std::vector<Case>{
           {"names may differ between hosts",
            {{eth0("10.77.0.1/24")}, {interface("ens3", "10.77.0.2/24")}}},
           {"bridges of containers drop out",
            {{docker0(), eth0("10.77.0.1/24", 1000)}, {docker0(), eth0("10.77.0.2/24", 1000)}},
            "docker0"},
           {"interfaces that are down are no candidates",
            {{ib0("10.1.0.1/24"), eth0("10.77.0.1/24")},
             {ib0("10.1.0.2/24"), eth0("10.77.0.2/24")}}},
           {"the slowest host counts",
            {{eth0("10.1.0.1/24", 100'000), eth1("10.2.0.1/24", 25'000)},
             {eth0("10.1.0.2/24", 1000), eth1("10.2.0.2/24", 25'000)}}},
           {"hardware of unknown speed goes before a tunnel",
            {{wg0("10.9.0.1/24"), eth0("10.77.0.1/24")},
             {wg0("10.9.0.2/24"), eth0("10.77.0.2/24")}}},
           {"one subnet goes before routed ones",
            {{eth0("10.1.0.1/24"), eth1("10.3.0.1/24")},
             {eth0("10.2.0.2/24"), eth1("10.3.0.2/24")}}},
           {"routed subnets are all named",
            {{eth0("10.1.0.1/31")}, {eth0("10.1.0.3/31")}, {eth0("10.1.0.5/31")}}},
           {"a subnet with an unused interface is named by its addresses",
            {{eth0("10.0.0.1/8"), interface("br0", "10.9.0.1/24")}, {eth0("10.0.0.2/8")}},
            "br0"},
           {"one way is not enough",
            {{eth0("10.1.0.1/24"), eth1("10.2.0.1/24")},
             {eth0("10.1.0.2/24"), eth1("10.2.0.2/24")}},
            "all",
            {{0, 1, 1, 1}, {0, 2, 1, 2}, {1, 2, 0, 2}}},
           {"every pair of hosts must be joined",  // c is on the second network alone
            {{eth0("10.1.0.1/24", 9000), eth1("10.2.0.1/24")},
             {eth0("10.1.0.2/24", 9000), eth1("10.2.0.2/24")},
             {eth1("10.2.0.3/24")}},
            "all",
            {{0, 1, 1, 1},
             {1, 1, 0, 1},
             {0, 2, 1, 2},
             {1, 2, 0, 2},
             {0, 2, 2, 1},
             {2, 1, 0, 2},
             {1, 2, 2, 1},
             {2, 1, 1, 2}}},
           {"where UDP is blocked what no two hosts share is used with a warning",
            {{docker0(), eth0("10.77.0.1/24"), eth1("192.168.9.1/24")},
             {docker0(), interface("ens3", "10.77.0.2/24")}},
            "all"},
           {"hosts that nothing reaches are named",
            {{eth0("10.1.0.1/24")}, {eth0("10.1.0.2/24")}, {eth0("10.8.0.3/24")}},
            "all",
            {{0, 1, 1, 1}, {1, 1, 0, 1}}},
           {"a host without any network is named",
            {{eth0("10.1.0.1/24")}, {down(eth0("10.1.0.2/24")), interface("ib0", "")}},
            "all"}}) {
    const Hosts hosts = hosts_with(each.interfaces);
    text += each.name;
    text +=
        "\n" + text_of(choose_network(
                   hosts, each.local == "all" ? each.reached : test::reachable(hosts, each.local)));
  }
  Hosts machine{host("127.0.0.2", {eth0("10.77.0.1/24")}),
                host("127.0.0.3", {eth0("10.77.0.1/24")})};
  machine[1].stack = machine[0].stack;
  text += "one machine uses loopback\n" + text_of(choose_network(machine, {})) +
          text_of(choose_network(std::span(machine).first(1), {}));
  test::expect_texts("the choice of a network", text);
}

TEST(NamedInterfaces, MayHaveAnotherNameOnEachHost) {
  const Hosts two =
      hosts_with({{docker0(), interface("eth0", "10.77.0.1/24"), interface("ib0", "10.1.0.1/16")},
                  {docker0(), interface("ens3", "10.77.0.2/24"), interface("ib0", "10.1.0.2/16")}});
  Hosts one_is_down = two, one_is_none = two, machine = two;
  one_is_down[1].addresses.back() = down(two[1].addresses.back());
  one_is_none[1].addresses.back() = interface("ib0", "");
  machine[1].stack = machine[0].stack;
  std::string text;
  for (const auto& [hosts, named] : {std::pair(&two, "ib0"),
                                     {&two, "eth0,ens3"},
                                     {&two, "eth0,ens3,ib0"},
                                     {&two, "eth0"},
                                     {&two, "ib0,ib1"},
                                     {&two, "e\x1b[0m"},
                                     {&one_is_down, "ib0"},
                                     {&one_is_none, "ib0"},
                                     {&two, "lo"},
                                     {&machine, "lo"}}) {
    const auto names = split(named, ',');
    text += text_of(choose_named(*hosts, std::vector<std::string>(names.begin(), names.end())));
  }
  test::expect_texts("networks that are named", text);
}

constexpr std::uint64_t kTrialNonce = 5;

/// Agents of several hosts, which are addresses 127.0.0.x of this one, on one loop.
class AgentsTest : public testing::Test {
 protected:
  struct Agent {
    Agent(EventLoop& loop, std::uint32_t number)
        : host(number), network(loop, [this](const Message& message) {
            if (const auto* is_told = std::get_if<NetworkTold>(&message)) told = *is_told;
            if (const auto* is_tried = std::get_if<NetworkTried>(&message)) tried = *is_tried;
          }) {}
    std::uint32_t host;
    NetworkTold told = {};
    std::optional<NetworkTried> tried = {};
    AgentNetwork network;
  };

  Agent& agent(std::uint32_t host, const std::vector<std::string>& texts,
               std::uint64_t nonce = kTrialNonce) {
    Agent& made = agents_.emplace_back(loop_, host);
    std::vector<HostAddress> addresses;
    for (const std::string& text : texts) addresses.push_back(interface("eth0", text + "/8"));
    made.network.tell(TellNetwork{{}, host, nonce}, addresses);
    return made;
  }
  /// Each tries all others, as host `as` where that is given.
  void start(Agent& one, std::optional<std::uint32_t> as = {}) {
    TryNetwork request;
    for (const Agent& other : agents_) {
      for (std::uint32_t i = 0; &other != &one && i < other.told.addresses.size(); ++i) {
        if (other.told.addresses[i]->port == 0) continue;
        request.targets.emplace_back(as.value_or(other.host), i, other.told.addresses[i]->address,
                                     other.told.addresses[i]->port);
      }
    }
    one.network.on(request);
  }
  void turn(std::chrono::milliseconds time = std::chrono::seconds(20)) {
    const auto end = Clock::now() + time;
    loop_.each(std::chrono::milliseconds(10), [&] {
      for (Agent& each : agents_) each.network.on_time(Clock::now());
      const bool all =
          std::ranges::all_of(agents_, [](auto& each) { return each.tried.has_value(); });
      if (Clock::now() > end || all) loop_.stop();
    });
    loop_.run();
  }
  /// As texts "address-peer-peer's address".
  static std::string result_of(const Agent& agent) {
    std::string text;
    for (const ProbePair& pair : agent.tried.value().pairs) {
      text += fmt::format("{}-{}-{} ", pair.address(), pair.peer(), pair.peer_address());
    }
    return text;
  }

  EventLoop loop_;
  std::list<Agent> agents_;
};

TEST_F(AgentsTest, FindTheAddressesThatReachEachOther) {
  Agent& one = agent(0, {"192.0.2.77", "127.0.0.2", "127.0.0.3"});
  Agent& other = agent(1, {"127.0.0.4"});
  EXPECT_EQ(one.told.addresses[0]->port, 0) << "cannot be bound";
  start(one);
  turn(std::chrono::milliseconds(120));
  start(other);
  turn();
  EXPECT_EQ(result_of(one), "1-1-0 2-1-0 ");
  EXPECT_EQ(result_of(other), "0-0-1 0-0-2 ");
}

TEST_F(AgentsTest, EndAtOnceWhereAllAnswerAndAfterASecondWhereOneIsSilent) {
  for (std::uint32_t host = 0; host < 6; ++host) agent(host, {fmt::format("127.0.0.{}", host + 2)});
  const auto begin = Clock::now();
  for (Agent& each : agents_) start(each);
  turn();
  for (const Agent& each : agents_) EXPECT_EQ(each.tried->pairs.size(), 5U);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(1));
  Agent &silent = agent(6, {"127.0.0.9"}), &one = agent(7, {"127.0.0.10"});
  agents_.erase(agents_.begin(), std::prev(agents_.end(), 2));
  start(one);
  const auto now = Clock::now();
  one.network.on_time(now + AgentNetwork::kLongest - std::chrono::milliseconds(100));
  EXPECT_FALSE(one.tried);
  one.network.on_time(now + AgentNetwork::kLongest);
  EXPECT_EQ(result_of(one), "");
  EXPECT_FALSE(silent.tried);
}

/// Host 1 says that it has the endpoint at which host 2 listens: both have one address, as docker0;
/// or it is of another job.
TEST_F(AgentsTest, AnotherHostDoesNotAnswerForOne) {
  for (const auto& [host, nonce] : {std::pair(2U, kTrialNonce), std::pair(1U, kTrialNonce + 1)}) {
    agents_.clear();
    Agent& one = agent(0, {"127.0.0.2"});
    Agent& other = agent(host, {"127.0.0.3"}, nonce);
    start(one, 1), start(other);
    turn();
    EXPECT_EQ(result_of(one), "") << host;
  }
}

TEST_F(AgentsTest, DatagramsFromElsewhereAreIgnored) {
  Agent &one = agent(0, {"127.0.0.2"}), &other = agent(1, {"127.0.0.3"});
  // The right bytes of host 1, sent from an address that is not host 1's.
  const UniqueFd stranger(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const SocketAddress target(*parse_address("127.0.0.2"), one.told.addresses[0]->port),
      own(*parse_address("127.0.0.9"), 0);
  ASSERT_EQ(::bind(stranger.get(), own.get(), own.length), 0);
  std::vector<std::byte> datagram(32);
  std::memcpy(datagram.data(), "horaprb2", 8);
  std::memcpy(datagram.data() + 8, &kTrialNonce, sizeof kTrialNonce);
  datagram[16] = std::byte{1};
  start(one);
  auto random = internal::test::generator();
  for (int i = 0; i < 200; ++i) {
    auto changed = datagram;
    if (i > 0) changed[random() % changed.size()] ^= static_cast<std::byte>(random());
    changed.resize(i % 3 == 2 ? random() % 60 : changed.size());
    ::sendto(stranger.get(), changed.data(), changed.size(), 0, target.get(), target.length);
  }
  turn(std::chrono::milliseconds(1500));
  EXPECT_EQ(result_of(one), "");
  EXPECT_FALSE(other.tried);
}

/// Two agents of this machine, told that they are two.
TEST(AgentNetwork, TriesWhatTheLauncherAsks) {
  const auto result = test::try_networks({[] {}, [] {}}, [](NetworkTold& told, std::size_t host) {
    told.stack += std::to_string(host);
  });
  if (std::ranges::none_of(this_host_addresses(), &HostAddress::is_candidate)) {
    EXPECT_FALSE(result);
    GTEST_SKIP() << "this host has no network but loopback";
  }
  ASSERT_TRUE(result) << result.error();
  EXPECT_FALSE(result->warning) << *result->warning;
}

}  // namespace
}  // namespace hora::launch
