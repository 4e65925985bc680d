#include "core/messages/messages.h"

#include <flatbuffers/flatbuffers.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "core/base/checked.h"
#include "messages_generated.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

/// Random values of everything that negotiation exchanges.
class RandomMessages {
 public:
  explicit RandomMessages(std::mt19937_64& random) : random_(random) {}

  Message any() {
    switch (below(5)) {
      case 4:
        return drawn<NodeSum>();
      case 0:
        return drawn<Mail>();
      case 1:
        return drawn<Up>();
      case 2:
        return drawn<JobEnd>();
      default:
        return drawn<Decision>();
    }
  }

 private:
  int below(int limit) { return static_cast<int>(random_() % static_cast<std::uint64_t>(limit)); }
  template <class T>
  T drawn() {
    T value{};
    draw(value);
    return value;
  }
  template <class... T>
  void draw_all(T&... values) {
    (draw(values), ...);
  }
  template <class T>
  void draw(T& value) {
    if constexpr (std::is_enum_v<T>) {
      value = static_cast<T>(below(static_cast<int>(last_of<T>) + 1));
    } else {
      // Small ones, the extremes, and anything else.
      const T values[] = {std::numeric_limits<T>::max(), std::numeric_limits<T>::min(),
                          static_cast<T>(below(10)), static_cast<T>(random_())};
      value = values[below(4)];
    }
  }
  template <class T>
  void draw(std::vector<T>& values) {
    values.resize(static_cast<std::size_t>(below(5)));
    for (T& value : values) draw(value);
  }
  void draw(std::string& text) {
    text.resize(static_cast<std::size_t>(below(5) == 0 ? below(1025) : below(12)));
    for (char& c : text) c = static_cast<char>(1 + below(255));
  }
  void draw(Location& to) { draw_all(to.window, to.offset); }
  void draw(Signature& to) { draw_all(to.kind, to.type, to.op, to.device, to.root, to.shape); }
  void draw(ReportedSignature& to) { draw_all(to.signature, to.ranks); }
  void draw(Report& to) {
    draw_all(to.name, to.values);
    if (to.values.empty()) draw(to.values.emplace_back());
  }
  void draw(Presence& to) { draw_all(to.name, to.ready, to.missing, to.remarks, to.is_answer); }
  void draw(Expiry& to) {
    to = {std::chrono::milliseconds(drawn<std::int64_t>() & INT64_MAX),
          std::chrono::milliseconds(below(static_cast<int>(Expiry::kMostLeft.count()) + 1)),
          below(2) == 0};
  }
  void draw(Expiring& to) { draw_all(to.name, to.rank, to.expiry); }
  void draw(LastArrival& to) {
    draw(to.rank);
    to.late = LastArrival::Time(drawn<std::int64_t>());
  }
  void draw(Rounds& to) { draw_all(to.id, to.complete); }
  void draw(NodeSum& to) { draw_all(to.id, to.last, to.data); }
  void draw(Failed& to) { draw_all(to.name, to.text); }
  void draw(Assigned& to) {
    draw_all(to.name, to.id, to.locations);
    if (below(2) == 0) draw(to.signature.emplace());
  }
  void draw(Mail& to) {
    draw_all(to.kind, to.name, to.signature, to.location);
    if (to.kind == MailKind::expiring) draw(to.expiry.emplace());
  }
  void draw(Up& to) {
    draw_all(to.ready, to.reports, to.presence, to.departed, to.joined, to.last, to.expiring);
    draw_all(to.resized, to.disputed, to.after);
  }
  void draw(Decision& to) {
    draw_all(to.retired, to.failed, to.assigned, to.run, to.resized, to.departed, to.finished);
    draw_all(to.all_joined, to.last_joined, to.asked, to.eager, to.after);
  }
  void draw(JobEnd& to) { draw_all(to.code, to.rank, to.text, to.tensor); }

  std::mt19937_64& random_;
};

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
  RandomMessages messages(random);
  for (int i = 0; i < 4000; ++i) {
    const Message message = messages.any();
    const auto decoded = decode_alone(encode(message));
    ASSERT_TRUE(decoded.has_value()) << decoded.error();
    ASSERT_EQ(*decoded, message);
  }
}

TEST(Messages, WhateverIsDamagedIsRefusedOrSane) {
  auto random = test::generator();
  RandomMessages messages(random);
  EXPECT_FALSE(decode({}).has_value());
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    const Bytes bytes = encode(messages.any());
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      ASSERT_NO_FATAL_FAILURE(expect_sane(std::span(bytes).first(length)));
    }
    const std::uint32_t words[] = {
        0, 1, 0x7fffffff, 0x80000000, 0xffffffff, static_cast<std::uint32_t>(bytes.size())};
    for (int flip = 0; flip < 40; ++flip) {
      Bytes changed = bytes;
      for (std::uint64_t n = 1 + random() % 3; n > 0; --n) {
        changed[random() % changed.size()] ^= std::byte{1} << static_cast<int>(random() % 8);
      }
      refused += decode_alone(changed).has_value() ? 0 : 1;
      ASSERT_NO_FATAL_FAILURE(expect_sane(changed));
      changed = bytes;
      const std::size_t at = random() % (bytes.size() / 4) * 4;
      std::memcpy(changed.data() + at, &words[random() % std::size(words)], 4);
      ASSERT_NO_FATAL_FAILURE(expect_sane(changed));
      Bytes noise(random() % 200);
      for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
      ASSERT_NO_FATAL_FAILURE(expect_sane(noise));
    }
  }
  EXPECT_GT(refused, 1000) << "of 12000: offsets and lengths are checked";
}

