// How a single leader reacts to single events.
#include <gtest/gtest.h>

#include "core/negotiation/overdue_names.h"
#include "tests/core/negotiation/leader_under_test.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using test::LeaderUnderTest;
using test::ready;
using test::report;
using test::shaped;
using test::two_nodes_of_two;

// Between the last arriver's bit and its announcement all bits are set: a decision then would leave
// the announcement over, as if the ranks were ready for the next time.
TEST(LeaderReadiness, AFullMaskCountsOnlyOnceItIsAnnounced) {
  LeaderUnderTest root(two_nodes_of_two, 0);
  const Id id = root.assign("g", 2, {1});
  root.ready_ranks = 3;
  root.leader.on_up(1, {.reports = {{"g", {{shaped(7), {}}}}}}, 0s);
  root.leader.on_watched_arrivals();
  EXPECT_TRUE(root.leader.take(0s).decisions.empty());
  root.ready_ranks = 0;
  root.leader.on_node_ready(id);
  const auto decisions = root.leader.take(0s).decisions;
  ASSERT_EQ(decisions.size(), 1u);
  ASSERT_EQ(decisions[0].failed.size(), 1u);
  EXPECT_TRUE(decisions[0].failed[0].has_id);
  EXPECT_EQ(decisions[0].failed[0].text,
            mismatch_text({"g", {{shaped(8), {0, 1}}, {shaped(7), {2, 3}}}}));

  // Nothing of the failed round is left: the child alone is not enough.
  root.leader.on_up(1, ready(id), 0s);
  EXPECT_TRUE(root.leader.take(0s).decisions.empty());
  root.leader.on_node_ready(id);
  ASSERT_EQ(root.leader.take(0s).decisions.at(0).run, std::vector<Id>{id});
}

// Whoever brings other extents: a rank of the leader's node, or one below.
TEST(LeaderReadiness, WhatIsResizedOnSomeRankIsResizedForAll) {
  LeaderUnderTest root(two_nodes_of_two, 0);
  const Id id = root.assign("g", 2, {1});
  const auto resized = [&](bool here, bool below) {
    root.leader.on_node_ready(id, {}, here);
    root.leader.on_up(1, {.ready = {id}, .resized = below ? std::vector{id} : std::vector<Id>{}},
                      0s);
    const auto decisions = root.leader.take(0s).decisions;
    EXPECT_EQ(decisions.at(0).run, std::vector<Id>{id});
    EXPECT_EQ(decisions.at(0).only_runs(), decisions.at(0).resized.empty());
    return decisions.at(0).resized == std::vector<Id>{id};
  };
  EXPECT_TRUE(resized(true, false));
  EXPECT_FALSE(resized(false, false)) << "that was the time before";
  EXPECT_TRUE(resized(false, true));
  EXPECT_TRUE(resized(true, true));
  EXPECT_FALSE(resized(false, false));
}

TEST(LeaderReadiness, WhatIsResizedGoesUpWithTheReadyId) {
  LeaderUnderTest leader(Topology{{{0}, {1}, {2}, {3}}}, 1);  // node 3 is below node 1
  leader.leader.on_mail(0, report("g", 8), 0s);
  leader.leader.on_up(3, {.reports = {{"g", {{shaped(8), {}}}}}}, 0s);
  ASSERT_EQ(leader.leader.take(0s).up.reports.size(), 1u);
  const Id id = make_id(4, 0);
  leader.leader.on_decision({.assigned = {{.name = "g", .id = id, .locations = {}}}});
  leader.leader.take(0s);
  for (const bool below : {true, false, true}) {
    leader.leader.on_up(3, {.ready = {id}, .resized = below ? std::vector{id} : std::vector<Id>{}},
                        0s);
    leader.leader.on_node_ready(id);
    const Up up = leader.leader.take(0s).up;
    EXPECT_EQ(up.ready, std::vector<Id>{id});
    EXPECT_EQ(up.resized, below ? std::vector{id} : std::vector<Id>{});
    leader.leader.on_decision({.run = {id}});
    leader.leader.take(0s);
  }
}

TEST(LeaderReadiness, ReadyBitsBesideAReportAreWatchedAndCount) {
  LeaderUnderTest root(Topology{{{0, 1, 2}}}, 0);
  const Id id = root.assign("g", 3, {});
  root.leader.on_mail(1, report("g", 9), 0s);
  EXPECT_EQ(root.leader.take(0s).watch, std::vector<Id>{id});
  root.ready_ranks = 0b100;
  root.leader.on_watched_arrivals();
  EXPECT_TRUE(root.leader.take(0s).decisions.empty());
  root.ready_ranks = 0b101;
  root.leader.on_watched_arrivals();
  EXPECT_EQ(root.leader.take(0s).decisions.at(0).failed.at(0).text,
            mismatch_text({"g", {{shaped(8), {0, 2}}, {shaped(9), {1}}}}));
}

