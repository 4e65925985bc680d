// Tensors that are about to run out of time: by themselves, and what leaders do about them.
#include <gtest/gtest.h>

#include "core/negotiation/overdue_names.h"
#include "tests/core/negotiation/leader_under_test.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using test::LeaderUnderTest;
using test::report;
using test::shaped;
using test::two_nodes_of_two;

constexpr Expiry kSoon{60s, 2s, false};

/// Of a root with the local ranks 0, which is ready for every name, and 1, which is not.
Presence own(const std::string& name) {
  return {name, {0}, {1}, {"rank 1 sleeps"}};
}

Mail expiring(const std::string& name) {
  Mail mail{.kind = MailKind::expiring, .name = name, .signature = {}, .location = {}};
  mail.expiry = kSoon;
  return mail;
}

// Four nodes: 0 has the children 1 and 2; 3 is below 2.
const Topology four_nodes{{{0}, {1}, {2, 3}, {4}}};

TEST(ExpiringNames, AreDueWhenTheFirstRankRunsOutOfTime) {
  ExpiringNames names;
  EXPECT_EQ(names.deadline(), std::nullopt);
  EXPECT_TRUE(names.note({"a", 2, kSoon}, 10s));
  EXPECT_FALSE(names.note({"a", 0, {30s, 1s, true}}, 10s)) << "asked about already";
  EXPECT_TRUE(names.note({"b", 2, kSoon}, 9500ms));
  EXPECT_EQ(names.deadline(), Duration(11s));
  EXPECT_TRUE(names.take(10900ms, own).empty());
  const auto expired = names.take(11s, own);
  ASSERT_EQ(expired.size(), 1u);
  EXPECT_EQ(expired[0].expiring, (Expiring{"a", 0, {30s, 1s, true}}));
  EXPECT_EQ(names.deadline(), Duration(11500ms));
  names.settle("b");
  EXPECT_EQ(names.deadline(), std::nullopt);
}

TEST(ExpiringNames, TheLastWordOnEachRankHolds) {
  ExpiringNames names;
  names.note_presence({"a", {2}, {3}});
  names.note({"a", 0, kSoon}, 10s);
  names.note_presence({"a", {}, {2, 3}, {"two", "three"}, true});
  names.note_presence({"a", {2}, {3}, {""}, true});
  names.note_presence({"b", {}, {2, 3}, {}, true});
  EXPECT_EQ(names.completed(own("a")), (Presence{"a", {0, 2}, {1, 3}, {"rank 1 sleeps", "three"}}));
  EXPECT_EQ(names.completed(own("b")), own("b")) << "of no name that expires";
  EXPECT_EQ(names.take(12s, own).at(0).presence,
            (Presence{"a", {0, 2}, {1, 3}, {"rank 1 sleeps", "three"}}));
}

TEST(ExpiringNames, WhatItsRankDoesNotWaitForAnyMoreIsForgotten) {
  ExpiringNames names;
  names.note({"a", 2, kSoon}, 10s);
  names.note_presence({"a", {}, {2, 3}, {}, true});
  EXPECT_TRUE(names.take(20s, own).empty());
  EXPECT_EQ(names.deadline(), std::nullopt);
}

TEST(Expiring, TheRootAsksAndSaysWhatItHasHeard) {
  LeaderUnderTest root(two_nodes_of_two, 0);
  root.leader.on_up(1, {.expiring = {{"g", 2, kSoon}}}, 10s);
  const LeaderOutput asks = root.leader.take(10s);
  ASSERT_EQ(asks.decisions.size(), 1u);
  EXPECT_EQ(asks.decisions[0].asked, std::vector<std::string>{"g"});
  EXPECT_EQ(root.leader.deadline(), Duration(12s));
  root.leader.on_up(1, {.presence = {{"g", {2}, {3}, {"rank 3 is stopped"}, true}}}, 10s);
  EXPECT_EQ(root.leader.deadline(), Duration(12s)) << "an answer makes no warning";
  EXPECT_EQ(root.leader.presence_of("g"),
            (Presence{"g", {2}, {0, 1, 3}, {"", "", "rank 3 is stopped"}}));
  const LeaderOutput ends = root.leader.take(12s);
  EXPECT_TRUE(ends.warnings.empty());
  ASSERT_EQ(ends.expired.size(), 1u);
  EXPECT_EQ(ends.expired[0].expiring.rank, 2);
  EXPECT_EQ(ends.expired[0].presence.missing, (std::vector<int>{0, 1, 3}));
  EXPECT_TRUE(root.leader.take(13s).expired.empty());
}

TEST(Expiring, NothingExpiresThatWasDecidedMeanwhile) {
  LeaderUnderTest root(two_nodes_of_two, 0);
  for (const int r : {0, 1}) root.leader.on_mail(r, report("g", 8), 9s);
  root.leader.on_mail(0, expiring("g"), 10s);
  root.leader.take(10s);
  root.leader.on_up(1, {.reports = {{"g", {{shaped(8), {}}}}}}, 11s);
  EXPECT_EQ(root.leader.take(11s).decisions.size(), 1u);
  EXPECT_EQ(root.leader.deadline(), std::nullopt);
  EXPECT_TRUE(root.leader.take(20s).expired.empty());
}

TEST(Expiring, LeadersAnswerAndPassOn) {
  LeaderUnderTest leader(four_nodes, 2);
  leader.leader.on_mail(1, report("g", 8), 0s);
  leader.leader.on_mail(1, expiring("g"), 10s);
  leader.leader.on_up(3, {.expiring = {{"g", 4, kSoon}}}, 10s);
  EXPECT_EQ(leader.leader.take(10s).up.expiring,
            (std::vector<Expiring>{{"g", 3, kSoon}, {"g", 4, kSoon}}));
  leader.leader.on_decision({.asked = {"g", "h"}});
  const Presence below{"g", {4}, {}, {}, true};
  leader.leader.on_up(3, {.presence = {below}}, 11s);
  const Up up = leader.leader.take(11s).up;
  EXPECT_EQ(up.presence,
            (std::vector<Presence>{{"g", {3}, {2}, {}, true}, {"h", {}, {2, 3}, {}, true}, below}));
  EXPECT_EQ(leader.leader.deadline(), std::nullopt);
}

}  // namespace
}  // namespace hora::internal
