// The nodes of a rendezvous as threads of one process.
#include "core/launch/rendezvous/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <list>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/launch/control/system.h"
#include "core/launch/network/network.h"
#include "tests/support/temporary_folder.h"

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
  std::string error() {
    const auto outcome = outcome_.get();
    EXPECT_FALSE(outcome) << "met, where an error was expected";
    return outcome ? "" : outcome.error();
  }
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

/// A descriptor that becomes readable when the other end is closed.
struct Stop {
  Pipe pipe = make_pipe();
  void now() { pipe.write.reset(); }
};

/// Options of node `rank`, on the host "host<rank>", with limits for tests.
RendezvousOptions node_options(const std::string& place, std::optional<int> rank, int nodes) {
  RendezvousOptions options;
  const auto parsed = parse_rendezvous(place);
  EXPECT_TRUE(parsed) << place;
  options.place = *parsed;
  options.node_rank = rank;
  options.nodes = nodes;
  options.ranks = 2;
  options.host = rank ? "host" + std::to_string(*rank) : "unranked";
  options.timeout = std::chrono::seconds(20);
  options.report_every = std::chrono::milliseconds(100);
  return options;
}

std::string loopback_place() {
  return "tcp://127.0.0.1:" + std::to_string(free_port());
}

/// Whether the other side closes the connection in time.
bool ends_within(const UniqueFd& connection, std::chrono::milliseconds limit) {
  const auto end = Clock::now() + limit;
  while (Clock::now() < end) {
    pollfd entry{connection.get(), POLLIN, 0};
    std::array<std::byte, 100> bytes;
    if (::poll(&entry, 1, 100) > 0 && ::read(connection.get(), bytes.data(), bytes.size()) == 0) {
      return true;
    }
  }
  return false;
}

