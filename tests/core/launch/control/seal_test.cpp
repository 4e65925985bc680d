#include "core/launch/control/seal.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace hora::launch {
namespace {

std::vector<std::byte> bytes(std::string_view text) {
  const auto view = std::as_bytes(std::span(text.data(), text.size()));
  return {view.begin(), view.end()};
}

/// Of the connection with this number.
Seal seal(int connection, Direction direction) {
  SecretKey::Bytes key{};
  key[0] = static_cast<std::byte>(connection);
  return {SecretKey(key), direction};
}

class SealTest : public testing::Test {
 protected:
  Seal send_ = seal(1, Direction::client_to_server);
  Seal receive_ = seal(1, Direction::client_to_server);
};

TEST_F(SealTest, RepeatedMessagesAreRefused) {
  const auto tag = send_.tag(bytes("go"));
  EXPECT_TRUE(receive_.accept(bytes("go"), tag));
  EXPECT_FALSE(receive_.accept(bytes("go"), tag));
}

TEST_F(SealTest, MessagesOutOfTurnAreRefused) {
  const auto first = send_.tag(bytes("1"));
  const auto second = send_.tag(bytes("2"));
  EXPECT_FALSE(receive_.accept(bytes("2"), second));
  EXPECT_FALSE(receive_.accept(bytes("1"), first)) << "refused for good after a wrong one";
}

TEST_F(SealTest, ReflectedMessagesAreRefused) {
  EXPECT_FALSE(seal(1, Direction::server_to_client).accept(bytes("go"), send_.tag(bytes("go"))));
}

TEST_F(SealTest, ChangedAndCutOffMessagesAreRefused) {
  const auto tag = send_.tag(bytes("go on"));
  EXPECT_FALSE(seal(1, Direction::client_to_server).accept(bytes("go"), tag));
  EXPECT_FALSE(seal(1, Direction::client_to_server).accept(bytes("go in"), tag));
  Seal::Tag changed = tag;
  changed.back() ^= std::byte{1};
  EXPECT_FALSE(seal(1, Direction::client_to_server).accept(bytes("go on"), changed));
  EXPECT_TRUE(receive_.accept(bytes("go on"), tag));
}

TEST_F(SealTest, AnotherConnectionsMessagesAreRefused) {
  EXPECT_FALSE(seal(2, Direction::client_to_server).accept(bytes("go"), send_.tag(bytes("go"))));
}

TEST_F(SealTest, EqualMessagesHaveDifferentTags) {
  EXPECT_NE(send_.tag(bytes("go")), send_.tag(bytes("go")));
}

using Bytes = std::vector<std::byte>;

TEST(SealedFrames, AreReadOneAfterTheOther) {
  Seal send = seal(0, Direction::client_to_server), receive = seal(0, Direction::client_to_server);
  SealedReader reader(receive, 100);
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{100}}) {
    const Bytes payload(size, std::byte{5});
    const Bytes frame = sealed_frame(payload, send);
    std::span<const std::byte> rest = frame;
    ASSERT_EQ(reader.wants(), 4U);
    ASSERT_EQ(reader.take(rest.first(4)), std::nullopt);
    rest = rest.subspan(4);
    ASSERT_EQ(reader.wants(), rest.size());
    EXPECT_EQ(reader.take(rest), payload);
  }
}

TEST(SealedFrames, WrongLengthsAreRefused) {
  Seal receive = seal(0, Direction::client_to_server);
  SealedReader reader(receive, 100);
  EXPECT_FALSE(reader.take(Bytes(3)));
  EXPECT_FALSE(reader.take(Bytes{std::byte{101}, {}, {}, {}}));
  EXPECT_FALSE(reader.take(Bytes{{}, {}, {}, std::byte{255}}));
}

TEST(SealedFrames, ChangedOnesAreRefused) {
  Seal send = seal(0, Direction::client_to_server);
  const Bytes frame = sealed_frame(Bytes(10), send);
  for (std::size_t i = 4; i < frame.size(); ++i) {
    Seal receive = seal(0, Direction::client_to_server);
    SealedReader reader(receive, 100);
    Bytes changed = frame;
    changed[i] ^= std::byte{1};
    ASSERT_TRUE(reader.take(std::span(changed).first(4)));
    EXPECT_FALSE(reader.take(std::span(changed).subspan(4))) << i;
  }
}

}  // namespace
}  // namespace hora::launch
