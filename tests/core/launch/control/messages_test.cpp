#include "core/launch/control/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>

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
  ended.rank = 3;
  ended.pid = 4711;
  ended.status = 9;
  ended.cause = "first";
  ended.last_words = "last";
  Start start;
  start.process = 7;
  start.arguments = {"a", "", "b c"};
  start.environment = {"NAME=value"};
  ArrivalsSeen arrivals;
  arrivals.phases = {"backward"};
  arrivals.rows.emplace_back(7, 4000000, 9000000, 2, 1);
  const std::vector<Message> messages{ended,    start,      Heartbeat{}, Hello{},
                                      EndAll{}, Prepared{}, RankSeen{},  arrivals};
  for (const Message& message : messages) {
    const auto decoded = decode(encode(message));
    ASSERT_TRUE(decoded) << decoded.error();
    EXPECT_EQ(decoded->index(), message.index());
  }
  const auto decoded = decode(encode(ended));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(std::get<RankEnded>(*decoded).pid, 4711);
  EXPECT_EQ(std::get<RankEnded>(*decoded).cause, "first");
  const auto decoded_arrivals = decode(encode(arrivals));
  ASSERT_TRUE(decoded_arrivals);
  EXPECT_EQ(std::get<ArrivalsSeen>(*decoded_arrivals).phases, arrivals.phases);
  ASSERT_EQ(std::get<ArrivalsSeen>(*decoded_arrivals).rows.size(), 1u);
  EXPECT_EQ(std::get<ArrivalsSeen>(*decoded_arrivals).rows[0].p99_ns(), 9000000);
  const auto decoded_start = decode(encode(start));
  ASSERT_TRUE(decoded_start);
  EXPECT_EQ(std::get<Start>(*decoded_start).arguments, start.arguments);
}

TEST(Messages, BytesThatAreNoneAreRefused) {
  EXPECT_FALSE(decode({}));
  const std::vector<std::byte> zeros(100);
  EXPECT_FALSE(decode(zeros));
  std::vector<std::byte> cut = encode(output_of(1, 50));
  cut.resize(cut.size() / 2);
  EXPECT_FALSE(decode(cut));
}

TEST(Messages, ChangedBytesAreAMessageOrAnError) {
  std::mt19937_64 random(internal::test::seed());
  ArrivalsSeen arrivals;
  arrivals.phases = {"forward", "backward"};
  arrivals.rows.assign(5, {7, 4000000, 9000000, 2, 1});
  RankSeen seen;
  seen.collective = "gradients";
  const std::vector<std::vector<std::byte>> good{encode(output_of(1, 50)), encode(arrivals),
                                                 encode(seen)};
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> bytes = good[static_cast<std::size_t>(i) % good.size()];
    for (int change = 0; change < 3; ++change) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    static_cast<void>(decode(bytes));
  }
}

TEST(Messages, RowsThatAreNotAlignedAreRefused) {
  constexpr std::uint64_t kMark = 0x1234567890abcdef;
  ArrivalsSeen arrivals;
  arrivals.rows.emplace_back(kMark, 4000000, 9000000, 2, 1);
  const std::vector<std::byte> good = encode(arrivals);
  const auto mark = std::as_bytes(std::span(&kMark, 1));
  const auto row = std::ranges::search(good, mark).begin();
  // In front of the row is the number of rows, to which one offset in the message leads.
  const auto number = static_cast<std::size_t>(row - good.begin()) - sizeof(std::uint32_t);
  const auto count = sizeof(std::uint32_t) + sizeof(wire::ArrivalsRow);
  for (const std::size_t shift : {0, 4}) {
    std::vector<std::byte> bytes = good;
    while (bytes.size() % 8 != (shift + 4) % 8) bytes.push_back({});
    const std::size_t copy = bytes.size();
    bytes.insert(bytes.end(), good.begin() + static_cast<std::ptrdiff_t>(number),
                 good.begin() + static_cast<std::ptrdiff_t>(number + count));
    int offsets = 0;
    for (std::size_t place = 0; place < number; place += 4) {
      std::uint32_t offset = 0;
      std::memcpy(&offset, &bytes[place], sizeof offset);
      if (place + offset != number) continue;
      offset = static_cast<std::uint32_t>(copy - place);
      std::memcpy(&bytes[place], &offset, sizeof offset);
      ++offsets;
    }
    ASSERT_EQ(offsets, 1);
    EXPECT_EQ(decode(bytes).has_value(), shift == 0);
  }
}

TEST(FrameReader, GivesWholeMessagesHoweverTheyCome) {
  std::vector<std::byte> bytes;
  for (int rank = 0; rank < 20; ++rank) {
    const auto framed = frame(output_of(rank, static_cast<std::size_t>(rank) * 100));
    bytes.insert(bytes.end(), framed.begin(), framed.end());
  }
  std::mt19937_64 random(internal::test::seed());
  FrameReader reader;
  int next = 0;
  for (std::size_t i = 0; i < bytes.size();) {
    const std::size_t count = std::min<std::size_t>(1 + random() % 700, bytes.size() - i);
    reader.append(std::span(bytes).subspan(i, count));
    i += count;
    while (true) {
      auto message = reader.next();
      ASSERT_TRUE(message) << message.error();
      if (!*message) break;
      EXPECT_EQ(std::get<RankOutput>(**message).rank, next);
      EXPECT_EQ(std::get<RankOutput>(**message).bytes.size(), static_cast<std::size_t>(next) * 100);
      ++next;
    }
  }
  EXPECT_EQ(next, 20);
}

TEST(FrameReader, ALengthAboveTheLimitIsAnError) {
  FrameReader reader;
  const std::vector<std::byte> bytes(8, std::byte{0xff});
  reader.append(bytes);
  const auto message = reader.next();
  ASSERT_FALSE(message);
  EXPECT_THAT(message.error(), HasSubstr("the most is"));
}

TEST(Frames, ThoseOfGuardsFitIntoAPipeAtOnce) {
  EXPECT_LE(frame(output_of(1, kMostOutputBytes)).size(), 4096U);
  RankEnded ended;
  ended.cause.assign(500, 'c');
  ended.phase.assign(128, 'p');
  ended.last_words.assign(1000, 'w');
  ended.failure.assign(500, 'f');
  EXPECT_LE(frame(ended).size(), 4096U);
}

}  // namespace
}  // namespace hora::launch
