#include "core/launch/control/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <algorithm>
#include <vector>

#include "tests/support/expect_error.h"

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
    EXPECT_TRUE(server.receive.accept(bytes(text), client.send.tag(bytes(text))));
    EXPECT_TRUE(client.receive.accept(bytes(text), server.send.tag(bytes(text))));
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

}  // namespace
}  // namespace hora::launch
