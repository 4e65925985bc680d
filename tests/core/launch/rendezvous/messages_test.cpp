#include "core/launch/rendezvous/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string_view>

#include "tests/support/seed.h"

namespace hora::launch {
namespace {

using testing::HasSubstr;
using testing::Not;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

const JoinRequest kFirstRequest{"0.1.0", "job", "b", 4, 2, 8};
const JoinReply kGo{JoinReply::Kind::go, "", 1, {{"a", "10.0.0.1", 4}, {"b", "10.0.0.2", 8}}};

TEST(RendezvousMessages, AreReadAsTheyWereWritten) {
  EXPECT_EQ(decode_request(encode(kFirstRequest)), kFirstRequest);
  JoinRequest without_rank = kFirstRequest;
  without_rank.node_rank.reset();
  EXPECT_EQ(decode_request(encode(without_rank)), without_rank);
  EXPECT_EQ(decode_reply(encode(kGo)), kGo);
  const JoinReply wait{JoinReply::Kind::wait, "nodes 2, 3 of 4", 0, {{"a", "10.0.0.1", 4}}};
  EXPECT_EQ(decode_reply(encode(wait)), wait);
  const JoinReply end{JoinReply::Kind::end, "why", 0, {}};
  EXPECT_EQ(decode_reply(encode(end)), end);
}

TEST(RendezvousMessages, WhatIsMissingOrOutOfRangeIsNamed) {
  for (const char* text : {"", "[]", "null", "{", "{}", "\"a\"", "{\"version\":1}"}) {
    EXPECT_FALSE(decode_request(bytes_of(text))) << text;
    EXPECT_FALSE(decode_reply(bytes_of(text))) << text;
  }
  EXPECT_THAT(
      decode_request(bytes_of(R"({"version":"1","job":"j","host":"h","nodes":0,"ranks":1})"))
          .error(),
      HasSubstr("member nodes"));
  EXPECT_THAT(
      decode_request(
          bytes_of(
              R"({"version":"1","job":"j","host":"h","nodes":18446744073709551615,"ranks":1})"))
          .error(),
      HasSubstr("member nodes"));
  EXPECT_THAT(
      decode_request(
          bytes_of(R"({"version":"1","job":"j","host":"h","nodes":2,"ranks":1,"node_rank":-1})"))
          .error(),
      HasSubstr("member node_rank"));
  EXPECT_THAT(decode_reply(bytes_of(R"({"kind":"stop"})")).error(), HasSubstr("member kind"));
}

TEST(RendezvousMessages, ANodesRankIsAmongTheNodes) {
  JoinReply reply = kGo;
  reply.node_rank = 2;
  EXPECT_FALSE(decode_reply(encode(reply)));
  reply.node_rank = 0;
  EXPECT_FALSE(decode_reply(encode(reply))) << "node 0 sends no message to itself";
  reply.nodes.clear();
  EXPECT_FALSE(decode_reply(encode(reply)));
}

TEST(RendezvousMessages, LongOnesAreRefusedAndTextsArePrintable) {
  JoinRequest request = kFirstRequest;
  request.host = std::string(5000, 'h');
  EXPECT_FALSE(decode_request(encode(request)));
  request.host = "evil\x1b[2J\nhost";
  const auto read = decode_request(encode(request));
  ASSERT_TRUE(read);
  EXPECT_THAT(read->host, Not(HasSubstr("\x1b")));
  request.host = "\xff\xfe";
  EXPECT_TRUE(decode_request(encode(request))) << "no text of a peer stops the encoder";
}

TEST(RendezvousMessages, ChangedBytesNeverCrash) {
  auto random = internal::test::generator();
  for (int i = 0; i < 20'000; ++i) {
    auto changed = i % 2 == 0 ? encode(kFirstRequest) : encode(kGo);
    for (int j = 0; j < 3; ++j)
      changed[random() % changed.size()] = static_cast<std::byte>(random());
    changed.resize(random() % 4 == 0 ? random() % changed.size() : changed.size());
    static_cast<void>(decode_request(changed));
    static_cast<void>(decode_reply(changed));
  }
}

}  // namespace
}  // namespace hora::launch