Bytes finish(flatbuffers::FlatBufferBuilder& builder, wire::Body type,
             flatbuffers::Offset<void> body) {
  builder.Finish(wire::CreateMessage(builder, type, body));
  const auto* data = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return {data, data + builder.GetSize()};
}

std::string error_of(const Bytes& bytes) {
  const auto message = decode(bytes);
  return message ? "none" : message.error();
}

TEST(Messages, UnknownEnumeratorsAreRefusedByName) {
  const auto error_with = [](std::array<std::uint8_t, 5> numbers) {
    flatbuffers::FlatBufferBuilder builder;
    const auto [mail_kind, kind, type, op, device] = numbers;
    const auto signature = wire::CreateSignatureDirect(builder, kind, type, op, device, 0, nullptr);
    const auto mail = wire::CreateMailDirect(builder, mail_kind, "g", signature);
    return error_of(finish(builder, wire::Body::Mail, mail.Union()));
  };
  EXPECT_EQ(error_with({4, 8, 12, 5, 1}), "none") << "the last known of each";
  EXPECT_EQ(error_with({5, 0, 0, 0, 0}), "unknown mail kind 5");
  EXPECT_EQ(error_with({0, 9, 0, 0, 0}), "unknown kind 9");
  EXPECT_EQ(error_with({0, 0, 13, 0, 0}), "unknown type 13");
  EXPECT_EQ(error_with({0, 0, 0, 6, 0}), "unknown op 6");
  EXPECT_EQ(error_with({0, 0, 0, 0, 255}), "unknown device 255");
}

TEST(Messages, WhatLacksAPartIsRefused) {
  flatbuffers::FlatBufferBuilder builder, second;
  const std::vector<flatbuffers::Offset<wire::ReportedSignature>> none;
  const std::vector reports = {wire::CreateReportDirect(builder, "g", &none)};
  const auto up = wire::CreateUpDirect(builder, nullptr, &reports).Union();
  EXPECT_EQ(error_of(finish(builder, wire::Body::Up, up)), "report of \"g\" holds no value");
  const auto mail = wire::CreateMailDirect(second, 0, "g").Union();
  EXPECT_THAT(error_of(finish(second, static_cast<wire::Body>(17), mail)),
              HasSubstr("unknown kind"));
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
                wire::CreateUpDirect(builder, nullptr, &same_report).Union());
}

