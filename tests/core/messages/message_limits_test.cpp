#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "core/messages/messages.h"
#include "tests/core/messages/random_messages.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

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

Message mail_of(const Signature& signature) {
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
  EXPECT_THAT(problem_in(mail_of({}), kLimits), IsEmpty());
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
    EXPECT_THAT(problem_in(mail_of(good), kLimits), IsEmpty()) << to_string(good);
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
    EXPECT_FALSE(problem_in(mail_of(bad), kLimits).empty()) << to_string(bad);
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
