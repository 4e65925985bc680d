#include "core/launch/rendezvous/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <list>
#include <set>

#include "core/launch/rendezvous/admission.h"
#include "tests/core/launch/rendezvous/meeting_nodes.h"

namespace hora::launch {
namespace {

using namespace std::chrono_literals;
using test::free_port;
using test::MeetingNode;
using test::node_options;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

std::string loopback_place() {
  return "tcp://127.0.0.1:" + std::to_string(free_port());
}

/// A message from one end arrives at the other.
void expect_connected(JoinedNode& from, JoinedNode& to) {
  const std::vector<std::byte> payload(100, std::byte{7});
  const std::vector<std::byte> sealed = from.send.seal(payload);
  ASSERT_TRUE(send_all(from.connection.get(), sealed, Clock::now() + 5s));
  ASSERT_EQ(wait_for(to.connection.get(), POLLIN, -1, Clock::now() + 5s), Waited::ready);
  ExactReader reader;
  ASSERT_EQ(reader.read(to.connection.get(), sealed.size()), ExactReader::State::complete);
  EXPECT_EQ(to.receive.open(reader.bytes()), payload);
}

void expect_all_connected(std::list<MeetingNode>& nodes) {
  std::vector<NodesMet> met;
  for (MeetingNode& node : nodes) met.push_back(node.met());
  std::ranges::sort(met, {}, &NodesMet::node_rank);
  ASSERT_EQ(met.size(), met[0].nodes.size());
  ASSERT_EQ(met[0].joined.size(), met.size() - 1);
  for (std::size_t rank = 0; rank < met.size(); ++rank) {
    EXPECT_EQ(met[rank].node_rank, static_cast<int>(rank));
    if (rank == 0) continue;
    ASSERT_EQ(met[rank].joined.size(), 1U);
    EXPECT_EQ(met[0].joined[rank - 1].node_rank, static_cast<int>(rank));
    EXPECT_EQ(met[rank].nodes[rank], met[0].nodes[rank]);
    expect_connected(met[0].joined[rank - 1], met[rank].joined[0]);
    expect_connected(met[rank].joined[0], met[0].joined[rank - 1]);
  }
}

TEST(Rendezvous, JoinsAllNodesToNode0InAnyOrder) {
  for (const std::string host : {"127.0.0.1", "[::1]", "localhost"}) {
    if (host == "[::1]" && !listen_at({*parse_address("::1"), 0})) continue;
    const std::string place = "tcp://" + host + ":" + std::to_string(free_port());
    std::list<MeetingNode> nodes;
    for (const int rank : {3, 1, 0, 2}) nodes.emplace_back(node_options(place, rank, 4));
    expect_all_connected(nodes);
  }
}

TEST(Rendezvous, WithoutRanksOneIsNode0) {
  const std::string place = loopback_place();
  std::list<MeetingNode> nodes;
  for (int i = 0; i < 4; ++i) nodes.emplace_back(node_options(place, {}, 4));
  expect_all_connected(nodes);
}

TEST(Rendezvous, OfOneNodeNeedsNoOther) {
  MeetingNode alone(node_options(loopback_place(), 0, 1));
  const NodesMet met = alone.met();
  EXPECT_EQ(met.nodes.size(), 1U);
  EXPECT_TRUE(met.joined.empty());
}

TEST(Rendezvous, WhoWaitsSaysForWhom) {
  const std::string place = loopback_place();
  MeetingNode node1(node_options(place, 1, 3));
  EXPECT_TRUE(node1.lines().come_to_have("node 1 (host host1) waits for node 0 at " + place +
                                         ": Connection refused"))
      << node1.lines().text();
  MeetingNode node0(node_options(place, 0, 3));
  EXPECT_TRUE(node0.lines().come_to_have("node 0 (host host0) waits for node 2 of 3 at 127.0.0.1:"))
      << node0.lines().text();
  EXPECT_TRUE(node1.lines().come_to_have(
      "node 1 (host host1) waits for node 2 of 3, with node 0 (host host0, 127.0.0.1:"))
      << node1.lines().text();
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
  ASSERT_TRUE(nodes.front().lines().come_to_have("waits for nodes 2, 3 of 4"));
  nodes.emplace_back(node_options(place, 1, 4));
  std::set<std::string> texts;
  for (MeetingNode& node : nodes) texts.insert(node.error());
  EXPECT_EQ(texts.size(), 1U) << testing::PrintToString(texts);
  EXPECT_THAT(*texts.begin(), AllOf(HasSubstr("two nodes have the same rank"),
                                    HasSubstr("host host1 (127.0.0.1)")));
}

TEST(Rendezvous, OtherNumbersOfNodesOrVersionsEndAllNodes) {
  RendezvousOptions other = node_options(loopback_place(), 1, 3);
  MeetingNode node0(node_options(to_url(other.place), 0, 2));
  MeetingNode node1(other);
  EXPECT_THAT(node1.error(), AllOf(HasSubstr("--nnodes 3"), HasSubstr("--nnodes 2")));
  EXPECT_THAT(node0.error(), HasSubstr("--nnodes 3"));
  other = node_options(loopback_place(), 1, 2);
  other.version = "9.9";
  MeetingNode newer(other), older(node_options(to_url(other.place), 0, 2));
  EXPECT_THAT(newer.error(), HasSubstr("has hora 9.9"));
  EXPECT_THAT(older.error(), HasSubstr("has hora 9.9"));
}

TEST(Rendezvous, AWrongTokenIsRefusedAndNamedOnBothSides) {
  const std::string place = loopback_place();
  MeetingNode node0(node_options(place, 0, 2));
  MeetingNode stranger(node_options(place, 1, 2), "another token of this test");
  EXPECT_THAT(stranger.error(), AllOf(HasSubstr("another token"), Not(HasSubstr("of this test"))));
  EXPECT_TRUE(node0.lines().come_to_have("it has another token than this node (HORARUN_TOKEN"));
  EXPECT_TRUE(node0.lines().have("node 0 refused a connection from 127.0.0.1:"));
  EXPECT_TRUE(node0.is_waiting());
  MeetingNode node1(node_options(place, 1, 2));
  node0.met(), node1.met();
}

TEST(Rendezvous, WithoutATokenItDoesNotStart) {
  MeetingNode node0(node_options(loopback_place(), 0, 2), nullptr);
  EXPECT_THAT(node0.error(), HasSubstr("HORARUN_TOKEN"));
}

TEST(Rendezvous, AUsedPortIsNamed) {
  const auto other = listen_at({*parse_address("127.0.0.1"), 0});
  ASSERT_TRUE(other);
  const std::string place = "tcp://" + to_string(other->at);
  MeetingNode node0(node_options(place, 0, 2));
  EXPECT_THAT(node0.error(), AllOf(HasSubstr(to_string(other->at)), HasSubstr("in use")));
  // Without ranks that may be node 0, which then does not answer as one.
  RendezvousOptions options = node_options(place, {}, 2);
  options.handshake_limit = 100ms;
  options.timeout = 1s;
  MeetingNode unranked(options);
  EXPECT_THAT(unranked.error(), HasSubstr("does not answer as a horarun does"));
}

TEST(Rendezvous, AnUnknownNameIsWaitedForAndNamed) {
  RendezvousOptions options = node_options("tcp://no-such-host.invalid:1", 1, 2);
  options.timeout = 500ms;
  MeetingNode node1(options);
  EXPECT_THAT(node1.error(), HasSubstr("no-such-host.invalid cannot be resolved"));
}

TEST(Rendezvous, Node0NeedNotHaveTheNameThatOthersUse) {
  const std::uint16_t port = free_port("0.0.0.0");
  RendezvousOptions options =
      node_options("tcp://no-such-host.invalid:" + std::to_string(port), 0, 2);
  MeetingNode node0(options);
  ASSERT_TRUE(node0.lines().come_to_have("node 0 listens at ")) << node0.lines().text();
  const auto own = own_address("host0", {});
  ASSERT_TRUE(own);
  MeetingNode node1(node_options("tcp://" + with_port(*own, port), 1, 2));
  node0.met(), node1.met();
}

TEST(Rendezvous, TheEndOfNode0IsNoticedAtOnce) {
  const std::string place = loopback_place();
  std::array<int, 2> stop;
  ASSERT_EQ(::pipe(stop.data()), 0);
  const UniqueFd read_end(stop[0]);
  UniqueFd write_end(stop[1]);
  RendezvousOptions options = node_options(place, 0, 3);
  options.stop_descriptor = read_end.get();
  MeetingNode node0(options);
  MeetingNode node1(node_options(place, 1, 3));
  ASSERT_TRUE(node1.lines().come_to_have("waits for node 2 of 3"));
  const auto start = Clock::now();
  write_end.reset();
  EXPECT_THAT(node0.error(), HasSubstr("shut_down: node 0 was stopped"));
  EXPECT_THAT(node1.error(), HasSubstr("node 0 was stopped"));
  EXPECT_LT(Clock::now() - start, 2s);
}

/// Node 0 as far as "wait for the others"; then it says nothing more.
class SilentNode0 {
 public:
  SilentNode0() : key_(*token_from_text(test::kToken)), admission_(key_) {
    auto listener = listen_at({*parse_address("127.0.0.1"), 0});
    EXPECT_TRUE(listener);
    listener_ = std::move(*listener);
  }
  std::string place() const { return "tcp://" + to_string(listener_.at); }
  void admit() {
    ASSERT_EQ(wait_for(listener_.descriptor.get(), POLLIN, -1, Clock::now() + 20s), Waited::ready);
    auto accepted = accept_from(listener_);
    ASSERT_TRUE(accepted);
    connection_ = std::move(accepted->descriptor);
    ExactReader reader;
    while (!admission_.request()) {
      ASSERT_EQ(wait_for(connection_.get(), POLLIN, -1, Clock::now() + 20s), Waited::ready);
      if (reader.read(connection_.get(), admission_.wants()) != ExactReader::State::complete) {
        continue;
      }
      const auto answer = admission_.take(reader.bytes());
      ASSERT_TRUE(answer);
      ASSERT_TRUE(send_all(connection_.get(), *answer, Clock::now() + 5s));
    }
    SealPair seals = admission_.take_seals();
    const JoinReply wait{JoinReply::Kind::wait, "node 2 of 3", 0, {{"host0", "127.0.0.1", 2}}};
    ASSERT_TRUE(
        send_all(connection_.get(), frame_of(encode(wait), &seals.send), Clock::now() + 5s));
  }
  void close() { connection_.reset(); }

