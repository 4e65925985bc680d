#include "core/launch/rendezvous/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <algorithm>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::launch {
namespace {

using testing::HasSubstr;

SecretKey token(std::string_view text = "a token of this test") {
  auto made = token_from_text(text);
  EXPECT_TRUE(made);
  return std::move(*made);
}

/// Both sides with one token, each with its seals.
struct Connected {
  explicit Connected(const SecretKey& key) : client(key), server(key) {
    const auto server_hello = server.answer(client.hello());
    EXPECT_TRUE(server_hello);
    const auto proof = client.answer(*server_hello);
    EXPECT_TRUE(proof);
    EXPECT_TRUE(server.finish(*proof));
  }
  ClientHandshake client;
  ServerHandshake server;
};

std::vector<std::byte> bytes(std::string_view text) {
  const auto view = std::as_bytes(std::span(text.data(), text.size()));
  return {view.begin(), view.end()};
}

TEST(Handshake, JoinsTheTwoSidesOfOneToken) {
  const SecretKey key = token();
  const Connected both(key);
  SealPair client = both.client.seals();
  SealPair server = both.server.seals();
  for (const char* text : {"first", "second", ""}) {
    EXPECT_EQ(server.receive.open(client.send.seal(bytes(text))), bytes(text));
    EXPECT_EQ(client.receive.open(server.send.seal(bytes(text))), bytes(text));
  }
}

TEST(Handshake, AServerWithAnotherTokenIsRefused) {
  const SecretKey key = token();
  const SecretKey other = token("a token of another job");
  ClientHandshake client(key);
  ServerHandshake server(other);
  const auto proof = client.answer(*server.answer(client.hello()));
  ASSERT_FALSE(proof);
  EXPECT_THAT(proof.error(), HasSubstr("another token"));
  internal::test::expect_error(ErrorCode::invalid_use, [&] { static_cast<void>(client.seals()); });
}

TEST(Handshake, AClientWithAnotherTokenIsRefused) {
  const SecretKey key = token();
  ClientHandshake client(key);
  ServerHandshake server(key);
  const auto server_hello = server.answer(client.hello());
  ClientProof forged{};
  const auto finished = server.finish(forged);
  ASSERT_FALSE(finished);
  EXPECT_THAT(finished.error(), HasSubstr("another token"));
  internal::test::expect_error(ErrorCode::invalid_use, [&] { static_cast<void>(server.seals()); });
}

TEST(Handshake, AnyChangedBitIsRefused) {
  const SecretKey key = token();
  for (std::size_t i = 0; i < kServerHelloBytes; ++i) {
    ClientHandshake client(key);
    ServerHandshake server(key);
    ServerHello changed = *server.answer(client.hello());
    changed[i] ^= std::byte{4};
    EXPECT_FALSE(client.answer(changed)) << i;
  }
  for (std::size_t i = 0; i < kClientProofBytes; ++i) {
    ClientHandshake client(key);
    ServerHandshake server(key);
    ClientProof changed = *client.answer(*server.answer(client.hello()));
    changed[i] ^= std::byte{4};
    EXPECT_FALSE(server.finish(changed)) << i;
  }
}

TEST(Handshake, ARecordedClientCannotBeRepeated) {
  const SecretKey key = token();
  ClientHandshake client(key);
  ServerHandshake server(key);
  const ClientProof proof = *client.answer(*server.answer(client.hello()));
  ServerHandshake later(key);
  ASSERT_TRUE(later.answer(client.hello()));
  EXPECT_FALSE(later.finish(proof));
}

TEST(Handshake, AServersOwnProofIsNoProofOfAClient) {
  const SecretKey key = token();
  ClientHandshake client(key);
  ServerHandshake server(key);
  const ServerHello hello = *server.answer(client.hello());
  ClientProof reflected;
  std::copy(hello.begin() + 32, hello.end(), reflected.begin());
  EXPECT_FALSE(server.finish(reflected));
}

TEST(Handshake, OtherProgramsAndVersionsAreTold) {
  const SecretKey key = token();
  const ClientHandshake client(key);
  ClientHello hello = client.hello();
  hello[8] = std::byte{7};
  const auto version = ServerHandshake(key).answer(hello);
  ASSERT_FALSE(version);
  EXPECT_THAT(version.error(), HasSubstr("version 7"));
  std::ranges::copy(bytes("GET / HT"), hello.begin());
  const auto program = ServerHandshake(key).answer(hello);
  ASSERT_FALSE(program);
  EXPECT_THAT(program.error(), HasSubstr("no horarun"));
  EXPECT_FALSE(ServerHandshake(key).answer(bytes("short")));
  EXPECT_FALSE(ServerHandshake(key).finish(ClientProof{})) << "before the hello";
}

using Bytes = std::vector<std::byte>;

const JoinRequest kRequest{"0.1.0", "job", "b", 2, 1, 8};

/// Gives `bytes` to one end in the pieces that it wants. The answers, laid end to end.
template <class End>
tl::expected<Bytes, std::string> give(End& end, std::span<const std::byte> bytes) {
  Bytes answers;
  while (!bytes.empty()) {
    const std::size_t wants = end.wants();
    EXPECT_GT(wants, 0U);
    if (wants == 0 || wants > bytes.size()) break;
    const auto answer = end.take(bytes.first(wants));
    if (!answer) return tl::unexpected(answer.error());
    answers.insert(answers.end(), answer->begin(), answer->end());
    bytes = bytes.subspan(wants);
  }
  return answers;
}

TEST(Admission, ANodeWithTheTokenTellsWhatItIs) {
  const SecretKey key = token();
  Admission node0(key);
  Joining node(key, kRequest);
  const auto hello = give(node0, node.hello());
  ASSERT_TRUE(hello);
  EXPECT_FALSE(node.authenticated());
  const auto proof = give(node, *hello);
  ASSERT_TRUE(proof);
  EXPECT_TRUE(node.authenticated());
  EXPECT_FALSE(node0.authenticated());
  ASSERT_TRUE(give(node0, *proof));
  EXPECT_TRUE(node0.authenticated());
  EXPECT_TRUE(std::ranges::search(*proof, bytes("ranks")).empty()) << "readable on its way";
  EXPECT_EQ(node0.request(), kRequest);
  EXPECT_EQ(node0.wants(), 0U);

  SealPair seals = node0.take_seals();
  const JoinReply wait{JoinReply::Kind::wait, "node 1 of 2", 0, {{"a", "10.0.0.1", 4}}};
  const JoinReply go{JoinReply::Kind::go, "", 1, {{"a", "10.0.0.1", 4}, {"b", "10.0.0.2", 8}}};
  for (const JoinReply& reply : {wait, go}) {
    ASSERT_TRUE(give(node, frame_of(encode(reply), &seals.send)));
    EXPECT_EQ(node.reply(), reply);
  }
  // The seals go on: what is sent next is accepted at the other end.
  SealPair of_node = node.take_seals();
  const Bytes payload(3);
  EXPECT_EQ(of_node.receive.open(seals.send.seal(payload)), payload);
  EXPECT_EQ(seals.receive.open(of_node.send.seal(payload)), payload);
}

TEST(Admission, NodesWithAnotherTokenAreRefused) {
  const SecretKey key = token(), other = token("another token of this test");
  Admission node0(key);
  Joining node(other, kRequest);
  const auto proof = give(node, *give(node0, node.hello()));
  ASSERT_FALSE(proof);
  EXPECT_THAT(proof.error(), HasSubstr("another token"));
  const auto admitted = give(node0, Bytes(kClientProofBytes));
  ASSERT_FALSE(admitted);
  EXPECT_THAT(admitted.error(), HasSubstr("another token"));
  EXPECT_FALSE(node0.authenticated());
  EXPECT_FALSE(node0.request());
}

TEST(Admission, LongMessagesAreRefusedByTheirLength) {
  const SecretKey key = token();
  Admission node0(key);
  JoinRequest request = kRequest;
  request.host = std::string(kLongestRequest, 'h');
  Joining node(key, request);
  const auto admitted = give(node0, *give(node, *give(node0, node.hello())));
  ASSERT_FALSE(admitted);
  EXPECT_THAT(admitted.error(), HasSubstr("the most is"));
}

TEST(Admission, AnyChangedBitIsRefused) {
  const SecretKey key = token();
  auto random = internal::test::generator();
  for (int i = 0; i < 500; ++i) {
    Admission node0(key);
    Joining node(key, kRequest);
    Bytes sent = *give(node, *give(node0, node.hello()));
    sent[random() % sent.size()] ^= static_cast<std::byte>(1u << (random() % 8));
    // Of a changed length the rest may be still awaited, or be refused.
    static_cast<void>(give(node0, sent));
    EXPECT_FALSE(node0.request());
  }
}

}  // namespace
}  // namespace hora::launch