// The child counted ready bits of an id that the root has given up: those ranks report again, so
// the report is void, whichever of the two messages arrived first.
TEST(LeaderReadiness, AReportThatCountsAnIdIsVoidOnceTheIdIsGivenUp) {
  const Topology topology{{{0}, {1, 2}}};
  LeaderUnderTest root(topology, 0);
  const Id old = root.assign("g", 1, {1});
  for (int n = 0; n < 16; ++n) root.assign("filler" + std::to_string(n), 1, {1});
  // "g" was the least recently used of 16 ids, so the 17th name has taken its slot.
  root.leader.on_up(1, {.reports = {{"g", {{shaped(8), {1}}, {shaped(7), {2}}}, old}}}, 0s);
  root.leader.on_mail(0, report("g", 8), 0s);
  EXPECT_TRUE(root.leader.take(0s).decisions.empty());
  root.leader.on_up(1, {.reports = {{"g", {{shaped(8), {1}}, {shaped(7), {2}}}}}}, 0s);
  EXPECT_EQ(root.leader.take(0s).decisions.at(0).failed.at(0).text,
            mismatch_text({"g", {{shaped(8), {0, 1}}, {shaped(7), {2}}}}));
}

TEST(LeaderReadiness, ANameAgreedOnByCountingItsIdIsDecidedOnceItsRanksHaveReported) {
  LeaderUnderTest root(Topology{{{0, 1}}}, 0);
  const Id id = root.assign("g", 2, {});
  root.ready_ranks = 0b01;
  root.leader.on_mail(1, report("g", 8), 0s);
  const auto first = root.leader.take(0s).decisions;
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].retired, std::vector<Id>{id});
  EXPECT_TRUE(first[0].assigned.empty());

  root.ready_ranks = 0;
  root.leader.on_mail(0, report("g", 8), 0s);
  const auto second = root.leader.take(0s).decisions;
  ASSERT_EQ(second.size(), 1u);
  ASSERT_EQ(second[0].assigned.size(), 1u);
  EXPECT_EQ(second[0].assigned[0].name, "g");
}

TEST(LeaderReadiness, ALeaderReportsAgainWhenAnIdThatItCountedIsGivenUp) {
  const Topology topology{{{0}, {1, 2}}};
  LeaderUnderTest leader(topology, 1);
  leader.leader.on_mail(0, report("g", 8), 0s);
  leader.leader.on_mail(1, report("g", 8), 0s);
  ASSERT_EQ(leader.leader.take(0s).up.reports.size(), 1u);
  const Id id = make_id(3, 0);
  leader.leader.on_decision({.assigned = {{"g", id, {}}}});
  ASSERT_EQ(leader.leader.take(0s).decisions.size(), 1u);

  leader.ready_ranks = 0b01;  // rank 1 as before, rank 2 with another shape
  leader.leader.on_mail(1, report("g", 7), 0s);
  const auto first = leader.leader.take(0s).up.reports;
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].counted, id);
  EXPECT_EQ(first[0].values, (std::vector<ReportedSignature>{{shaped(8), {1}}, {shaped(7), {2}}}));

  leader.ready_ranks = 0;
  leader.leader.on_decision({.number = 1, .retired = {id}});
  EXPECT_TRUE(leader.leader.take(0s).up.empty());
  leader.leader.on_mail(0, report("g", 8), 0s);
  const auto second = leader.leader.take(0s).up.reports;
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].counted, std::nullopt);
  EXPECT_EQ(second[0].values, first[0].values);
}

// No engine joins with something in flight, but messages are not trusted.
TEST(LeaderReadiness, ANameThatNoRankReportsAgainIsNotReportedWhenAllHaveJoined) {
  const Topology topology{{{0}, {1}, {2}, {3}}};  // 3 is below 2
  LeaderUnderTest leader(topology, 2);
  Signature gathered = shaped(8);
  gathered.kind = OperationKind::allgather;
  leader.leader.on_decision({.assigned = {{"g", 5, {}, gathered}}});
  leader.leader.on_up(3, ready(5), 0s);
  leader.leader.on_mail(0, {.kind = MailKind::joined, .name = {}, .signature = {}, .location = {}},
                        0s);
  const auto first = leader.leader.take(0s).up.reports;
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].counted, Id{5});
  leader.leader.on_decision({.number = 1, .retired = {5}});
  leader.leader.on_up(3, {.joined = {3}}, 0s);
  const auto up = leader.leader.take(0s).up;
  EXPECT_TRUE(up.reports.empty());
  EXPECT_EQ(up.joined, std::vector<int>{3});
}