 private:
  SecretKey key_;
  Admission admission_;
  Listener listener_;
  UniqueFd connection_;
};

TEST(Rendezvous, ALostNode0IsNamedAtOnce) {
  SilentNode0 node0;
  MeetingNode node1(node_options(node0.place(), 1, 3));
  node0.admit();
  ASSERT_TRUE(node1.lines().come_to_have("waits for node 2 of 3"));
  const auto start = Clock::now();
  node0.close();
  EXPECT_THAT(node1.error(), AllOf(HasSubstr("transport: node 0 (host host0, 127.0.0.1:"),
                                   HasSubstr("has gone while node 1 (host host1) waited")));
  EXPECT_LT(Clock::now() - start, 2s);
}

TEST(Rendezvous, ANode0ThatHangsIsNamed) {
  SilentNode0 node0;
  RendezvousOptions options = node_options(node0.place(), 1, 3);
  options.silence_limit = 300ms;
  MeetingNode node1(options);
  node0.admit();
  EXPECT_THAT(node1.error(), AllOf(HasSubstr("has heard nothing from node 0 (host host0"),
                                   HasSubstr("it hangs, or the network between them is cut")));
}

TEST(Rendezvous, AJoiningNodeCanBeStopped) {
  std::array<int, 2> stop;
  ASSERT_EQ(::pipe(stop.data()), 0);
  const UniqueFd read_end(stop[0]);
  UniqueFd write_end(stop[1]);
  const std::string place = loopback_place();
  RendezvousOptions options = node_options(place, 1, 2);
  options.stop_descriptor = read_end.get();
  MeetingNode node1(options);
  ASSERT_TRUE(node1.lines().come_to_have("Connection refused"));
  write_end.reset();
  EXPECT_THAT(node1.error(), HasSubstr("was stopped while it waited for node 0"));
}

TEST(Rendezvous, ANodeThatLeavesMayComeAgain) {
  const std::string place = loopback_place();
  MeetingNode node0(node_options(place, 0, 3));
  std::array<int, 2> stop;
  ASSERT_EQ(::pipe(stop.data()), 0);
  const UniqueFd read_end(stop[0]);
  UniqueFd write_end(stop[1]);
  RendezvousOptions options = node_options(place, 1, 3);
  options.stop_descriptor = read_end.get();
  MeetingNode leaving(options);
  ASSERT_TRUE(leaving.lines().come_to_have("waits for node 2 of 3"));
  write_end.reset();
  leaving.error();
  EXPECT_TRUE(node0.lines().come_to_have(
      "node 1 (host host1, 127.0.0.1) has left; node 0 waits for nodes 1, 2 of 3"))
      << node0.lines().text();
  MeetingNode again(node_options(place, 1, 3)), node2(node_options(place, 2, 3));
  node0.met(), again.met(), node2.met();
}

/// Connections that say nothing, or nonsense, neither stop the nodes nor stay.
TEST(Rendezvous, StrangersDoNotDisturb) {
  RendezvousOptions options = node_options(loopback_place(), 0, 3);
  options.handshake_limit = 500ms;
  MeetingNode node0(options);
  ASSERT_TRUE(node0.lines().come_to_have("waits for"));
  const Endpoint at{*parse_address("127.0.0.1"), static_cast<std::uint16_t>(options.place.port)};
  std::vector<UniqueFd> silent, talking;
  for (int i = 0; i < 40; ++i) {
    auto connection = connect_to(at, -1, Clock::now() + 5s);
    ASSERT_TRUE(connection);
    silent.push_back(std::move(*connection));
  }
  const std::vector<std::byte> nonsense(3000, std::byte{'x'});
  for (int i = 0; i < 5; ++i) {
    auto connection = connect_to(at, -1, Clock::now() + 5s);
    ASSERT_TRUE(connection);
    static_cast<void>(send_all(connection->get(), nonsense, Clock::now() + 5s));
    talking.push_back(std::move(*connection));
  }
  MeetingNode node1(node_options(to_url(options.place), 1, 3));
  MeetingNode node2(node_options(to_url(options.place), 2, 3));
  node0.met(), node1.met(), node2.met();
  EXPECT_TRUE(node0.lines().have("too many connections from there")) << node0.lines().text();
}

TEST(Rendezvous, IdleConnectionsOfOneAddressDelayNobody) {
  const RendezvousOptions options = node_options(loopback_place(), 0, 2);
  MeetingNode node0(options);
  ASSERT_TRUE(node0.lines().come_to_have("waits for"));
  const Endpoint at{*parse_address("127.0.0.1"), static_cast<std::uint16_t>(options.place.port)};
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 300; ++i) {
    auto connection = connect_to(at, -1, Clock::now() + 5s);
    ASSERT_TRUE(connection);
    idle.push_back(std::move(*connection));
  }
  const auto start = Clock::now();
  MeetingNode node1(node_options(to_url(options.place), 1, 2));
  node0.met(), node1.met();
  EXPECT_LT(Clock::now() - start, 5s);
}

TEST(Rendezvous, SilentConnectionsAreClosedInTime) {
  RendezvousOptions options = node_options(loopback_place(), 0, 2);
  options.handshake_limit = 200ms;
  MeetingNode node0(options);
  ASSERT_TRUE(node0.lines().come_to_have("waits for"));
  auto silent =
      connect_to({*parse_address("127.0.0.1"), static_cast<std::uint16_t>(options.place.port)}, -1,
                 Clock::now() + 5s);
  ASSERT_TRUE(silent);
  ASSERT_EQ(wait_for(silent->get(), POLLIN, -1, Clock::now() + 10s), Waited::ready);
  ExactReader reader;
  EXPECT_EQ(reader.read(silent->get(), 1), ExactReader::State::ended);
  MeetingNode node1(node_options(to_url(options.place), 1, 2));
  node0.met(), node1.met();
}

/// The connection's next bytes belong to the code that takes it over.
TEST(Rendezvous, ReadsNothingBeyondItsLastMessage) {
  const std::string place = loopback_place();
  MeetingNode node0(node_options(place, 0, 2)), node1(node_options(place, 1, 2));
  NodesMet first = node0.met();
  const std::vector<std::byte> at_once(1000, std::byte{3});
  ASSERT_TRUE(send_all(first.joined[0].connection.get(), at_once, Clock::now() + 5s));
  NodesMet second = node1.met();
  ASSERT_EQ(wait_for(second.joined[0].connection.get(), POLLIN, -1, Clock::now() + 5s),
            Waited::ready);
  ExactReader reader;
  ASSERT_EQ(reader.read(second.joined[0].connection.get(), 1000), ExactReader::State::complete);
  EXPECT_TRUE(std::ranges::equal(reader.bytes(), at_once));
}

TEST(Rendezvous, OfManyNodes) {
  const std::string place = loopback_place();
  std::list<MeetingNode> nodes;
  for (int rank = 0; rank < 40; ++rank) nodes.emplace_back(node_options(place, rank, 40));
  expect_all_connected(nodes);
}

}  // namespace
}  // namespace hora::launch
