#include "core/launch/network/network.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <map>

#include "core/launch/text.h"
#include "tests/core/launch/network/hosts_under_test.h"
#include "tests/core/launch/network/trial_of_agents.h"
#include "tests/support/seed.h"

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
  for (const char* text : {"10.77.0.1", "0.0.0.0", "255.255.255.255"}) {
    const auto address = parse_address(text);
    ASSERT_TRUE(address) << text;
    EXPECT_EQ(to_string(*address), text);
  }
  for (const char* text : {"", "10.77.0", "10.77.0.256", "host", "::1", "10.0.0.1:5"}) {
    EXPECT_FALSE(parse_address(text)) << text;
  }
  EXPECT_FALSE(parse_address(std::string("10.0.0.1\0", 9)));
  EXPECT_TRUE(parse_address("127.0.0.2")->is_loopback());
  EXPECT_FALSE(parse_address("10.0.0.127")->is_loopback());
  EXPECT_TRUE(parse_address("0.0.0.0")->is_unspecified());
  EXPECT_EQ(to_string(Endpoint{*parse_address("10.0.0.1"), 5}), "10.0.0.1:5");
}

TEST(Subnet, ContainsWhatSharesItsFirstBits) {
  const auto contains = [](const char* base, int prefix, const char* address) {
    return subnet_of(*parse_address(base), prefix).contains(*parse_address(address));
  };
  EXPECT_EQ(to_string(subnet_of(*parse_address("10.77.3.9"), 22)), "10.77.0.0/22");
  EXPECT_TRUE(contains("10.77.3.9", 22, "10.77.3.255"));
  EXPECT_FALSE(contains("10.77.3.9", 22, "10.77.4.0"));
  EXPECT_TRUE(contains("0.0.0.0", 0, "10.77.4.0"));
  EXPECT_TRUE(contains("10.0.0.1", 32, "10.0.0.1"));
  EXPECT_FALSE(contains("10.0.0.1", 32, "10.0.0.0"));
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
  EXPECT_EQ(to_string(loopback->ip()), "127.0.0.1");
  EXPECT_EQ(loopback->prefix, 8);
}

TEST(HostAddresses, AreDescribedAndOthersMayReachThoseThatAreUp) {
  const std::vector<HostAddress> addresses{interface("eth0", "10.77.0.1/24"), down(docker0()),
                                           interface("ib0", ""), interface("lo", "127.0.0.1/8")};
  EXPECT_EQ(describe(addresses),
            "eth0 (10.77.0.1/24), docker0 (172.17.0.1/16, down), ib0 (no address), lo "
            "(127.0.0.1/8)");
  EXPECT_EQ(describe({}), "none");
  std::string candidates;
  for (const HostAddress& each : addresses) {
    if (each.is_candidate()) candidates += to_string(each.ip()) + " ";
  }
  EXPECT_EQ(candidates, "10.77.0.1 ");
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
  std::vector<std::vector<HostAddress>> interfaces;  ///< by host: a, b, c
  std::vector<std::string> local;                    ///< interfaces that reach no other host
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
  reachability.insert({0, 1, 1, 1});
  reachability.insert({0, 2, 1, 2});
  reachability.insert({1, 2, 0, 2});
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
    reachability.insert({i, a, j, b});
    reachability.insert({j, b, i, a});
  };
  both_ways(0, 1, 1, 1);
  both_ways(0, 2, 1, 2);
  both_ways(0, 2, 2, 1);
  both_ways(1, 2, 2, 1);
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
  EXPECT_EQ(choice.line, "network: 10.77.0.0/24,192.168.9.0/24 (a: eth0+eth1, b: ens3)");
  EXPECT_THAT(choice.warning.value_or(""),
              AllOf(HasSubstr("UDP may be blocked"), HasSubstr("--network-interfaces"),
                    HasSubstr("host b has lo (127.0.0.1/8), docker0")));
}

TEST(NetworkChoice, HostsThatNothingReachesAreNamed) {
  const Hosts hosts{host("a", {interface("eth0", "10.1.0.1/24")}),
                    host("b", {interface("eth0", "10.1.0.2/24")}),
                    host("c", {interface("eth0", "10.8.0.3/24")})};
  Reachability reachability;
  reachability.insert({0, 1, 1, 1});
  reachability.insert({1, 1, 0, 1});
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
  EXPECT_TRUE(choice.addresses.empty());
}

Hosts two_hosts() {
  return {
      host("a", {docker0(), interface("eth0", "10.77.0.1/24"), interface("ib0", "10.1.0.1/16")}),
      host("b", {docker0(), interface("ens3", "10.77.0.2/24"), interface("ib0", "10.1.0.2/16")})};
}

/// `named` as the user writes it, with commas.
tl::expected<NetworkChoice, std::string> choose(const Hosts& hosts, std::string_view named) {
  const auto names = split(named, ',');
  return choose_named(hosts, std::vector<std::string>(names.begin(), names.end()));
}

std::string error_of(const Hosts& hosts, const std::string& named) {
  const auto choice = choose(hosts, named);
  EXPECT_FALSE(choice) << named;
  return choice ? "" : choice.error();
}

TEST(NamedInterfaces, MayHaveAnotherNameOnEachHost) {
  for (const auto& [named, line] : std::map<const char*, const char*>{
           {"ib0", "network: 10.1.0.0/16 (a: ib0, b: ib0)"},
           {"eth0,ens3", "network: 10.77.0.0/24 (a: eth0, b: ens3)"},
           {"eth0,ens3,ib0", "network: 10.77.0.0/24,10.1.0.0/16 (a: eth0+ib0, b: ens3+ib0)"}}) {
    const auto choice = choose(two_hosts(), named);
    EXPECT_EQ(choice ? choice->line : choice.error(), line);
  }
}

