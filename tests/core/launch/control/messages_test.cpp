#include "core/launch/control/messages.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>

#include "core/launch/control/child_process.h"
#include "tests/support/seed.h"

namespace hora::launch {
namespace {

using testing::HasSubstr;

Message output_of(int rank, std::size_t bytes) {
  RankOutput message;
  message.rank = rank;
  message.bytes.assign(bytes, static_cast<std::uint8_t>(rank));
  return message;
}

TEST(Messages, EveryKindComesBackAsItWas) {
  RankEnded ended;
  ended.pid = 4711;
  ended.cause = "first";
  Start start;
  start.arguments = {"a", "", "b c"};
  ArrivalsSeen arrivals;
  arrivals.phases = {"backward"};
  arrivals.rows.emplace_back(7, 4.0F, 9.0F, 2, 1);
  for (const Message& message : std::vector<Message>{ended, start, Heartbeat{}, Hello{}, EndAll{},
                                                     Prepared{}, RankSeen{}, arrivals}) {
    const auto decoded = decode(encode(message));
    ASSERT_TRUE(decoded) << decoded.error();
    EXPECT_EQ(decoded->index(), message.index());
    EXPECT_EQ(encode(*decoded), encode(message));
  }
  EXPECT_EQ(std::get<RankEnded>(*decode(encode(ended))).cause, "first");
  EXPECT_EQ(std::get<ArrivalsSeen>(*decode(encode(arrivals))).rows.at(0).p99_ms(), 9.0F);
  Bytes cut = encode(output_of(1, 50));
  cut.resize(cut.size() / 2);
  for (const Bytes& none : {Bytes(), Bytes(100), cut}) EXPECT_FALSE(decode(none));
}

TEST(Messages, ChangedBytesAreAMessageOrAnError) {
  std::mt19937_64 random(internal::test::seed());
  ArrivalsSeen arrivals;
  arrivals.phases = {"forward", "backward"};
  arrivals.rows.assign(5, {7, 4.0F, 9.0F, 2, 1});
  RankSeen seen;
  seen.collective = "gradients";
  const std::vector<Bytes> good{encode(output_of(1, 50)), encode(arrivals), encode(seen)};
  for (int i = 0; i < 20000; ++i) {
    Bytes bytes = good[static_cast<std::size_t>(i) % good.size()];
    for (int change = 0; change < 3; ++change) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    static_cast<void>(decode(bytes));
  }
}

/// Reads a stream that comes in pieces.
class FrameReaderTest : public testing::Test {
 protected:
  FrameReaderTest() { ::fcntl(pipe_.read.get(), F_SETFL, O_NONBLOCK); }
  void give(std::span<const std::byte> bytes) {
    ASSERT_EQ(::write(pipe_.write.get(), bytes.data(), bytes.size()),
              static_cast<ssize_t>(bytes.size()));
  }
  auto read() { return reader_.read(pipe_.read.get()); }

  Pipe pipe_ = make_pipe();
  FrameReader reader_;
};

TEST_F(FrameReaderTest, GivesWholeMessagesHoweverTheyCome) {
  Bytes bytes;
  for (int rank = 0; rank < 20; ++rank) {
    const auto framed = frame_of(encode(output_of(rank, static_cast<std::size_t>(rank) * 100)));
    bytes.insert(bytes.end(), framed.begin(), framed.end());
  }
  std::mt19937_64 random(internal::test::seed());
  int next = 0;
  for (std::size_t i = 0; i < bytes.size();) {
    const std::size_t count = std::min<std::size_t>(1 + random() % 700, bytes.size() - i);
    give(std::span(bytes).subspan(i, count));
    i += count;
    while (true) {
      const auto payload = read();
      ASSERT_TRUE(payload) << payload.error();
      if (!*payload) break;
      const auto message = decode(**payload);
      ASSERT_TRUE(message) << message.error();
      EXPECT_EQ(std::get<RankOutput>(*message).rank, next);
      EXPECT_EQ(std::get<RankOutput>(*message).bytes.size(), static_cast<std::size_t>(next) * 100);
      ++next;
    }
  }
  EXPECT_EQ(next, 20);
}

TEST_F(FrameReaderTest, WrongLengthsAndTheEndAreErrors) {
  for (const char byte : {'\0', '\xff'}) {
    give(Bytes(4, static_cast<std::byte>(byte)));
    const auto payload = read();
    ASSERT_FALSE(payload);
    EXPECT_THAT(payload.error(), HasSubstr("the most is"));
    reader_ = FrameReader();
  }
  pipe_.write.reset();
  EXPECT_THAT(read().error(), HasSubstr("closed the connection"));
}

/// The connection's next bytes belong to the code that takes it over.
TEST_F(FrameReaderTest, ReadsNothingBeyondAMessage) {
  give(frame_of(encode(output_of(1, 50))));
  give(Bytes(3, std::byte{7}));
  EXPECT_TRUE(read().value().has_value());
  Bytes rest(100);
  EXPECT_EQ(::read(pipe_.read.get(), rest.data(), rest.size()), 3);
}

TEST(Frames, ThoseOfGuardsFitIntoAPipeAtOnce) {
  EXPECT_LE(frame_of(encode(output_of(1, kMostOutputBytes))).size(), 4096U);
  RankEnded ended;
  ended.cause.assign(500, 'c');
  ended.phase.assign(128, 'p');
  ended.last_words.assign(1000, 'w');
  ended.failure.assign(500, 'f');
  EXPECT_LE(frame_of(encode(ended)).size(), 4096U);
}

}  // namespace
}  // namespace hora::launch
