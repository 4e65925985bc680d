#include "core/messages/messages.h"

#include <flatbuffers/flatbuffers.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
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

using testing::HasSubstr;
using testing::IsEmpty;

const MessageLimits kLimits{.id_capacity = 32, .ranks = {2, 3, 7}, .locations = 2};

Signature signature_of(OperationKind kind, Shape shape, int root = 0) {
  Signature signature;
  signature.kind = kind;
  signature.shape = std::move(shape);
  signature.root = root;
  return signature;
}

Message mail_with(const Signature& signature) {
  return Mail{.kind = MailKind::report, .name = "m", .signature = signature, .location = {}};
}

Decision good_decision() {
  return {.retired = {make_id(31, 4)},
          .failed = {{.name = "f", .text = "why", .has_id = true, .id = make_id(0, 65535)}},
          .assigned = {{.name = "a", .id = make_id(31, 5), .locations = {{}, {}}},
                       {.name = "b",
                        .id = 3,
                        .locations = {{}, {}},
                        .signature = signature_of(OperationKind::allreduce, {4, 5})}},
          .run = {1, 2, 3},
          .departed = {7},
          .all_joined = true,
          .last_joined = 3};
}

Up good_up() {
  const ReportedSignature value{signature_of(OperationKind::broadcast, {}, 7), {2, 7}};
  return {.ready = {31},
          .reports = {{.name = "r", .values = {value}, .counted = 5}},
          .presence = {{.name = "p", .ready = {2}, .missing = {3, 7}}},
          .departed = {3},
          .joined = {7},
          .elsewhere = {{.name = "e", .rank = 2, .process_set = ProcessSet(99)}},
          .last = {},
          .expiring = {{.name = "x", .rank = 2, .expiry = {}}}};
}

std::string problem(const std::function<void(Decision&)>& change) {
  Decision decision = good_decision();
  change(decision);
  EXPECT_EQ(problem_in(decision, kLimits), problem_in(Message(decision), kLimits));
  const auto decoded = decode(encode(decision), kLimits);
  EXPECT_EQ(decoded.has_value(), problem_in(decision, kLimits).empty());
  return problem_in(decision, kLimits);
}

std::string problem(const std::function<void(Up&)>& change) {
  Up up = good_up();
  change(up);
  return problem_in(up, kLimits);
}

TEST(MessageLimits, WhatIsWithinThemPasses) {
  EXPECT_THAT(problem([](Decision&) {}), IsEmpty());
  EXPECT_THAT(problem([](Up&) {}), IsEmpty());
  EXPECT_THAT(problem_in(mail_with({}), kLimits), IsEmpty());
  EXPECT_THAT(problem_in(Decision{}, kLimits), IsEmpty());
}

TEST(MessageLimits, IdsAreWithinTheCapacity) {
  for (const Id id : {Id{32}, make_id(65535, 0), make_id(32, 65535), ~Id{0}}) {
    EXPECT_THAT(problem([&](Decision& d) { d.retired = {id}; }), HasSubstr(std::to_string(id)));
    EXPECT_THAT(problem([&](Decision& d) { d.run.push_back(id); }), HasSubstr("id "));
    EXPECT_THAT(problem([&](Decision& d) { d.assigned[1].id = id; }), HasSubstr("id "));
    EXPECT_THAT(problem([&](Decision& d) { d.failed[0].id = id; }), HasSubstr("id "));
    EXPECT_THAT(problem([&](Up& up) { up.ready = {0, id}; }), HasSubstr("id "));
    EXPECT_THAT(problem([&](Up& up) { up.reports[0].counted = id; }), HasSubstr("id "));
  }
  EXPECT_THAT(problem([](Decision& d) {
                d.failed[0].has_id = false;
                d.failed[0].id = 77;
              }),
              IsEmpty())
      << "an id that is none";
}

TEST(MessageLimits, ADecisionGivesANameOneId) {
  EXPECT_THAT(problem([](Decision& d) { d.assigned[1].name = "a"; }), HasSubstr("two ids"));
  EXPECT_THAT(problem([](Decision& d) { d.assigned[1].id = d.assigned[0].id; }),
              HasSubstr("two names"));
  EXPECT_THAT(problem([](Decision& d) { d.assigned[1].id = make_id(31, 9); }),
              HasSubstr("two names"))
      << "of one slot";
}

TEST(MessageLimits, RanksAreTheSets) {
  for (const int rank :
       {-1, 0, 4, 8, std::numeric_limits<int>::max(), std::numeric_limits<int>::min()}) {
    EXPECT_THAT(problem([&](Decision& d) { d.departed = {2, rank}; }), HasSubstr("rank "));
    EXPECT_THAT(problem([&](Decision& d) { d.last_joined = rank; }), HasSubstr("rank "));
    EXPECT_THAT(problem([&](Up& up) { up.departed = {rank}; }), HasSubstr("rank "));
    EXPECT_THAT(problem([&](Up& up) { up.joined = {rank}; }), HasSubstr("rank "));
    EXPECT_THAT(problem([&](Up& up) { up.presence[0].ready = {rank}; }), HasSubstr("rank "));
    EXPECT_THAT(problem([&](Up& up) { up.presence[0].missing = {rank}; }), HasSubstr("rank "));
    EXPECT_THAT(problem([&](Up& up) { up.elsewhere[0].rank = rank; }), HasSubstr("rank "));
    EXPECT_THAT(problem([&](Up& up) { up.expiring[0].rank = rank; }), HasSubstr("rank "));
    EXPECT_THAT(problem([&](Up& up) {
                  up.reports[0].values[0].ranks = {2, rank};
                }),
                HasSubstr("rank "));
  }
}