/// A message from one end arrives at the other.
void expect_connected(Connection from, Connection to) {
  EventLoop loop;
  std::vector<Message> received;
  Channel sender(
      loop, std::move(from), [](Message&&) {}, [](const std::string&) {});
  Channel receiver(
      loop, std::move(to),
      [&](Message&& message) {
        received.push_back(std::move(message));
        loop.stop();
      },
      [&](const std::string&) { loop.stop(); });
  sender.send(Hello{});
  loop.run();
  ASSERT_EQ(received.size(), 1U);
  EXPECT_TRUE(std::holds_alternative<Hello>(received[0]));
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

TEST(Rendezvous, EndsInTimeAndNamesWhoIsMissing) {
  const std::string place = loopback_place();
  RendezvousOptions options = node_options(place, 0, 3);
  options.timeout = 300ms;
  MeetingNode node0(options);
  MeetingNode node1(node_options(place, 1, 3));
  const std::string why = node0.error();
  EXPECT_THAT(
      why, AllOf(HasSubstr("timeout: "), HasSubstr("still waits for node"), HasSubstr("2 of 3")));
  EXPECT_THAT(node1.error(), AnyOf(HasSubstr("2 of 3"), HasSubstr("node 0 at")));
  options = node_options(loopback_place(), 1, 3);
  options.timeout = 300ms;
  MeetingNode alone(options);
  EXPECT_THAT(alone.error(), AllOf(HasSubstr("timeout: "), HasSubstr("node 0 at tcp://127.0.0.1:"),
                                   HasSubstr("Connection refused")));
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
  EXPECT_THAT(*texts.begin(), AllOf(HasSubstr("two nodes have the same rank"),
                                    HasSubstr("host host1 (127.0.0.1)")));
}

/// Nodes that differ end with one text, which names both hosts.
TEST(Rendezvous, WhatDiffersBetweenNodesIsNamed) {
  const std::vector<std::pair<std::function<void(RendezvousOptions&)>, std::string>> cases{
      {[](auto& other) { other.nodes = 4; },
       "host other (127.0.0.1) has --nnodes 4, host host0 has --nnodes 3"},
      {[](auto& other) { other.job = "second"; },
       "has --rendezvous-id second, host host0 has --rendezvous-id job"},
      {[](auto& other) { other.node_rank.reset(); },
       "has no --node-rank, host host0 has a --node-rank"},
      {[](auto& other) { other.host = "evil\x1b[2J\nhost", other.nodes = 4; },
       "host evil\\x1b[2J\\nhost (127.0.0.1)"}};
  for (const auto& [change, expected] : cases) {
    RendezvousOptions other = node_options(loopback_place(), 1, 3);
    MeetingNode node0(node_options(to_url(other.place), 0, 3));
    ASSERT_TRUE(node0.comes_to_say("waits for"));
    other.host = "other";
    change(other);
    MeetingNode node1(other);
    const std::string why = node0.error();
    EXPECT_THAT(why, HasSubstr(expected));
    EXPECT_THAT(node1.error(), HasSubstr(expected));
  }
}

/// Node 0 says of whom it waits for.
TEST(Rendezvous, MissingNodesAreNamed) {
  for (const auto& [rank, expected] :
       {std::pair(std::optional(0),
                  "waits for nodes 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, "
                  "14, 15, 16 and 83 more of 100 at"),
        std::pair(std::optional<int>(), "waits for 99 of 100 nodes at")}) {
    RendezvousOptions options = node_options(loopback_place(), rank, 100);
    options.timeout = 300ms;
    MeetingNode node0(options);
    EXPECT_THAT(node0.error(), HasSubstr("still waits for"));
    EXPECT_TRUE(node0.has_said(expected)) << node0.text();
  }
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

TEST(Rendezvous, WhatKeepsANodeFromMeetingIsNamed) {
  const TestSocket other = test_socket();
  ASSERT_EQ(::listen(other.descriptor.get(), 5), 0);
  const std::string used = "tcp://127.0.0.1:" + std::to_string(other.port);
  RendezvousOptions unknown = node_options("tcp://no-such-host.invalid:1", 1, 2);
  unknown.timeout = 500ms;
  // Without ranks who has the port may be node 0, which then does not answer as one.
  RendezvousOptions unranked = node_options(used, {}, 2);
  unranked.handshake_limit = 100ms;
  unranked.timeout = 1s;
  for (const auto& [options, expected] :
       {std::pair(node_options(used, 0, 2), "in use on this host"),
        std::pair(unranked, "does not answer as a horarun does"),
        std::pair(unknown, "no-such-host.invalid cannot be resolved")}) {
    MeetingNode node(options);
    EXPECT_THAT(node.error(), HasSubstr(expected));
  }
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
  Stop stop;
  RendezvousOptions options = node_options(place, 0, 3);
  options.stop_descriptor = stop.pipe.read.get();
  MeetingNode node0(options);
  MeetingNode node1(node_options(place, 1, 3));
  ASSERT_TRUE(node1.comes_to_say("waits for node 2 of 3"));
  const auto start = Clock::now();
  stop.now();
  EXPECT_THAT(node0.error(), HasSubstr("shut_down: node 0 was stopped"));
  EXPECT_THAT(node1.error(), HasSubstr("node 0 was stopped"));
  EXPECT_LT(Clock::now() - start, 2s);
}

/// Node 0 as far as "wait for the others"; then it says nothing more.
class SilentNode0 {
 public:
  SilentNode0() { EXPECT_EQ(::listen(listener_.descriptor.get(), 5), 0); }
  std::string place() const { return "tcp://127.0.0.1:" + std::to_string(listener_.port); }
  void admit() {
    UniqueFd accepted(::accept(listener_.descriptor.get(), nullptr, nullptr));
    ASSERT_TRUE(accepted);
    channel_ = std::make_unique<Channel>(
        loop_, connection_of(std::move(accepted)), key_, false,
        [this](Message&& message) {
          if (std::holds_alternative<Join>(message)) loop_.stop();
        },
        [this](const std::string& reason) {
          ADD_FAILURE() << reason;
          loop_.stop();
        });
    loop_.run();
    channel_->send(JoinWait{{}, "node 2 of 3", "host0"});
    ASSERT_TRUE(channel_->flush(5s));
  }
  void close() { channel_.reset(); }

 private:
  SecretKey key_ = *token_from_text(kToken);
  TestSocket listener_ = test_socket();
  EventLoop loop_;
  std::unique_ptr<Channel> channel_;
};

TEST(Rendezvous, ANode0ThatIsLostIsNamed) {
  SilentNode0 lost;
  MeetingNode node1(node_options(lost.place(), 1, 3));
  lost.admit();
  ASSERT_TRUE(node1.comes_to_say("waits for node 2 of 3"));
  const auto start = Clock::now();
  lost.close();
  EXPECT_THAT(node1.error(), AllOf(HasSubstr("transport: node 0 (host host0, 127.0.0.1:"),
                                   HasSubstr("has gone while node 1 (host host1) waited")));
  EXPECT_LT(Clock::now() - start, 2s);
}

TEST(Rendezvous, ANodeThatIsStoppedMayComeAgain) {
  const std::string place = loopback_place();
  Stop early, late;
  RendezvousOptions options = node_options(place, 1, 3);
  options.stop_descriptor = early.pipe.read.get();
  MeetingNode alone(options);
  ASSERT_TRUE(alone.comes_to_say("Connection refused"));
  early.now();
  EXPECT_THAT(alone.error(), HasSubstr("was stopped while it waited for node 0"));
  MeetingNode node0(node_options(place, 0, 3));
  options.stop_descriptor = late.pipe.read.get();
  MeetingNode leaving(options);
  ASSERT_TRUE(leaving.comes_to_say("waits for node 2 of 3"));
  late.now();
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
  EXPECT_TRUE(ends_within(strangers.back().descriptor, 10s)) << "after its greeting";
  MeetingNode node2(node_options(to_url(options.place), 2, 3));
  node0.met(), node1.met(), node2.met();
  EXPECT_LT(Clock::now() - start, 5s);
}

std::string place_of(const TemporaryFolder& folder) {
  return "file://" + folder.path().string();
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
  RendezvousOptions options = node_options(place_of(folder), 1, 2);
  options.timeout = 200ms;
  const std::string path = folder.file("job.rendezvous");
  for (const char* text :
       {"", "{}", "a 10.0.0.1", "0 10.0.0.1", "65536 10.0.0.1", "-1 10.0.0.1", "1", "1 host"}) {
    std::ofstream(path) << text;
    MeetingNode node1(options);
    EXPECT_THAT(node1.error(), HasSubstr(path + " is no file of a horarun")) << text;
  }
  fs::remove(path);
  fs::create_symlink(folder.file("elsewhere"), path);
  MeetingNode node0(node_options(place_of(folder), 0, 2));
  EXPECT_THAT(node0.error(), HasSubstr(path));
  EXPECT_FALSE(fs::exists(folder.file("elsewhere")));
  for (const int rank : {0, 1}) {
    options = node_options("file:///no/such/folder", rank, 2);
    options.timeout = 200ms;
    MeetingNode node(options);
    EXPECT_THAT(node.error(), AllOf(HasSubstr("/no/such/folder"), HasSubstr("No such file")));
  }
}

}  // namespace
}  // namespace hora::launch