TEST(NamedInterfaces, WrongNamesAreErrorsWithTheHostAndWhatItHas) {
  EXPECT_THAT(error_of(two_hosts(), "eth0"),
              AllOf(HasSubstr("--network-interfaces eth0: host b has no such interface"),
                    HasSubstr("ens3 (10.77.0.2/24)"), HasSubstr("ib0 (10.1.0.2/16)")));
  EXPECT_THAT(error_of(two_hosts(), "ib0,ib1"), HasSubstr("no host has \"ib1\""));
  EXPECT_THAT(error_of(two_hosts(), "e\x1b[0m"), HasSubstr("\\x1b"));
  Hosts hosts = two_hosts();
  hosts[1].addresses.back() = down(hosts[1].addresses.back());
  EXPECT_THAT(error_of(hosts, "ib0"), HasSubstr("ib0 (10.1.0.2/16, down)"));
  hosts[1].addresses.back() = interface("ib0", "");
  EXPECT_THAT(error_of(hosts, "ib0"), HasSubstr("ib0 (no address)"));
}

TEST(NamedInterfaces, LoopbackJoinsOneMachineOnly) {
  Hosts hosts = two_hosts();
  EXPECT_THAT(error_of(hosts, "lo"), HasSubstr("host a has no such interface that is up, has an "
                                               "address and leads to other hosts"));
  hosts[1].stack = hosts[0].stack;
  EXPECT_TRUE(choose(hosts, "lo"));
}

constexpr std::uint64_t kTrialNonce = 5;

std::vector<HostNetwork> two_networks() {
  return {host("a", {docker0(), interface("eth0", "10.77.0.1/24")}),
          host("b", {docker0(), interface("ens3", "10.77.0.2/24")})};
}

NetworkTold told(HostNetwork network) {
  for (HostAddress& each : network.addresses) each.port = each.is_candidate() ? 1000 : 0;
  return to_message(network);
}

NetworkTried tried(std::vector<ProbePair> pairs) {
  return {{}, std::move(pairs)};
}

NetworkTrial trial(std::vector<std::string> named = {}) {
  return {{"a", "b"}, named, kTrialNonce};
}

TEST(NetworkTrial, AsksTriesAndChooses) {
  const auto hosts = two_networks();
  NetworkTrial both = trial();
  EXPECT_EQ(both.start().size(), 2U);
  EXPECT_TRUE(both.on(0, told(hosts[0])).empty());
  const auto tries = both.on(1, told(hosts[1]));
  ASSERT_EQ(tries.size(), 2U);
  const auto& targets = std::get<TryNetwork>(tries[0].second).targets;
  ASSERT_EQ(targets.size(), 2U);
  EXPECT_EQ(targets[1].host(), 1U);
  EXPECT_EQ(targets[1].index(), 2U);
  EXPECT_EQ(to_string(IpAddress{targets[1].address()}), "10.77.0.2");
  EXPECT_EQ(targets[1].port(), 1000);
  EXPECT_TRUE(both.on(0, tried({{2, 1, 2}})).empty());
  EXPECT_FALSE(both.result());
  EXPECT_EQ(both.on(1, tried({{2, 0, 2}, {7, 9, 7}})).size(), 2U) << "the end, to both";
  ASSERT_TRUE(both.result() && *both.result());
  EXPECT_EQ((*both.result())->line, "network: 10.77.0.0/24 (a: eth0, b: ens3)");
}

TEST(NetworkTrial, NamedInterfacesAreNotTried) {
  const auto hosts = two_networks();
  NetworkTrial right = trial({"eth0", "ens3"});
  right.on(0, told(hosts[0])), right.on(1, told(hosts[1]));
  ASSERT_TRUE(right.result());
  EXPECT_TRUE(*right.result());
  NetworkTrial wrong = trial({"eth0"});
  wrong.on(0, told(hosts[0])), wrong.on(1, told(hosts[1]));
  ASSERT_TRUE(wrong.result());
  EXPECT_THAT(wrong.result()->error(), HasSubstr("host b has no such interface"));
}

TEST(NetworkTrial, IsGivenUpWithWhatThereIs) {
  const auto hosts = two_networks();
  NetworkTrial silent = trial();
  silent.on(0, told(hosts[0]));
  silent.give_up();
  EXPECT_THAT(silent.result()->error(), HasSubstr("told by b"));
  NetworkTrial untried = trial();
  untried.on(0, told(hosts[0])), untried.on(1, told(hosts[1]));
  untried.give_up();
  ASSERT_TRUE(*untried.result());
  EXPECT_THAT((*untried.result())->warning.value_or(""), HasSubstr("UDP may be blocked"));
}

TEST(NetworkTrial, AHostWithoutANetworkIsAnError) {
  NetworkTrial alone = trial();
  alone.on(0, told(two_networks()[0])), alone.on(1, told(host("b", {})));
  alone.give_up();
  ASSERT_TRUE(alone.result());
  ASSERT_FALSE(*alone.result());
  EXPECT_THAT(alone.result()->error(), HasSubstr("host b has no network interface that is up"));
}

TEST(ToldNetwork, IsReadAsItWasTold) {
  HostNetwork network = two_networks()[1];
  network.addresses.back().port = 77;
  const auto message = decode(encode(to_message(network)));
  ASSERT_TRUE(message);
  const auto read = from_message(std::get<NetworkTold>(*message), "b");
  EXPECT_EQ(encode(to_message(read)), encode(to_message(network)));
}

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