// Tables of a FlatBuffer may share parts: a few kilobytes could mean terabytes.
TEST(Messages, AMessageDoesNotGrowWhenItIsDecoded) {
  ASSERT_TRUE(decode(sharing(1, 1, 4000)).has_value()) << "nothing is shared";
  for (const auto& [reports, values] : {std::pair(2, 1), {1, 2}, {10, 10}}) {
    const auto message = decode(sharing(reports, values, 4000));
    ASSERT_FALSE(message.has_value()) << reports * values << " copies of 4000 ranks";
    EXPECT_THAT(message.error(), HasSubstr("its parts share memory"));
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

const MessageLimits kLimits{.id_capacity = 32, .ranks = {2, 3, 7}, .locations = 2};

Signature signature_of(OperationKind kind, Shape shape, int root = 0) {
  return {.kind = kind, .root = root, .shape = std::move(shape)};
}

Message mail_with(const Signature& signature) {
  return Mail{.kind = MailKind::report, .name = "m", .signature = signature, .location = {}};
}

Decision good_decision() {
  return {.retired = {make_id(31, 4)},
          .failed = {{.name = "f", .text = "why"}},
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
          .reports = {{.name = "r", .values = {value}}},
          .presence = {{.name = "p", .ready = {2}, .missing = {3, 7}}},
          .departed = {3},
          .joined = {7},
          .last = {},
          .expiring = {{.name = "x", .rank = 2, .expiry = {}}}};
}

std::string problem_in(const Message& message) {
  const auto decoded = decode(encode(message), &kLimits);
  return decoded ? std::string() : decoded.error();
}

std::string problem(const std::function<void(Decision&, Up&)>& change) {
  Decision decision = good_decision();
  Up up = good_up();
  change(decision, up);
  return problem_in(decision) + problem_in(up);
}

using Change = std::function<void(Decision&, Up&)>;

/// Expects each change to be refused with that text.
void expect_refused(const std::string& text, const std::vector<Change>& changes) {
  for (const Change& change : changes) {
    EXPECT_THAT(problem(change), HasSubstr(text)) << "change " << &change - changes.data();
  }
}

TEST(MessageLimits, IdsAndRanksAreTheSets) {
  for (const Message& good : {Message(Decision{}), Message(good_decision()), Message(good_up())}) {
    EXPECT_THAT(problem_in(good), IsEmpty());
  }
  for (const Id id : {Id{32}, make_id(65535, 0), make_id(32, 65535), ~Id{0}}) {
    expect_refused(
        "id " + std::to_string(id),
        {[=](Decision& d, Up&) { d.retired = {id}; }, [=](Decision& d, Up&) { d.run = {id}; },
         [=](Decision& d, Up&) { d.resized = {id}; }, [=](Decision& d, Up&) { d.eager = {id}; },
         [=](Decision& d, Up&) {
           d.after = {{id, 1}};
         },
         [=](Decision& d, Up&) { d.assigned[1].id = id; },
         [=](Decision&, Up& up) { up.ready.push_back(id); },
         [=](Decision&, Up& up) { up.resized = {id}; },
         [=](Decision&, Up& up) {
           up.after = {{id, 1}};
         },
         [=](Decision&, Up& up) { up.disputed = {id}; }});
    EXPECT_THAT(problem_in(NodeSum{.id = id}), HasSubstr("id "));
  }
  for (const int rank : {-2, 0, 4, 8, std::numeric_limits<int>::max()}) {
    expect_refused("rank ",
                   {[=](Decision& d, Up&) { d.departed.push_back(rank); },
                    [=](Decision& d, Up&) { d.last_joined = rank; },
                    [=](Decision&, Up& up) { up.departed = {rank}; },
                    [=](Decision&, Up& up) { up.joined = {rank}; },
                    [=](Decision&, Up& up) { up.presence[0].ready = {rank}; },
                    [=](Decision&, Up& up) { up.presence[0].missing = {rank}; },
                    [=](Decision&, Up& up) { up.expiring[0].rank = rank; },
                    [=](Decision&, Up& up) { up.last = {{rank}}; },
                    [=](Decision&, Up& up) { up.reports[0].values[0].ranks.push_back(rank); }});
    EXPECT_THAT(problem_in(JobEnd{.rank = rank, .text = "t", .tensor = ""}), HasSubstr("rank "));
    EXPECT_THAT(problem_in(NodeSum{.last = {.rank = rank}}), HasSubstr("rank "));
  }
  for (const int rank : {-1, 2}) {
    EXPECT_THAT(problem_in(JobEnd{.rank = rank, .text = "t", .tensor = ""}), IsEmpty());
    EXPECT_THAT(problem([&](Decision&, Up& up) { up.last = {{rank}}; }), IsEmpty());
  }
}

TEST(MessageLimits, NamesHaveOneIdAndTheReadersLocationsAndListsAreAsLongAsOthers) {
  expect_refused("two ids", {[](Decision& d, Up&) { d.assigned[1].name = "a"; }});
  // Two ids of one slot.
  expect_refused("two names", {[](Decision& d, Up&) { d.assigned[1].id = make_id(31, 9); }});
  for (const std::size_t count : {0u, 1u, 3u}) {
    expect_refused("locations of \"a\"",
                   {[=](Decision& d, Up&) { d.assigned[0].locations.resize(count); }});
  }
  expect_refused("2 last ranks of 1 ids", {[](Decision&, Up& up) { up.last = {{2}, {3}}; }});
  expect_refused("late by -1 ns", {[](Decision&, Up& up) {
                   up.last = {{2, {}, LastArrival::Time(-1)}};
                 }});
  expect_refused("1 remarks on 2 ranks",
                 {[](Decision&, Up& up) { up.presence[0].remarks = {"one"}; }});
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
    EXPECT_THAT(problem_in(mail_with(good)), IsEmpty()) << to_string(good);
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
    EXPECT_FALSE(problem_in(mail_with(bad)).empty()) << to_string(bad);
    EXPECT_FALSE(
        problem([&](Decision&, Up& up) { up.reports[0].values[0].signature = bad; }).empty());
    EXPECT_FALSE(problem([&](Decision& d, Up&) { d.assigned[1].signature = bad; }).empty());
  }
}

TEST(MessageLimits, RandomMessagesAreSeenToWithoutHarm) {
  auto random = test::generator();
  RandomMessages messages(random);
  int refused = 0;
  for (int i = 0; i < 2000; ++i) refused += problem_in(messages.any()).empty() ? 0 : 1;
  EXPECT_GT(refused, 1000);
}

TEST(MessageLimits, TimesAreNoLongerThanClocksHold) {
  using std::chrono::milliseconds;
  const auto decoded = [](milliseconds limit, milliseconds left) {
    return problem([&](Decision&, Up& up) { up.expiring = {{"x", 2, {limit, left, false}}}; });
  };
  EXPECT_THAT(decoded(milliseconds::max(), Expiry::kMostLeft), IsEmpty());
  EXPECT_THAT(decoded(milliseconds(-1), {}), HasSubstr("a time limit of "));
  EXPECT_THAT(decoded({}, Expiry::kMostLeft + milliseconds(1)), HasSubstr("expires in 60001 ms"));
}

}  // namespace
}  // namespace hora::internal
