#include "core/messages/messages.h"

#include <flatbuffers/flatbuffers.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "messages_generated.h"
#include "tests/core/messages/random_messages.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using Bytes = std::vector<std::byte>;

/// In a block of exactly this length, so that AddressSanitizer sees a read beyond it.
tl::expected<Message, std::string> decode_alone(std::span<const std::byte> bytes) {
  const auto copy = std::make_unique<std::byte[]>(bytes.size());
  if (!bytes.empty()) std::memcpy(copy.get(), bytes.data(), bytes.size());
  return decode({copy.get(), bytes.size()});
}

/// Either an error that says something, or a message that means the same when it is encoded again.
void expect_sane(std::span<const std::byte> bytes) {
  const auto message = decode_alone(bytes);
  if (!message) {
    ASSERT_FALSE(message.error().empty());
    return;
  }
  const auto again = decode_alone(encode(*message));
  ASSERT_TRUE(again.has_value()) << again.error();
  ASSERT_EQ(*again, *message);
}

TEST(Messages, ComeBackAsTheyWere) {
  auto random = test::generator();
  test::RandomMessages messages(random);
  for (int i = 0; i < 4000; ++i) {
    const Message message = messages.any();
    const auto decoded = decode_alone(encode(message));
    ASSERT_TRUE(decoded.has_value()) << decoded.error();
    ASSERT_EQ(*decoded, message);
  }
}

TEST(Messages, EveryTruncationIsSane) {
  auto random = test::generator();
  test::RandomMessages messages(random);
  for (int i = 0; i < 400; ++i) {
    const Bytes bytes = encode(messages.any());
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      ASSERT_NO_FATAL_FAILURE(expect_sane(std::span(bytes).first(length)));
    }
  }
  EXPECT_FALSE(decode({}).has_value());
}

TEST(Messages, BitFlipsAreSane) {
  auto random = test::generator();
  test::RandomMessages messages(random);
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    const Bytes bytes = encode(messages.any());
    for (int flip = 0; flip < 40; ++flip) {
      Bytes changed = bytes;
      for (std::uint64_t n = 1 + random() % 3; n > 0; --n) {
        changed[random() % changed.size()] ^= std::byte{1} << static_cast<int>(random() % 8);
      }
      refused += decode_alone(changed).has_value() ? 0 : 1;
      ASSERT_NO_FATAL_FAILURE(expect_sane(changed));
    }
  }
  EXPECT_GT(refused, 1000) << "of 12000: offsets and lengths are checked";
}

TEST(Messages, RandomBytesAndExtremeWordsAreSane) {
  auto random = test::generator();
  test::RandomMessages messages(random);
  for (int i = 0; i < 10000; ++i) {
    Bytes noise(random() % 200);
    for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
    ASSERT_NO_FATAL_FAILURE(expect_sane(noise));
    Bytes bytes = encode(messages.any());
    const std::uint32_t words[] = {
        0, 1, 0x7fffffff, 0x80000000, 0xffffffff, static_cast<std::uint32_t>(bytes.size())};
    const std::size_t at = random() % (bytes.size() / 4) * 4;
    std::memcpy(bytes.data() + at, &words[random() % std::size(words)], 4);
    ASSERT_NO_FATAL_FAILURE(expect_sane(bytes));
  }
}

struct Raw {
  std::uint8_t mail_kind = 0, kind = 0, type = 0, op = 0, device = 0;
};

Bytes finish(flatbuffers::FlatBufferBuilder& builder, wire::Body type,
             flatbuffers::Offset<void> body) {
  builder.Finish(wire::CreateMessage(builder, type, body));
  const auto* data = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return {data, data + builder.GetSize()};
}

Bytes mail_of(const Raw& raw) {
  flatbuffers::FlatBufferBuilder builder;
  const auto signature =
      wire::CreateSignatureDirect(builder, raw.kind, raw.type, raw.op, raw.device, 0, nullptr);
  const auto mail = wire::CreateMailDirect(builder, raw.mail_kind, "g", signature, 0, 0);
  return finish(builder, wire::Body::Mail, mail.Union());
}

