#include "core/launch/control/seal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace hora::launch {
namespace {

using Bytes = std::vector<std::byte>;

Bytes bytes(std::string_view text) {
  const auto view = std::as_bytes(std::span(text.data(), text.size()));
  return {view.begin(), view.end()};
}

/// Of the direction with this number.
Seal seal(int direction = 1) {
  return Seal(SecretKey::Bytes{static_cast<std::byte>(direction)});
}

class SealTest : public testing::Test {
 protected:
  Seal send_ = seal();
  Seal receive_ = seal();
};

TEST_F(SealTest, MessagesComeAsTheyWereAndCannotBeReadOnTheWay) {
  for (const char* text : {"value", "a value of -x", ""}) {
    const Bytes sealed = send_.seal(bytes(text));
    EXPECT_EQ(sealed.size(), bytes(text).size() + Seal::kMoreBytes);
    EXPECT_TRUE(std::ranges::search(sealed, bytes("value")).empty());
    EXPECT_EQ(receive_.open(sealed), bytes(text));
  }
}

TEST_F(SealTest, RepeatedMessagesAreRefused) {
  const Bytes sealed = send_.seal(bytes("go"));
  EXPECT_TRUE(receive_.open(sealed));
  EXPECT_FALSE(receive_.open(sealed));
}

TEST_F(SealTest, MessagesOutOfTurnAreRefused) {
  send_.seal(bytes("1"));
  EXPECT_FALSE(receive_.open(send_.seal(bytes("2"))));
}

TEST_F(SealTest, MessagesOfAnotherDirectionOrConnectionAreRefused) {
  EXPECT_FALSE(seal(2).open(send_.seal(bytes("go"))));
}

TEST_F(SealTest, ChangedAndCutOffMessagesAreRefused) {
  const Bytes sealed = send_.seal(bytes("go on"));
  EXPECT_FALSE(receive_.open(std::span(sealed).first(sealed.size() - 1)));
  EXPECT_FALSE(receive_.open({}));
  for (std::size_t i = 0; i < sealed.size(); ++i) {
    Bytes changed = sealed;
    changed[i] ^= std::byte{1};
    EXPECT_FALSE(receive_.open(changed)) << i;
  }
  EXPECT_TRUE(receive_.open(sealed));
}

TEST_F(SealTest, EqualMessagesDifferOnTheWay) {
  EXPECT_NE(send_.seal(bytes("go")), send_.seal(bytes("go")));
}

TEST_F(SealTest, FramesAreReadOneAfterTheOther) {
  FrameParser parser(100);
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{100}}) {
    const Bytes payload(size, std::byte{5});
    const Bytes frame = frame_of(payload, &send_);
    ASSERT_EQ(parser.wants(), 4U);
    ASSERT_EQ(parser.take(std::span(frame).first(4), &receive_), std::nullopt);
    const auto rest = std::span(frame).subspan(4);
    ASSERT_EQ(parser.wants(), rest.size());
    EXPECT_EQ(parser.take(rest, &receive_), payload);
  }
}

TEST_F(SealTest, WrongLengthsAreRefused) {
  for (const Bytes& wrong :
       {Bytes(3), Bytes(4), Bytes{std::byte{118}, {}, {}, {}}, Bytes{{}, {}, {}, std::byte{255}}}) {
    EXPECT_FALSE(FrameParser(100).take(wrong, &receive_));
  }
}

}  // namespace
}  // namespace hora::launch
