#include "core/launch/network/network_trial.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <cstring>
#include <list>

#include "tests/core/launch/network/hosts_under_test.h"
#include "tests/core/launch/network/trial_of_agents.h"
#include "tests/support/seed.h"

namespace hora::launch {
namespace {

using test::docker0;
using test::host;
using test::interface;
using testing::HasSubstr;

constexpr std::uint64_t kTrialNonce = 5;

std::vector<HostNetwork> two_networks() {
  return {host("a", {docker0(), interface("eth0", "10.77.0.1/24")}),
          host("b", {docker0(), interface("ens3", "10.77.0.2/24")})};
}

NetworkTold told(const HostNetwork& network) {
  std::vector<Endpoint> endpoints;
  for (const Candidate& candidate : candidates_of(network)) {
    endpoints.push_back({candidate.address, 1000});
  }
  return to_message(network, endpoints);
}

NetworkTried tried(std::vector<ProbePair> pairs) {
  NetworkTried message;
  message.pairs = std::move(pairs);
  return message;
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
  const auto& peers = std::get<TryNetwork>(tries[0].second).peers;
  ASSERT_EQ(peers.size(), 1U);
  EXPECT_EQ(peers[0]->host, 1U);
  EXPECT_EQ(peers[0]->addresses.at(1), "10.77.0.2");
  EXPECT_EQ(peers[0]->ports.at(1), 1000);
  EXPECT_TRUE(both.on(0, tried({{1, 1, 1}})).empty());
  EXPECT_FALSE(both.result());
  EXPECT_EQ(both.on(1, tried({{1, 0, 1}})).size(), 2U) << "the end, to both";
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

TEST(NetworkTrial, OneMachineIsNotTried) {
  auto hosts = two_networks();
  hosts[1] = hosts[0];
  NetworkTrial one = trial();
  one.on(0, told(hosts[0])), one.on(1, told(hosts[1]));
  ASSERT_TRUE(one.result() && *one.result());
  EXPECT_THAT((*one.result())->line, HasSubstr("loopback"));
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
  const HostNetwork network = two_networks()[1];
  const auto bytes = encode(told(network));
  const auto message = decode(bytes);
  ASSERT_TRUE(message);
  const auto read = from_message(std::get<NetworkTold>(*message), "b");
  ASSERT_TRUE(read) << read.error();
  EXPECT_EQ(read->network, network);
}

TEST(ToldNetwork, WrongMessagesAreErrors) {
  NetworkTold message = told(two_networks()[0]);
  message.ports.pop_back();
  EXPECT_FALSE(from_message(message, "a"));
  message = told(two_networks()[0]);
  message.interfaces[1]->addresses[0] = "172.17.0.1/16";
  EXPECT_FALSE(from_message(message, "a"));
  message = told(two_networks()[0]);
  message.interfaces[1]->prefixes[0] = 33;
  EXPECT_FALSE(from_message(message, "a"));
  message.interfaces[1]->prefixes.clear();
  EXPECT_FALSE(from_message(message, "a"));
  NetworkTrial wrong = trial();
  wrong.on(0, message);
  EXPECT_THAT(wrong.result()->error(), HasSubstr("host a has told"));
}

/// Probes of several hosts, which are addresses 127.0.0.x of this one, on one loop.
class ProbeTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kNonce = 0x1234567890abcdef;

  Probe& probe(std::size_t host, const std::vector<std::string>& texts,
               std::uint64_t nonce = kNonce) {
    std::vector<IpAddress> candidates;
    for (const std::string& text : texts) candidates.push_back(*parse_address(text));
    return probes_.emplace_back(loop_, host, nonce, candidates);
  }
  /// Each asks all others, whose numbers are those of their order.
  void start_all() {
    for (Probe& probe : probes_) {
      std::vector<ProbePeer> peers;
      std::size_t host = 0;
      for (const Probe& other : probes_) {
        if (&other != &probe) peers.push_back({host, other.endpoints()});
        ++host;
      }
      probe.start(peers, Clock::now());
    }
  }
  void turn(std::chrono::milliseconds time) {
    const auto end = Clock::now() + time;
    loop_.each(std::chrono::milliseconds(10), [&] {
      for (Probe& probe : probes_) probe.on_time(Clock::now());
      if (Clock::now() > end || all_done()) loop_.stop();
    });
    loop_.run();
  }
  bool all_done() {
    return std::ranges::all_of(
        probes_, [](const Probe& probe) { return probe.result(Clock::now()).has_value(); });
  }
  /// As texts "candidate-peer-peer's candidate".
  static std::string result_of(const Probe& probe) {
    std::string text;
    const auto pairs = probe.result(Clock::now());
    for (const ProbePair& pair : pairs.value()) {
      text += fmt::format("{}-{}-{} ", pair.candidate(), pair.peer(), pair.peer_candidate());
    }
    return text;
  }

  EventLoop loop_;
  std::list<Probe> probes_;
};

TEST_F(ProbeTest, FindsTheAddressesThatReachEachOther) {
  probe(0, {"192.0.2.77", "127.0.0.2", "127.0.0.3"});
  probe(1, {"127.0.0.4"});
  EXPECT_EQ(probes_.front().endpoints()[0].port, 0) << "cannot be bound";
  start_all();
  turn(std::chrono::seconds(20));
  EXPECT_EQ(result_of(probes_.front()), "1-1-0 2-1-0 ");
  EXPECT_EQ(result_of(probes_.back()), "0-0-1 0-0-2 ");
}

TEST_F(ProbeTest, EndsAtOnceWhereAllAnswer) {
  for (std::size_t host = 0; host < 6; ++host) {
    probe(host, {"127.0.0." + std::to_string(host + 2)});
  }
  const auto start = Clock::now();
  start_all();
  turn(std::chrono::seconds(20));
  for (const Probe& each : probes_) EXPECT_EQ(each.result(Clock::now())->size(), 5U);
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(1));
}

TEST_F(ProbeTest, ASilentHostEndsTheTrialAfterASecond) {
  Probe &one = probe(0, {"127.0.0.2"}), &silent = probe(1, {"127.0.0.3"});
  const Clock::time_point start{};
  EXPECT_FALSE(one.result(start));
  one.start({{1, silent.endpoints()}}, start);
  EXPECT_FALSE(one.result(start + Probe::kLongest - std::chrono::milliseconds(1)));
  ASSERT_TRUE(one.result(start + Probe::kLongest));
  EXPECT_TRUE(one.result(start + Probe::kLongest)->empty());
}

TEST_F(ProbeTest, AHostThatStartsLaterIsAskedAgain) {
  Probe &one = probe(0, {"127.0.0.2"}), &late = probe(1, {"127.0.0.3"});
  one.start({{1, late.endpoints()}}, Clock::now());
  turn(std::chrono::milliseconds(120));
  late.start({{0, one.endpoints()}}, Clock::now());
  turn(std::chrono::seconds(20));
  EXPECT_EQ(result_of(one), "0-1-0 ");
}

/// Host 1 says that it has the endpoint at which host 2 listens: both have one address, as docker0;
/// or it is of another job.
TEST_F(ProbeTest, AnotherHostDoesNotAnswerForOne) {
  for (const auto& [host, nonce] : {std::pair(2, kNonce), std::pair(1, kNonce + 1)}) {
    probes_.clear();
    Probe& one = probe(0, {"127.0.0.2"});
    Probe& other = probe(static_cast<std::size_t>(host), {"127.0.0.3"}, nonce);
    one.start({{1, other.endpoints()}}, Clock::now());
    other.start({{0, one.endpoints()}}, Clock::now());
    turn(std::chrono::seconds(20));
    EXPECT_EQ(result_of(one), "") << host;
  }
}

TEST_F(ProbeTest, DatagramsFromElsewhereAreIgnored) {
  Probe& one = probe(0, {"127.0.0.2"});
  // The right bytes of a question by host 1, sent from an address that is not host 1's.
  const UniqueFd stranger(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const Endpoint to = one.endpoints()[0];
  const SocketAddress target(to.address, to.port), own(*parse_address("127.0.0.9"), 0);
  ASSERT_EQ(::bind(stranger.get(), own.get(), own.length), 0);
  std::vector<std::byte> datagram(32);
  std::memcpy(datagram.data(), "hprb", 4);
  std::memcpy(datagram.data() + 8, &kNonce, sizeof kNonce);
  datagram[16] = std::byte{1};
  one.start({{1, {{*parse_address("127.0.0.3"), 9}}}}, Clock::now());
  auto random = internal::test::generator();
  for (int i = 0; i < 200; ++i) {
    auto changed = datagram;
    if (i > 0) changed[random() % changed.size()] ^= static_cast<std::byte>(random());
    changed.resize(i % 3 == 2 ? random() % 60 : changed.size());
    ::sendto(stranger.get(), changed.data(), changed.size(), 0, target.get(), target.length);
  }
  turn(std::chrono::seconds(20));
  EXPECT_EQ(result_of(one), "");
  std::byte answer{};
  EXPECT_LT(::recv(stranger.get(), &answer, 1, MSG_DONTWAIT), 0) << "a stranger was answered";
}

TEST(Merge, LeavesOutPairsThatNameNothing) {
  const auto hosts = two_networks();
  const std::vector<std::vector<ProbePair>> wrong{{{0, 2, 0}, {2, 1, 0}, {0, 1, 2}, {0, 0, 0}}, {}};
  EXPECT_TRUE(merge(wrong, hosts).empty());
  const std::vector<std::vector<ProbePair>> right{{{0, 1, 0}}, {{0, 0, 0}}};
  EXPECT_TRUE(merge(right, hosts).mutual(0, 0, 1, 0));
}

/// Two agents of this machine, told that they are two.
TEST(AgentNetwork, TriesWhatTheLauncherAsks) {
  const auto result = test::try_networks({[] {}, [] {}}, [](NetworkTold& told, std::size_t host) {
    told.stack += std::to_string(host);
  });
  ASSERT_TRUE(result);
  if (candidates_of({"", "", this_host_interfaces()}).empty()) {
    EXPECT_TRUE(result->warning);
    GTEST_SKIP() << "this host has no network but loopback";
  }
  EXPECT_FALSE(result->warning) << *result->warning;
}

}  // namespace
}  // namespace hora::launch