TEST(Messages, UnknownEnumeratorsAreRefusedByName) {
  ASSERT_TRUE(decode(mail_of({5, 8, 12, 5, 1})).has_value()) << "the last known of each";
  const auto expect_refused = [](const Raw& raw, const std::string& problem) {
    const auto message = decode(mail_of(raw));
    ASSERT_FALSE(message.has_value());
    EXPECT_EQ(message.error(), problem);
  };
  expect_refused({.mail_kind = 6}, "unknown mail kind 6");
  expect_refused({.kind = 9}, "unknown kind 9");
  expect_refused({.type = 13}, "unknown type 13");
  expect_refused({.op = 6}, "unknown op 6");
  expect_refused({.device = 255}, "unknown device 255");
}

TEST(Messages, ReportsWithoutAValueAndTornLocationsAreRefused) {
  flatbuffers::FlatBufferBuilder builder;
  const std::vector<flatbuffers::Offset<wire::ReportedSignature>> none;
  const std::vector<flatbuffers::Offset<wire::Report>> reports = {
      wire::CreateReportDirect(builder, "g", &none)};
  const auto up =
      finish(builder, wire::Body::Up, wire::CreateUpDirect(builder, 0, nullptr, &reports).Union());
  const auto no_value = decode(up);
  ASSERT_FALSE(no_value.has_value());
  EXPECT_EQ(no_value.error(), "report of \"g\" holds no value");

  flatbuffers::FlatBufferBuilder second;
  const std::vector<std::uint32_t> windows = {1, 2};
  const std::vector<std::uint64_t> offsets = {64};
  const std::vector<flatbuffers::Offset<wire::Assigned>> assigned = {
      wire::CreateAssignedDirect(second, "g", 0, &windows, &offsets)};
  const auto torn =
      decode(finish(second, wire::Body::Decision,
                    wire::CreateDecisionDirect(second, 0, 0, nullptr, &assigned).Union()));
  ASSERT_FALSE(torn.has_value());
  EXPECT_EQ(torn.error(), "locations of \"g\" are torn");
}

TEST(Messages, AMessageOfAnUnknownKindIsRefused) {
  flatbuffers::FlatBufferBuilder builder;
  const auto mail = wire::CreateMailDirect(builder, 0, "g", 0, 0, 0);
  const auto message = decode(finish(builder, static_cast<wire::Body>(17), mail.Union()));
  ASSERT_FALSE(message.has_value());
  EXPECT_THAT(message.error(), testing::HasSubstr("unknown kind"));
}

/// `reports` times the same report of `values` times the same value of `ranks` ranks.
Bytes sharing(std::size_t reports, std::size_t values, std::size_t ranks) {
  flatbuffers::FlatBufferBuilder builder;
  const auto signature = wire::CreateSignature(builder);
  const auto shared_ranks = builder.CreateVector(std::vector<int>(ranks, 1));
  const std::vector same_value(values,
                               wire::CreateReportedSignature(builder, signature, shared_ranks));
  const std::vector same_report(reports, wire::CreateReportDirect(builder, "g", &same_value));
  return finish(builder, wire::Body::Up,
                wire::CreateUpDirect(builder, 0, nullptr, &same_report).Union());
}

// Tables of a FlatBuffer may share parts: a few kilobytes could mean terabytes.
TEST(Messages, AMessageDoesNotGrowWhenItIsDecoded) {
  ASSERT_TRUE(decode(sharing(1, 1, 4000)).has_value()) << "nothing is shared";
  for (const auto& [reports, values] : {std::pair(2, 1), {1, 2}, {10, 10}}) {
    const auto message = decode(sharing(reports, values, 4000));
    ASSERT_FALSE(message.has_value()) << reports * values << " copies of 4000 ranks";
    EXPECT_THAT(message.error(), testing::HasSubstr("its parts share memory"));
  }
  EXPECT_FALSE(decode(sharing(1000, 1000, 4000)).has_value()) << "more tables than fit";
}

TEST(Messages, AreAboutAsLongAsWhatTheySay) {
  Up up;
  for (Id id = 0; id < 4096; ++id) up.ready.push_back(id);
  EXPECT_LT(encode(up).size(), 4096u * 4 + 100);
  Mail mail{.name = std::string(1024, 'n'), .signature = {}, .location = {1, 0, 64}};
  mail.signature.shape.assign(64, 1);
  EXPECT_LT(encode(mail).size(), 1024u + 64 * 8 + 200);
}

}  // namespace
}  // namespace hora::internal
