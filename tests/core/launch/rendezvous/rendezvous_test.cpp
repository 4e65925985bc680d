// The nodes of a rendezvous as threads of one process.
#include "core/launch/rendezvous/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <list>
#include <mutex>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/launch/control/system.h"
#include "core/launch/network/network.h"
#include "tests/core/launch/texts.h"

namespace hora::launch {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using internal::test::TemporaryFolder;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

constexpr char kToken[] = "the token of this test";

/// One node: meet() in a thread of its own, and what it says.
class MeetingNode {
 public:
  MeetingNode(RendezvousOptions options, const char* token = kToken) {
    options.say = [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      text_ += line + "\n";
    };
    outcome_ =
        std::async(std::launch::async, [options, token]() -> tl::expected<NodesMet, std::string> {
          try {
            return meet(options, *token_from_text(token));
          } catch (const Error& error) {
            return tl::unexpected(std::string(name_of(error.code())) + ": " + error.what());
          }
        });
  }
  MeetingNode(const MeetingNode&) = delete;
  MeetingNode& operator=(const MeetingNode&) = delete;

  /// Where it has failed.
  std::string error() { return test::error_of(outcome_.get()); }
  NodesMet met() {
    auto outcome = outcome_.get();
    EXPECT_TRUE(outcome) << outcome.error();
    return outcome ? std::move(*outcome) : NodesMet{};
  }
  bool is_waiting() { return outcome_.wait_for(0s) == std::future_status::timeout; }
  std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }
  bool has_said(const std::string& part) const { return text().find(part) != std::string::npos; }
  /// Waits for it, 20 s at most.
  testing::AssertionResult comes_to_say(const std::string& part) const {
    for (const auto end = Clock::now() + 20s; Clock::now() < end;
         std::this_thread::sleep_for(5ms)) {
      if (has_said(part)) return testing::AssertionSuccess();
    }
    return testing::AssertionFailure() << "it has said: " << text();
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
  std::future<tl::expected<NodesMet, std::string>> outcome_;
};

/// A socket of the test's own on loopback, and its port.
struct TestSocket {
  UniqueFd descriptor;
  std::uint16_t port = 1;
};

/// Bound to any port, or connected to that one.
TestSocket test_socket(std::uint16_t to = 0) {
  SocketAddress place(*parse_address("127.0.0.1"), to);
  TestSocket socket{UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
  const int error = to == 0 ? ::bind(socket.descriptor.get(), place.get(), place.length)
                            : ::connect(socket.descriptor.get(), place.get(), place.length);
  if (error != 0) return {};
  ::getsockname(socket.descriptor.get(), place.get(), &place.length);
  socket.port = place.endpoint().port;
  return socket;
}

/// A port that was free a moment ago.
std::uint16_t free_port() {
  return test_socket().port;
}

/// Options of node `rank`, on the host "host<rank>", with limits for tests.
RendezvousOptions node_options(const std::string& place, std::optional<int> rank, int nodes) {
  using Options = RendezvousOptions;
  return test::made<Options>(&Options::place, parse_rendezvous(place).value(), &Options::node_rank,
                             rank, &Options::nodes, nodes, &Options::ranks, 2, &Options::host,
                             rank ? "host" + std::to_string(*rank) : "unranked", &Options::timeout,
                             std::chrono::milliseconds(20000), &Options::report_every,
                             std::chrono::milliseconds(100));
}

std::string loopback_place() {
  return "tcp://127.0.0.1:" + std::to_string(free_port());
}

/// A message from one end arrives at the other.
void expect_connected(Connection from, Connection to) {
  EventLoop loop;
  std::optional<Message> received;
  const auto stop = [&](const std::string&) { loop.stop(); };
  Channel sender(
      loop, std::move(from), [](Message&&) {}, stop);
  Channel receiver(
      loop, std::move(to),
      [&](Message&& message) {
        received = std::move(message);
        loop.stop();
      },
      stop);
  sender.send(Hello{});
  loop.run();
  ASSERT_TRUE(received && std::holds_alternative<Hello>(*received));
}

void expect_all_connected(std::list<MeetingNode>& nodes) {
  std::vector<NodesMet> met;
  for (MeetingNode& node : nodes) met.push_back(node.met());
  std::ranges::sort(met, {}, &NodesMet::node_rank);
  ASSERT_EQ(met[0].nodes.size(), met.size());
  for (std::size_t rank = 1; rank < met.size(); ++rank) {
    EXPECT_EQ(met[rank].node_rank, static_cast<int>(rank));
    ASSERT_EQ(met[rank].nodes.size(), 1U);
    EXPECT_EQ(met[rank].nodes[0].host, met[0].nodes[0].host);
    const bool upwards = rank % 2 == 0;
    Connection& at_0 = met[0].nodes[rank].connection;
    Connection& at_other = met[rank].nodes[0].connection;
    expect_connected(std::move(upwards ? at_other : at_0), std::move(upwards ? at_0 : at_other));
  }
}

TEST(Rendezvous, JoinsAllNodesToNode0InAnyOrder) {
  for (const std::string host : {"127.0.0.1", "localhost"}) {
    const std::string place = "tcp://" + host + ":" + std::to_string(free_port());
    std::list<MeetingNode> nodes;
    for (const int rank : {3, 1, 0, 2}) nodes.emplace_back(node_options(place, rank, 4));
    expect_all_connected(nodes);
  }
  const std::string place = loopback_place();
  std::list<MeetingNode> many;
  for (int rank = 0; rank < 40; ++rank) many.emplace_back(node_options(place, rank, 40));
  expect_all_connected(many);
}

TEST(Rendezvous, WithoutRanksOneIsNode0) {
  const std::string place = loopback_place();
  std::list<MeetingNode> nodes;
  for (int i = 0; i < 4; ++i) nodes.emplace_back(node_options(place, {}, 4));
  expect_all_connected(nodes);
  MeetingNode alone(node_options(loopback_place(), 0, 1));
  EXPECT_EQ(alone.met().nodes.size(), 1U);
}

TEST(Rendezvous, WhoWaitsSaysForWhom) {
  const std::string place = loopback_place();
  MeetingNode node1(node_options(place, 1, 3));
  EXPECT_TRUE(node1.comes_to_say("node 1 (host host1) waits for node 0 at " + place +
                                 ": Connection refused"));
  MeetingNode node0(node_options(place, 0, 3));
  EXPECT_TRUE(node0.comes_to_say("node 0 (host host0) waits for node 2 of 3 at " + place));
  EXPECT_TRUE(node1.comes_to_say(
      "node 1 (host host1) waits for node 2 of 3, with node 0 (host host0, 127.0.0.1:"));
  MeetingNode node2(node_options(place, 2, 3));
  node0.met(), node1.met(), node2.met();
}

/// Without what differs from run to run.
std::string lasting(std::string text) {
  for (const auto& [differs, word] :
       {std::pair(":[0-9]+", ":PORT"), std::pair("[0-9.]+ s of", "T s of"),
        std::pair("cannot be resolved: [A-Za-z ]+", "cannot be resolved: WHY")}) {
    text = std::regex_replace(text, std::regex(differs), word);
  }
  return text + "\n";
}

RendezvousOptions limited_options(const std::string& place, std::optional<int> rank, int nodes,
                                  std::chrono::milliseconds limit = 300ms) {
  RendezvousOptions options = node_options(place, rank, nodes);
  test::set(options, &RendezvousOptions::timeout, limit, &RendezvousOptions::handshake_limit,
            100ms);
  return options;
}

std::string place_of(const TemporaryFolder& folder) {
  return "file://" + folder.path().string();
}

TEST(Rendezvous, NamesWhatKeepsANodeFromMeetingOthers) {
  const TestSocket other = test_socket();
  ASSERT_EQ(::listen(other.descriptor.get(), 5), 0);
  const std::string used = "tcp://127.0.0.1:" + std::to_string(other.port);
  const TemporaryFolder folder;
  fs::create_symlink(folder.file("elsewhere"), folder.file("job.rendezvous"));
  std::list<MeetingNode> nodes;
  for (const RendezvousOptions& each :
       {limited_options(loopback_place(), 0, 100), limited_options(loopback_place(), {}, 100),
        limited_options(loopback_place(), 1, 3), limited_options(used, 0, 2),
        // Without ranks who has the port may be node 0, which then does not answer as one.
        limited_options(used, {}, 2, 1s),
        limited_options("tcp://no-such-host.invalid:1", 1, 2, 500ms),
        limited_options(place_of(folder), 0, 2), limited_options("file:///no/such/folder", 0, 2),
        limited_options("file:///no/such/folder", 1, 2)}) {
    nodes.emplace_back(each);
  }
  std::string text;
  for (MeetingNode& node : nodes) text += lasting(node.error());
  test::expect_texts("nodes that do not meet", test::with(text, folder.path(), "FOLDER"));
  EXPECT_FALSE(fs::exists(folder.file("elsewhere")));
}

TEST(Rendezvous, TheOthersAreToldWhoIsMissingInTheEnd) {
  const std::string place = loopback_place();
  MeetingNode node0(limited_options(place, 0, 3));
  MeetingNode node1(node_options(place, 1, 3));
  EXPECT_THAT(node0.error(), AllOf(HasSubstr("timeout: "), HasSubstr("2 of 3")));
  EXPECT_THAT(node1.error(), AnyOf(HasSubstr("2 of 3"), HasSubstr("node 0 at")));
}

TEST(Rendezvous, TwoNodesOfOneRankEndAllNodesWithOneText) {
  const std::string place = loopback_place();
  std::list<MeetingNode> nodes;
  nodes.emplace_back(node_options(place, 0, 4));
  nodes.emplace_back(node_options(place, 1, 4));
  ASSERT_TRUE(nodes.front().comes_to_say("waits for nodes 2, 3 of 4"));
  nodes.emplace_back(node_options(place, 1, 4));
  std::set<std::string> texts;
  for (MeetingNode& node : nodes) texts.insert(node.error());
  EXPECT_EQ(texts.size(), 1U) << testing::PrintToString(texts);
  test::expect_texts("two nodes of one rank", lasting(*texts.begin()));
}

/// Nodes that differ end with one text, which names both hosts.
TEST(Rendezvous, WhatDiffersBetweenNodesIsNamed) {
  std::string text;
  for (const auto& change : std::vector<std::function<void(RendezvousOptions&)>>{
           [](auto& other) { other.nodes = 4; }, [](auto& other) { other.job = "second"; },
           [](auto& other) { other.node_rank.reset(); },
           [](auto& other) { other.host = "evil\x1b[2J\nhost", other.nodes = 4; }}) {
    RendezvousOptions other = node_options(loopback_place(), 1, 3);
    MeetingNode node0(node_options(to_url(other.place), 0, 3));
    ASSERT_TRUE(node0.comes_to_say("waits for"));
    other.host = "other";
    change(other);
    MeetingNode node1(other);
    const std::string why = node0.error();
    EXPECT_EQ(node1.error(), why);
    text += lasting(why);
  }
  test::expect_texts("nodes that differ", text);
}

TEST(Rendezvous, AWrongTokenIsRefusedAndNamedOnBothSides) {
  const std::string place = loopback_place();
  MeetingNode node0(node_options(place, 0, 2));
  MeetingNode stranger(node_options(place, 1, 2), "another token of this test");
  EXPECT_THAT(stranger.error(), AllOf(HasSubstr("another token"), Not(HasSubstr("of this test"))));
  EXPECT_TRUE(node0.comes_to_say("it has another token than this node (HORARUN_TOKEN"));
  EXPECT_TRUE(node0.has_said("node 0 refused a connection from 127.0.0.1:"));
  EXPECT_TRUE(node0.is_waiting());
  MeetingNode node1(node_options(place, 1, 2));
  node0.met(), node1.met();
}

TEST(Rendezvous, Node0NeedNotHaveTheNameThatOthersUse) {
  const std::uint16_t port = free_port();
  MeetingNode node0(node_options("tcp://no-such-host.invalid:" + std::to_string(port), 0, 2));
  ASSERT_TRUE(node0.comes_to_say("node 0 listens at all of them, port " + std::to_string(port)));
  MeetingNode node1(node_options("tcp://127.0.0.1:" + std::to_string(port), 1, 2));
  node0.met(), node1.met();
}

TEST(Rendezvous, TheEndOfNode0IsNoticedAtOnce) {
  const std::string place = loopback_place();
  Pipe stop = make_pipe();
  RendezvousOptions options = node_options(place, 0, 3);
  options.stop_descriptor = stop.read.get();
  MeetingNode node0(options);
  MeetingNode node1(node_options(place, 1, 3));
  ASSERT_TRUE(node1.comes_to_say("waits for node 2 of 3"));
  const auto start = Clock::now();
  stop.write.reset();
  EXPECT_THAT(node0.error(), HasSubstr("shut_down: node 0 was stopped"));
  EXPECT_THAT(node1.error(), HasSubstr("node 0 was stopped"));
  EXPECT_LT(Clock::now() - start, 2s);
}

TEST(Rendezvous, ANode0ThatIsLostIsNamed) {
  const SecretKey key = *token_from_text(kToken);
  const TestSocket listener = test_socket();
  ASSERT_EQ(::listen(listener.descriptor.get(), 5), 0);
  MeetingNode node1(node_options("tcp://127.0.0.1:" + std::to_string(listener.port), 1, 3));
  EventLoop loop;
  UniqueFd accepted(::accept(listener.descriptor.get(), nullptr, nullptr));
  std::optional<Channel> node0;
  node0.emplace(
      loop, connection_of(std::move(accepted)), key, false,
      [&](Message&& message) {
        if (std::holds_alternative<Join>(message)) loop.stop();
      },
      [&](const std::string&) { loop.stop(); });
  loop.run();
  node0->send(JoinWait{{}, "node 2 of 3", "host0"});
  ASSERT_TRUE(node0->flush(5s));
  ASSERT_TRUE(node1.comes_to_say("waits for node 2 of 3"));
  const auto start = Clock::now();
  node0.reset();
  EXPECT_THAT(node1.error(), AllOf(HasSubstr("transport: node 0 (host host0, 127.0.0.1:"),
                                   HasSubstr("has gone while node 1 (host host1) waited")));
  EXPECT_LT(Clock::now() - start, 2s);
}

TEST(Rendezvous, ANodeThatIsStoppedMayComeAgain) {
  const std::string place = loopback_place();
  Pipe early = make_pipe(), late = make_pipe();
  RendezvousOptions options = node_options(place, 1, 3);
  options.stop_descriptor = early.read.get();
  MeetingNode alone(options);
  ASSERT_TRUE(alone.comes_to_say("Connection refused"));
  early.write.reset();
  EXPECT_THAT(alone.error(), HasSubstr("was stopped while it waited for node 0"));
  MeetingNode node0(node_options(place, 0, 3));
  options.stop_descriptor = late.read.get();
  MeetingNode leaving(options);
  ASSERT_TRUE(leaving.comes_to_say("waits for node 2 of 3"));
  late.write.reset();
  leaving.error();
  EXPECT_TRUE(
      node0.comes_to_say("host host1 (127.0.0.1) has left; node 0 waits for nodes 1, 2 of 3"))
      << node0.text();
  MeetingNode again(node_options(place, 1, 3)), node2(node_options(place, 2, 3));
  node0.met(), again.met(), node2.met();
}

/// Connections that say nothing, or nonsense, neither stop nor delay the nodes, nor stay.
TEST(Rendezvous, StrangersDoNotDisturb) {
  RendezvousOptions options = node_options(loopback_place(), 0, 3);
  options.handshake_limit = 500ms;
  MeetingNode node0(options);
  ASSERT_TRUE(node0.comes_to_say("waits for"));
  const auto port = static_cast<std::uint16_t>(options.place.port);
  std::vector<TestSocket> strangers;
  const std::vector<std::byte> nonsense(3000, std::byte{'x'});
  for (int i = 0; i < 300; ++i) {
    strangers.push_back(test_socket(port));
    const UniqueFd& stranger = strangers.back().descriptor;
    ASSERT_TRUE(stranger);
    if (i % 60 == 0) ::send(stranger.get(), nonsense.data(), nonsense.size(), MSG_NOSIGNAL);
  }
  const auto start = Clock::now();
  MeetingNode node1(node_options(to_url(options.place), 1, 3));
  std::array<std::byte, 100> greeting;
  while (::read(strangers.back().descriptor.get(), greeting.data(), greeting.size()) > 0) {
  }  // until node 0 closes the connection
  MeetingNode node2(node_options(to_url(options.place), 2, 3));
  node0.met(), node1.met(), node2.met();
  EXPECT_LT(Clock::now() - start, 5s);
}

/// The file that node 0 has written replaces that of a killed one, and is of one user.
TEST(RendezvousInAFolder, NodesFindNode0ByItsFile) {
  const TemporaryFolder folder;
  const std::string path = folder.file("job.rendezvous");
  std::ofstream(path) << free_port() << " 127.0.0.1";
  MeetingNode node1(node_options(place_of(folder), 1, 3));
  ASSERT_TRUE(node1.comes_to_say("Connection refused"));
  MeetingNode node0(node_options(place_of(folder), 0, 3));
  ASSERT_TRUE(node0.comes_to_say("waits for"));
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  MeetingNode node2(node_options(place_of(folder), 2, 3));
  node0.met(), node1.met(), node2.met();
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(RendezvousInAFolder, WrongFilesAreNamed) {
  const TemporaryFolder folder;
  std::string text;
  for (const char* content :
       {"", "{}", "a 10.0.0.1", "0 10.0.0.1", "65536 10.0.0.1", "-1 10.0.0.1", "1", "1 host"}) {
    test::written(folder, "job.rendezvous", content);
    MeetingNode node1(limited_options(place_of(folder), 1, 2, 200ms));
    text += lasting(node1.error());
  }
  test::expect_texts("files of no rendezvous", test::with(text, folder.path(), "FOLDER"));
}

}  // namespace
}  // namespace hora::launch
