#include "core/launch/network/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>

#include "tests/core/launch/network/driven_probes.h"
#include "tests/core/launch/network/hosts_under_test.h"
#include "tests/support/seed.h"

namespace hora::launch {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr ProbeNonce kNonce{std::byte{1}, std::byte{2}};

IpAddress address(const std::string& text) {
  return *parse_address(text);
}

std::unique_ptr<Probe> probe(std::size_t host, const std::vector<std::string>& texts,
                             const ProbeNonce& nonce = kNonce) {
  std::vector<IpAddress> candidates;
  for (const std::string& text : texts) candidates.push_back(address(text));
  return std::make_unique<Probe>(host, nonce, candidates);
}

/// Addresses 127.0.0.x, all of which this host has, are those of different hosts here.
TEST(Probe, FindsTheAddressesThatReachEachOther) {
  std::vector<std::unique_ptr<Probe>> probes;
  probes.push_back(probe(0, {"127.0.0.2", "127.0.0.3"}));
  probes.push_back(probe(1, {"127.0.0.4"}));
  const auto results = test::run(probes);
  EXPECT_THAT(results[0], ElementsAre(ProbePair{0, 1, 0}, ProbePair{1, 1, 0}));
  EXPECT_THAT(results[1], ElementsAre(ProbePair{0, 0, 0}, ProbePair{0, 0, 1}));
}

TEST(Probe, EndsAtOnceWhereAllAnswer) {
  std::vector<std::unique_ptr<Probe>> probes;
  for (std::size_t host = 0; host < 6; ++host) {
    probes.push_back(probe(host, {"127.0.0." + std::to_string(host + 2)}));
  }
  const auto start = Probe::Clock::now();
  for (const auto& result : test::run(probes)) EXPECT_EQ(result.size(), 5U);
  EXPECT_LT(Probe::Clock::now() - start, 1s);
}

TEST(Probe, WhatCannotBeBoundIsLeftOut) {
  const auto one = probe(0, {"192.0.2.77", "127.0.0.2"});
  EXPECT_EQ(one->endpoints()[0].port, 0);
  EXPECT_NE(one->endpoints()[1].port, 0);
}

TEST(Probe, ASilentHostEndsTheTrialAfterASecond) {
  const auto one = probe(0, {"127.0.0.2"});
  const auto silent = probe(1, {"127.0.0.3"});
  const Probe::Clock::time_point start{};
  one->start({{1, silent->endpoints()}}, start);
  EXPECT_EQ(one->next_timer(), start + 100ms);
  for (auto now = start; now < start + Probe::kLongest; now += 50ms) {
    EXPECT_FALSE(one->done());
    one->on_timer(now);
  }
  one->on_timer(start + Probe::kLongest);
  EXPECT_TRUE(one->done());
  EXPECT_FALSE(one->next_timer());
  EXPECT_THAT(one->result(), IsEmpty());
}

TEST(Probe, AHostThatStartsLaterIsAskedAgain) {
  std::vector<std::unique_ptr<Probe>> probes;
  probes.push_back(probe(0, {"127.0.0.2"}));
  probes.push_back(probe(1, {"127.0.0.3"}));
  const std::vector<std::vector<ProbeEndpoint>> endpoints{probes[0]->endpoints(),
                                                          probes[1]->endpoints()};
  probes[0]->start(test::peers_of(0, endpoints), Probe::Clock::now());
  EXPECT_THAT(probes[1]->fds(), IsEmpty());
  for (int i = 0; i < 5; ++i) test::turn(probes);
  EXPECT_FALSE(probes[0]->done());
  probes[1]->start(test::peers_of(1, endpoints), Probe::Clock::now());
  for (int i = 0; i < 20; ++i) test::turn(probes);
  EXPECT_THAT(probes[0]->result(), ElementsAre(ProbePair{0, 1, 0}));
}

TEST(Probe, AnAddressThatHasAnotherHostsNumberDoesNotAnswerForIt) {
  // Host 1 says that it has the endpoint at which host 2 listens: both have one address, as
  // docker0.
  std::vector<std::unique_ptr<Probe>> probes;
  probes.push_back(probe(0, {"127.0.0.2"}));
  probes.push_back(probe(2, {"127.0.0.3"}));
  const auto now = Probe::Clock::now();
  probes[0]->start({{1, probes[1]->endpoints()}}, now);
  probes[1]->start({{0, probes[0]->endpoints()}}, now);
  while (!probes[0]->done() || !probes[1]->done()) test::turn(probes);
  EXPECT_THAT(probes[0]->result(), IsEmpty());
}

TEST(Probe, AnotherJobsHostsAreNotAnswered) {
  std::vector<std::unique_ptr<Probe>> probes;
  probes.push_back(probe(0, {"127.0.0.2"}));
  probes.push_back(probe(1, {"127.0.0.3"}, ProbeNonce{std::byte{9}}));
  for (const auto& result : test::run(probes)) EXPECT_THAT(result, IsEmpty());
}

TEST(Probe, DatagramsFromElsewhereAreIgnored) {
  std::vector<std::unique_ptr<Probe>> probes;
  probes.push_back(probe(0, {"127.0.0.2"}));
  // The right bytes of a question by host 1, sent from an address that is not host 1's.
  const UniqueFd stranger(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const ProbeEndpoint to = probes[0]->endpoints()[0];
  const SocketAddress target(to.address, to.port);
  const SocketAddress own(address("127.0.0.9"), 0);
  ASSERT_EQ(::bind(stranger.get(), own.get(), own.length), 0);
  std::vector<std::byte> datagram(33);
  std::memcpy(datagram.data(), "hprb", 4);
  std::ranges::copy(kNonce, datagram.begin() + 5);
  datagram[21] = std::byte{1};
  probes[0]->start({{1, {{address("127.0.0.3"), 9}}}}, Probe::Clock::now());
  auto random = internal::test::generator();
  for (int i = 0; i < 200; ++i) {
    auto changed = datagram;
    if (i > 0) changed[random() % changed.size()] ^= static_cast<std::byte>(random());
    changed.resize(i % 3 == 2 ? random() % 60 : changed.size());
    ::sendto(stranger.get(), changed.data(), changed.size(), 0, target.get(), target.length);
  }
  while (!probes[0]->done()) test::turn(probes);
  EXPECT_THAT(probes[0]->result(), IsEmpty());
  std::byte answer{};
  EXPECT_LT(::recv(stranger.get(), &answer, 1, MSG_DONTWAIT), 0) << "a stranger was answered";
}

TEST(Merge, LeavesOutPairsThatNameNothing) {
  const std::vector<HostNetwork> hosts{test::host("a", {test::interface("eth0", "10.0.0.1/24")}),
                                       test::host("b", {test::interface("eth0", "10.0.0.2/24")})};
  const std::vector<std::vector<ProbePair>> wrong{{{0, 2, 0}, {1, 1, 0}, {0, 1, 1}, {0, 0, 0}}, {}};
  EXPECT_TRUE(merge(wrong, hosts).empty());
  const std::vector<std::vector<ProbePair>> right{{{0, 1, 0}}, {{0, 0, 0}}};
  EXPECT_TRUE(merge(right, hosts).mutual(0, 0, 1, 0));
}

}  // namespace
}  // namespace hora::launch
