#include "core/launch/network/network_trial.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/launch/network/hosts_under_test.h"

namespace hora::launch {
namespace {

using test::docker0;
using test::host;
using test::interface;
using testing::HasSubstr;

constexpr ProbeNonce kTrialNonce{std::byte{5}};

std::vector<HostNetwork> two_networks() {
  return {host("a", {docker0(), interface("eth0", "10.77.0.1/24")}),
          host("b", {docker0(), interface("ens3", "10.77.0.2/24")})};
}

NetworkTold told(const HostNetwork& network) {
  std::vector<ProbeEndpoint> endpoints;
  for (const Candidate& candidate : candidates_of(network)) {
    endpoints.push_back({candidate.address, 1000});
  }
  return to_message(network, endpoints);
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
  const auto peers = from_message(std::get<TryNetwork>(tries[0].second));
  ASSERT_TRUE(peers);
  ASSERT_EQ(peers->size(), 1U);
  EXPECT_EQ(peers->front().host, 1U);
  EXPECT_EQ(peers->front().endpoints.at(1), (ProbeEndpoint{*parse_address("10.77.0.2"), 1000}));
  EXPECT_TRUE(both.on(0, to_message({ProbePair{1, 1, 1}})).empty());
  EXPECT_FALSE(both.result());
  EXPECT_EQ(both.on(1, to_message({ProbePair{1, 0, 1}})).size(), 2U) << "the end, to both";
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
  NetworkTried tried;
  tried.peers = {1};
  EXPECT_FALSE(from_message(tried));
  TellNetwork tell;
  tell.nonce = {1};
  EXPECT_FALSE(nonce_of(tell));
}

/// Two agents of this machine, told that they are two.
TEST(AgentNetwork, TriesWhatTheLauncherAsks) {
  EventLoop loop;
  NetworkTrial launcher = trial();
  std::vector<std::pair<std::size_t, Message>> answers;
  std::vector<std::unique_ptr<AgentNetwork>> agents;
  for (std::size_t i = 0; i < 2; ++i) {
    agents.push_back(std::make_unique<AgentNetwork>(
        loop, [&, i](const Message& message) { answers.emplace_back(i, message); }));
  }
  const auto give = [&](const NetworkTrial::Messages& messages) {
    for (const auto& [to, message] : messages) {
      if (const auto* tell = std::get_if<TellNetwork>(&message)) agents[to]->on(*tell);
      if (const auto* attempt = std::get_if<TryNetwork>(&message)) agents[to]->on(*attempt);
    }
  };
  const auto end = Clock::now() + std::chrono::seconds(20);
  loop.each(std::chrono::milliseconds(20), [&] {
    for (const auto& agent : agents) agent->on_time(Clock::now());
    const auto taken = std::exchange(answers, {});
    for (const auto& [from, message] : taken) {
      if (const auto* network = std::get_if<NetworkTold>(&message)) {
        NetworkTold of_two_machines = *network;
        of_two_machines.stack += std::to_string(from);
        give(launcher.on(from, of_two_machines));
      }
      if (const auto* tried = std::get_if<NetworkTried>(&message)) give(launcher.on(from, *tried));
    }
    if (launcher.result() || Clock::now() > end) loop.stop();
  });
  give(launcher.start());
  loop.run();
  ASSERT_TRUE(launcher.result() && *launcher.result());
  if (candidates_of({"", "", this_host_interfaces()}).empty()) {
    EXPECT_TRUE((*launcher.result())->warning);
    GTEST_SKIP() << "this host has no network but loopback";
  }
  EXPECT_FALSE((*launcher.result())->warning) << *(*launcher.result())->warning;
}

}  // namespace
}  // namespace hora::launch