// A rank that answers others' ready bits may say so after all have joined.
TEST(LeaderReadiness, ARefusalOfAJoinThatHasEndedIsNone) {
  LeaderUnderTest leader(two_nodes_of_two, 1);
  Signature gathered = shaped(8);
  gathered.kind = OperationKind::allgather;
  leader.leader.on_decision({.assigned = {{"g", 5, {}, gathered}}});
  leader.ready_ranks = 0b01;
  Mail refusal{.kind = MailKind::report, .name = "g", .signature = {}, .location = kNowhere};
  refusal.signature.kind = OperationKind::join;
  leader.leader.on_mail(1, refusal, 0s);
  EXPECT_TRUE(leader.leader.take(0s).up.reports.empty());
  leader.leader.on_mail(1, {.kind = MailKind::joined, .name = {}, .signature = {}, .location = {}},
                        0s);
  leader.leader.on_mail(1, refusal, 0s);
  const auto reports = leader.leader.take(0s).up.reports;
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].values.size(), 2u) << "its node disagrees";
}

std::string long_name(int n) {
  return std::string(1000, 'n') + std::to_string(n);
}

// A decision must fit into the node's log, however much there is to decide.
TEST(LeaderReadiness, LongDecisionsAreCut) {
  constexpr int kNames = 4000;
  for (const bool agreed : {true, false}) {
    const Topology topology{{{0, 1}}};
    Leader root(topology, 0, kNames,
                {.retire = [](Id, bool) { return true; },
                 .last_run = [](Id) { return std::uint64_t{0}; },
                 .ready_ranks = [](Id) { return LocalRanks(); }});
    for (int n = 0; n < kNames; ++n) {
      root.on_mail(0, report(long_name(n), 8), 0s);
      root.on_mail(1, report(long_name(n), agreed ? 8 : 7), 0s);
    }
    int told = 0;
    for (auto output = root.take(0s); !output.decisions.empty(); output = root.take(0s)) {
      for (const Decision& decision : output.decisions) {
        EXPECT_LT(encode(decision).size(), kDecisionBytes + kDecisionBytes / 4);
        EXPECT_GT(encode(decision).size(), told + 1200 < kNames ? kDecisionBytes / 2 : 0);
        for (const Assigned& assigned : decision.assigned) {
          ASSERT_EQ(assigned.name, long_name(told++));
        }
        for (const Failed& failed : decision.failed) ASSERT_EQ(failed.name, long_name(told++));
      }
    }
    EXPECT_EQ(told, kNames);
  }
}

TEST(LeaderReadiness, TellsUpWhoCameLastAndTheRootSaysOfAll) {
  LeaderUnderTest leader(Topology{{{0}, {1, 2}}}, 1);
  leader.leader.on_mail(0, report("g", 8), 0s);
  leader.leader.on_mail(1, report("g", 8), 0s);
  leader.leader.take(0s);
  const Id own = make_id(3, 0);
  leader.leader.on_decision({.assigned = {{"g", own, {}}}});
  leader.leader.take(0s);
  leader.leader.on_node_ready(own, {2, 7ms, 3ms});
  const Up up = leader.leader.take(0s).up;
  EXPECT_EQ(up.ready, std::vector<Id>{own});
  EXPECT_EQ(up.last, (std::vector<LastReady>{{2, 3000}}));

  LeaderUnderTest root(two_nodes_of_two, 0);
  const Id id = root.assign("g", 2, {1});
  for (int round = 0; round < 2; ++round) {
    root.leader.on_node_ready(id, {1, 10ms, 5ms});
    root.leader.on_up(1, {.ready = {id}, .last = {{2, 9000}}}, 12ms);
    const auto arrivals = root.leader.take(12ms).arrivals;
    ASSERT_EQ(arrivals.size(), 1u);
    EXPECT_EQ(arrivals[0].first, id);
    EXPECT_EQ(arrivals[0].second, (LastArrival{2, 12ms, 2ms})) << "after rank 1, round " << round;
  }
}

}  // namespace
}  // namespace hora::internal