TEST(MessageLimits, LocationsAreThoseOfTheReadersNode) {
  for (const std::size_t count : {0u, 1u, 3u}) {
    EXPECT_THAT(problem([&](Decision& d) { d.assigned[0].locations.resize(count); }),
                HasSubstr("locations of \"a\""));
  }
}

TEST(MessageLimits, SignaturesAreThoseThatUsersCanSubmit) {
  using enum OperationKind;
  const std::int64_t huge = std::int64_t{1} << 62;
  for (const Signature& good :
       {signature_of(allreduce, {}), signature_of(allreduce, {3, 0, 4}),
        signature_of(allgather, {kAnyExtent, 5}), signature_of(alltoall, {kAnyExtent}),
        signature_of(reduce_scatter, {9, 2}), signature_of(broadcast, {4}, 3),
        signature_of(barrier, {0}), signature_of(add_process_set, {2, 7}),
        signature_of(remove_process_set, {1}), signature_of(join, {})}) {
    EXPECT_THAT(problem_in(mail_with(good), kLimits), IsEmpty()) << to_string(good);
  }
  for (const Signature& bad :
       {signature_of(allreduce, {-1}), signature_of(allreduce, {huge, 4}),
        signature_of(allreduce, {0, huge, 4}), signature_of(allreduce, Shape(65, 1)),
        signature_of(allgather, {}), signature_of(allgather, {3}),
        signature_of(alltoall, {kAnyExtent, -1}), signature_of(alltoall, {kAnyExtent, huge, 4}),
        signature_of(reduce_scatter, {}), signature_of(reduce_scatter, {kAnyExtent}),
        signature_of(broadcast, {4}, 4), signature_of(broadcast, {4}, -1),
        signature_of(add_process_set, {4}), signature_of(add_process_set, {huge + 2}),
        signature_of(remove_process_set, {}), signature_of(remove_process_set, {-5}),
        signature_of(join, {-1})}) {
    EXPECT_FALSE(problem_in(mail_with(bad), kLimits).empty()) << to_string(bad);
    EXPECT_FALSE(problem([&](Up& up) { up.reports[0].values[0].signature = bad; }).empty());
    EXPECT_FALSE(problem([&](Decision& d) { d.assigned[1].signature = bad; }).empty());
  }
}

TEST(MessageLimits, RandomMessagesAreSeenToWithoutHarm) {
  auto random = test::generator();
  test::RandomMessages messages(random);
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    const Message message = messages.any();
    const auto decoded = decode(encode(message), kLimits);
    ASSERT_EQ(decoded.has_value(), problem_in(message, kLimits).empty());
    refused += decoded ? 0 : 1;
  }
  EXPECT_GT(refused, 1000);
}

TEST(MessageLimits, LastRanksAndRemarksAreOnePerItemOrNone) {
  EXPECT_THAT(problem_in(Message(Up{.ready = {1, 2}, .last = {{2, 5}, {-1, 5}}}), kLimits),
              IsEmpty());
  EXPECT_THAT(problem_in(Message(Up{.ready = {1, 2}, .last = {{2, 5}}}), kLimits),
              HasSubstr("1 last ranks of 2 ids"));
  EXPECT_THAT(problem_in(Message(Up{.ready = {1}, .last = {{1000, 5}}}), kLimits),
              HasSubstr("rank "));
  EXPECT_THAT(problem_in(Message(Up{.presence = {{"g", {2}, {3, 7}, {"one"}}}}), kLimits),
              HasSubstr("1 remarks on 2 ranks"));
}

TEST(MessageLimits, TimesAreNoLongerThanClocksHold) {
  const auto decoded = [](std::chrono::milliseconds limit, std::chrono::milliseconds left) {
    const Up up{.expiring = {{"x", 2, {limit, left, false}}}};
    const auto message = decode(encode(up), kLimits);
    return message ? std::string() : message.error();
  };
  EXPECT_THAT(decoded(std::chrono::milliseconds::max(), Expiry::kMostLeft), IsEmpty());
  EXPECT_THAT(decoded(std::chrono::milliseconds(-1), {}), HasSubstr("a time limit of "));
  EXPECT_THAT(decoded({}, Expiry::kMostLeft + std::chrono::milliseconds(1)),
              HasSubstr("expires in 60001 ms"));
}

TEST(MessageLimits, AnEndIsOfARankOfTheSetOrOfNone) {
  EXPECT_THAT(problem_in(Message(JobEnd{.rank = -1, .text = "t", .tensor = ""}), kLimits),
              IsEmpty());
  EXPECT_THAT(problem_in(Message(JobEnd{.rank = 2, .text = "t", .tensor = ""}), kLimits),
              IsEmpty());
  for (const int rank : {-2, 1000}) {
    EXPECT_THAT(problem_in(Message(JobEnd{.rank = rank, .text = "t", .tensor = ""}), kLimits),
                HasSubstr("rank "));
  }
}

}  // namespace

}  // namespace hora::internal
