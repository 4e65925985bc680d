// A single leader: the values by which it decides, and its reactions to single events.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "core/negotiation/leader.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

Signature shaped(std::int64_t extent, OperationKind kind = OperationKind::allreduce) {
  return {.kind = kind, .shape = {extent}};
}

Mail mail(MailKind kind, const std::string& name = {}) {
  return {.kind = kind, .name = name, .signature = {}, .location = {}};
}
Mail report(const std::string& name, std::int64_t extent) {
  return {.kind = MailKind::report, .name = name, .signature = shaped(extent), .location = {}};
}

Up ready(Id id) {
  return {.ready = {id}};
}
/// A child's report for its whole subtree.
Up below(const std::string& name, std::int64_t extent = 8) {
  return {.reports = {{name, {{shaped(extent), {}}}}}};
}

/// One leader beside a control block of the ready bits of one id.
struct LeaderUnderTest : Leader {
  LeaderUnderTest(const Topology& topology, int node, ProcessSet set = kWorld,
                  Duration warning_interval = {})
      : Leader(topology, node, 16,
               {.retire = [](Id, bool) { return true; },
                .ready_ranks = [this](Id) { return ready_ranks; }},
               set, warning_interval) {}

  /// Reports `name` by every local rank and child, and gives the id that the root assigns.
  Id assign(const std::string& name, int local_size, const std::vector<int>& children) {
    for (int r = 0; r < local_size; ++r) on_mail(r, report(name, 8), 0s);
    for (const int child : children) on_up(child, below(name), 0s);
    return take(0s).decisions.at(0).assigned.at(0).id;
  }

  LocalRanks ready_ranks;
};

const Topology two_nodes_of_two{{{0, 1}, {2, 3}}};

TEST(IdRing, GivesUpTheOldestThatCanBeOrNothing) {
  IdRing ring(5);
  std::set<Id> busy;
  const auto next = [&] { return ring.next([&](Id id) { return !busy.contains(id); }); };
  for (Id id = 0; id < 5; ++id) EXPECT_EQ(next(), id);
  busy = {0, 1, 3, 4};
  EXPECT_EQ(next(), make_id(2, 1));
  EXPECT_EQ(next(), make_id(2, 2)) << "all others are busy";
  busy = {4};
  EXPECT_EQ(next(), make_id(3, 1));
  EXPECT_EQ(next(), make_id(0, 1));
  busy = {make_id(0, 1), 1, make_id(2, 2), make_id(3, 1), 4};
  EXPECT_EQ(next(), std::nullopt);
  ring.release(1);
  EXPECT_EQ(next(), make_id(1, 1));
}

// Whoever brings other extents: a rank of the leader's node, or one below.
TEST(LeaderReadiness, WhatIsResizedOnSomeRankIsResizedForAll) {
  LeaderUnderTest root(two_nodes_of_two, 0);
  const Id id = root.assign("g", 2, {1});
  const auto resized = [&](bool here, bool below) {
    root.on_node_ready(id, {}, here);
    root.on_up(1, {.ready = {id}, .resized = below ? std::vector{id} : std::vector<Id>{}}, 0s);
    const auto decisions = root.take(0s).decisions;
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

// Those who were ready for it report as well then.
TEST(LeaderReadiness, AReportOfANameWithAnIdGivesTheIdUp) {
  LeaderUnderTest root(two_nodes_of_two, 0);
  const Id id = root.assign("g", 2, {1});
  root.on_up(1, ready(id), 0s);
  root.on_mail(1, report("g", 7), 0s);
  const auto first = root.take(0s).decisions;
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].retired, std::vector<Id>{id});
  EXPECT_TRUE(first[0].failed.empty());
  root.on_up(1, ready(id), 0s);  // it has not read that yet
  root.on_up(1, below("g", 8), 0s);
  EXPECT_TRUE(root.take(0s).decisions.empty());
  root.on_mail(0, report("g", 8), 0s);
  const auto second = root.take(0s).decisions;
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].failed.at(0).text,
            mismatch_text({"g", {{shaped(8), {0, 2, 3}}, {shaped(7), {1}}}}));

  LeaderUnderTest leader(two_nodes_of_two, 1);
  leader.on_decision({.assigned = {{"g", 5, {}, shaped(8)}}});
  leader.take(0s);
  for (int again = 0; again < 2; ++again) leader.on_mail(0, report("g", 7), 0s);
  EXPECT_EQ(leader.take(0s).up.disputed, std::vector<Id>{5});
}

// Ranks that were ready when it joined have set a bit, and wait for one that will not come.
TEST(LeaderReadiness, AnIdThatWaitsForARankThatHasJoinedIsGivenUp) {
  LeaderUnderTest leader(two_nodes_of_two, 1);
  const Signature gathered = shaped(8, OperationKind::allgather);
  leader.on_decision({.assigned = {{"g", 5, {}, gathered}}});
  leader.take(0s);
  leader.ready_ranks = 0b01;
  EXPECT_FALSE(leader.has_joined_arrivals());
  leader.on_mail(1, mail(MailKind::joined), 0s);
  EXPECT_TRUE(leader.has_joined_arrivals());
  leader.on_joined_arrivals();
  EXPECT_FALSE(leader.has_joined_arrivals());
  EXPECT_EQ(leader.take(0s).up.disputed, std::vector<Id>{5});
}

std::string long_name(int n) {
  return std::string(1000, 'n') + std::to_string(n);
}

// A decision must fit into the node's log, however much there is to decide.
TEST(LeaderReadiness, LongDecisionsAreCut) {
  constexpr int kNames = 4000;
  for (const bool agreed : {true, false}) {
    const Topology topology{{{0, 1}}};
    Leader root(
        topology, 0, kNames,
        {.retire = [](Id, bool) { return true; }, .ready_ranks = [](Id) { return LocalRanks(); }});
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
  leader.on_mail(0, report("g", 8), 0s);
  leader.on_mail(1, report("g", 8), 0s);
  leader.take(0s);
  const Id own = make_id(3, 0);
  leader.on_decision({.assigned = {{"g", own, {}}}});
  leader.take(0s);
  leader.on_node_ready(own, {2, 7ms, 3ms});
  const Up up = leader.take(0s).up;
  EXPECT_EQ(up.ready, std::vector<Id>{own});
  EXPECT_EQ(up.last, (std::vector<LastArrival>{{2, {}, 3ms}}));

  LeaderUnderTest root(two_nodes_of_two, 0);
  const Id id = root.assign("g", 2, {1});
  for (int round = 0; round < 2; ++round) {
    root.on_node_ready(id, {1, 10ms, 5ms});
    root.on_up(1, {.ready = {id}, .last = {{2, {}, 9ms}}}, 12ms);
    const auto arrivals = root.take(12ms).arrivals;
    ASSERT_EQ(arrivals.size(), 1u);
    EXPECT_EQ(arrivals[0].first, id);
    EXPECT_EQ(arrivals[0].second, (LastArrival{2, 12ms, 2ms})) << "after rank 1, round " << round;
  }
}

const TreePosition reporting_root(two_nodes_of_two, 0);

ReportedName nothing_yet() {
  return {.local = std::vector<std::optional<Signature>>(2), .locations = {}};
}

TEST(ReportedName, WhoHasJoinedIsNamedOnlyWhereTheOperationNeedsAll) {
  const Signature gathered = shaped(8, OperationKind::allgather);
  Signature join;
  join.kind = OperationKind::join;
  JoinedRanks joined;
  joined.add({2, 3});
  for (const Signature& signature : {shaped(8), gathered}) {
    ReportedName reported = nothing_yet();
    for (auto& local : reported.local) local = signature;
    EXPECT_TRUE(reported.complete(joined, reporting_root));
    Report expected{"g", {{signature, {0, 1}}}};
    if (signature == gathered) expected.values.push_back({join, {2, 3}});
    EXPECT_EQ(merged_report("g", reported, reporting_root), expected);
  }
}

constexpr Id kFirst = make_id(3, 0);

/// The second of two nodes, where "g" has an id, and all ranks have reported "h", one "i".
class LeaderProblems : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"g", "h"}) {
      for (int r = 0; r < 2; ++r) leader_.on_mail(r, report(name, 8), 0s);
    }
    leader_.on_decision({.assigned = {{"g", kFirst, {}}}});
    leader_.on_mail(0, report("i", 8), 0s);
  }
  LeaderUnderTest leader_{two_nodes_of_two, 1};
};

TEST_F(LeaderProblems, AreDecisionsThatCannotFollowThoseBefore) {
  const Id next = kFirst + (1 << 16);
  const std::vector<std::pair<Decision, std::string>> cases = {
      {{}, ""},
      {{.run = {kFirst}}, ""},
      {{.assigned = {{"h", 5, {}}}}, ""},
      {{.retired = {kFirst}, .assigned = {{"h", next, {}}}}, ""},
      {{.retired = {kFirst}, .assigned = {{"g", next, {}}}}, ""},
      {{.failed = {{"h", "why"}}}, ""},
      {{.run = {kFirst, 4}}, "id 4 is to run, which no name has"},
      {{.retired = {4}}, "id 4 is given up, which no name has"},
      {{.retired = {next}}, "id 65539 is given up, which no name has"},
      {{.assigned = {{"g", 5, {}}}}, "id 5 for \"g\", which has id 3"},
      {{.assigned = {{"h", kFirst, {}}}}, "id 3 for \"h\", which \"g\" has"},
      {{.assigned = {{"i", 5, {}}}},
       "id 5 for \"i\", which not all ranks of this node have reported"}};
  for (const auto& [decision, problem] : cases) EXPECT_EQ(leader_.problem_in(decision), problem);
}

std::string text_with(const Signature& other) {
  return mismatch_text({"layer1.weight", {{{.shape = {3, 4}}, {0, 1, 2}}, {other, {3}}}});
}

TEST(MismatchText, NamesTensorRanksAndBothValues) {
  EXPECT_EQ(text_with({.shape = {3, 5}}),
            "tensor \"layer1.weight\": ranks disagree about its shape: ranks 0-2: allreduce "
            "float32 [3, 4] sum on cpu; rank 3: allreduce float32 [3, 5] sum on cpu. Submit the "
            "same operation, type, shape, reduction and root under one name.");
  EXPECT_THAT(mismatch_text({"x",
                             {{shaped(8, OperationKind::allgather), {0, 1}},
                              {shaped(8, OperationKind::join), {2}}}}),
              AllOf(HasSubstr("tensor \"x\": rank 2 has called join() and nothing more to bring: "
                              "only an allreduce goes on then, and ranks 0, 1 submitted allgather"),
                    Not(HasSubstr("disagree"))));
  const std::string long_name(std::size_t{1} << 20, 'n');
  EXPECT_LT(mismatch_text({long_name, {{shaped(1), {0}}, {shaped(2), {1}}}}).size(), 2000u);
}

TEST(MismatchText, NamesEveryFieldThatDiffers) {
  const Shape shape = {3, 4};
  const std::vector<std::pair<Signature, std::string>> cases = {
      {{.kind = OperationKind::broadcast, .shape = shape}, "operation"},
      {{.type = DataType::bfloat16, .shape = shape}, "type"},
      {{.shape = {12}}, "number of dimensions, shape"},
      {{.op = ReduceOp::average, .shape = shape}, "reduction"},
      {{.shape = shape, .prescale = 2}, "prescale"},
      {{.shape = shape, .postscale = 2}, "postscale"},
      {{.root = 1, .shape = shape}, "root"},
      {{.device = DeviceKind::cuda, .shape = shape}, "device"},
      {{.kind = OperationKind::broadcast,
        .type = DataType::int64,
        .op = ReduceOp::average,
        .device = DeviceKind::cuda,
        .root = 2},
       "operation, type, number of dimensions, shape, reduction, root, device"}};
  for (const auto& [other, fields] : cases) {
    EXPECT_THAT(text_with(other), HasSubstr("disagree about its " + fields + ": "));
  }
}

TEST(MismatchText, ShowsAtMostEightValues) {
  Report report{"g", {}};
  for (int rank = 0; rank < 8; ++rank) report.values.push_back({shaped(100 + rank), {rank}});
  EXPECT_THAT(mismatch_text(report), HasSubstr("; rank 7: allreduce float32 [107]"));
  for (int rank = 8; rank < 11; ++rank) report.values.push_back({shaped(100 + rank), {rank}});
  EXPECT_THAT(mismatch_text(report), AllOf(HasSubstr("[107]"), Not(HasSubstr("[108]")),
                                           HasSubstr("; and 3 other values")));
}

TEST(OverdueText, NamesTensorsAndRanks) {
  const std::vector<Presence> one = {{"late", {0, 2, 3}, {1}}};
  EXPECT_EQ(overdue_text(kWorld, one, {}),
            "tensor \"late\" is waited for by ranks 0, 2, 3 and has not been submitted by ranks 1. "
            "Do all ranks call the same collectives? Is one of them slow, stopped or gone?");
  EXPECT_THAT(overdue_text(ProcessSet(3), one, {}),
              StartsWith("tensor \"late\" of process set 3 is waited for by ranks 0"));
  // Tensors that wait for the same ranks are named together.
  std::vector<Presence> tensors;
  for (int i = 0; i < 7; ++i) tensors.push_back({"b" + std::to_string(i), {0}, {1, 2}});
  tensors.push_back({"loss", {0, 1}, {2}});
  EXPECT_THAT(overdue_text(kWorld, tensors, {}),
              StartsWith("tensors \"b0\", \"b1\", \"b2\" and 4 more are waited for by ranks 0 and "
                         "have not been submitted by ranks 1, 2; tensor \"loss\" is waited for by "
                         "ranks 0, 1 and has not been submitted by ranks 2. Do all"));
  for (int i = 0; i < 50; ++i) tensors.push_back({"t" + std::to_string(i), {i}, {i + 1}});
  const std::string text = overdue_text(kWorld, tensors, {});
  EXPECT_THAT(text, HasSubstr("; and 48 more tensors wait for other ranks. Do all"));
  EXPECT_LT(text.size(), 1000u);
  // Nodes that are silent.
  const std::vector ranks = {0, 1, 2, 6};
  Presence x{"x\n", {0}, {2}};
  EXPECT_THAT(overdue_text(kWorld, {&x, 1}, ranks),
              StartsWith("tensor \"x\\n\" is waited for by ranks 0 and has not been submitted by "
                         "ranks 2, by ranks 1, 6 (nothing heard from their nodes about it). Do"));
  x = {"x", {0, 2}, {}};
  EXPECT_THAT(overdue_text(kWorld, {&x, 1}, ranks),
              HasSubstr("has not been submitted by ranks 1, 6 (nothing heard"));
}

Mail overdue(const std::string& name) {
  return mail(MailKind::overdue, name);
}

// Five nodes: 0 has the children 1, 2, 4; 3 is below 2.
const Topology five_nodes{{{0}, {1}, {2, 3}, {4, 5}, {6}}};

TEST(Overdue, NamesTheRanksThatLackANewTensor) {
  LeaderUnderTest root(five_nodes, 0);
  root.on_mail(0, report("late", 8), 0s);
  root.on_mail(0, overdue("late"), 1s);
  const LeaderOutput first = root.take(1s);
  EXPECT_TRUE(first.warnings.empty()) << "others may be about to say what they know";
  ASSERT_EQ(first.decisions.size(), 1u);
  EXPECT_EQ(first.decisions[0].asked, std::vector<std::string>{"late"});
  const auto when = root.deadline();
  ASSERT_TRUE(when.has_value());
  root.on_up(2, {.presence = {{"late", {3, 4}, {2, 5}}}}, 1s);
  const auto warnings = root.take(*when).warnings;
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0],
              HasSubstr("\"late\" is waited for by ranks 0, 3, 4 and has not been submitted by "
                        "ranks 2, 5, by ranks 1, 6 (nothing heard"));
  EXPECT_EQ(root.deadline(), std::nullopt);
}

TEST(Overdue, BetweenTwoWarningsIsTheInterval) {
  LeaderUnderTest root(two_nodes_of_two, 0, kWorld, 10s);
  root.on_mail(0, report("a", 8), 0s);
  root.on_mail(0, overdue("a"), 10s);
  const auto first = root.deadline();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(root.take(*first).warnings.size(), 1u);
  // Another rank has submitted later, and reports the same tensor later.
  root.on_up(1, {.presence = {{"a", {2}, {3}}}}, 13s);
  EXPECT_EQ(root.deadline(), *first + 10s);
  EXPECT_TRUE(root.take(19s).warnings.empty());
  root.on_mail(0, overdue("a"), 20s);
  const auto second = root.take(*first + 10s).warnings;
  ASSERT_EQ(second.size(), 1u);
  EXPECT_THAT(second[0], HasSubstr("waited for by ranks 0, 2 and has not"));
}

TEST(Overdue, ALeaderTellsItsParentWhatItKnowsOfItsSubtree) {
  LeaderUnderTest leader(five_nodes, 2);
  leader.on_mail(1, report("late", 8), 0s);
  leader.on_up(3, below("late"), 0s);
  leader.on_mail(1, overdue("late"), 1s);
  const auto presence = leader.take(1s).up.presence;
  ASSERT_EQ(presence.size(), 1u);
  EXPECT_EQ(presence[0], (Presence{"late", {3, 4, 5}, {2}}));
}

TEST(Overdue, PresencePassesThroughALeaderWhoseRanksAreNotReady) {
  LeaderUnderTest leader(five_nodes, 2);
  leader.on_up(3, {.presence = {{"late", {5}, {4}}}}, 1s);
  const auto presence = leader.take(1s).up.presence;
  ASSERT_EQ(presence.size(), 1u);
  EXPECT_EQ(presence[0], (Presence{"late", {5}, {2, 3, 4}}));
}

TEST(Overdue, ASubtreeThatIsReadyForAKnownNameStillComplains) {
  LeaderUnderTest leader(two_nodes_of_two, 1);
  for (const int r : {0, 1}) leader.on_mail(r, report("g", 8), 0s);
  leader.on_decision({.assigned = {{"g", 5, {}}}});
  leader.take(0s);
  leader.on_node_ready(5);
  EXPECT_EQ(leader.take(0s).up.ready, std::vector<Id>{5});
  leader.on_mail(0, overdue("g"), 1s);
  auto up = leader.take(1s).up;
  EXPECT_TRUE(up.ready.empty()) << "told twice";
  ASSERT_EQ(up.presence.size(), 1u) << "no other node tells the root of it";
  EXPECT_EQ(up.presence[0], (Presence{"g", {2, 3}, {}}));
  // Once it has run, a report that was under way means nothing.
  leader.on_decision({.run = {5}});
  leader.on_mail(0, overdue("g"), 2s);
  EXPECT_TRUE(leader.take(2s).up.empty());
}

TEST(Overdue, NothingIsSaidOfATensorThatWasDecidedMeanwhile) {
  LeaderUnderTest root(two_nodes_of_two, 0);
  root.on_mail(0, report("g", 8), 0s);
  root.on_mail(0, overdue("g"), 1s);
  root.on_mail(1, report("g", 8), 1s);
  root.on_up(1, below("g"), 1s);
  EXPECT_EQ(root.take(1s).decisions.size(), 1u);
  EXPECT_TRUE(root.take(10s).warnings.empty());
}

constexpr Expiry kSoon{60s, 2s, false};

Mail expiring(const std::string& name) {
  Mail result = mail(MailKind::expiring, name);
  result.expiry = kSoon;
  return result;
}

// Four nodes: 0 has the children 1 and 2; 3 is below 2.
const Topology four_nodes{{{0}, {1}, {2, 3}, {4}}};

TEST(Expiring, TheRootAsksAndSaysWhatItHasHeard) {
  LeaderUnderTest root(two_nodes_of_two, 0);
  root.on_up(1, {.expiring = {{"g", 2, kSoon}}}, 10s);
  const LeaderOutput asks = root.take(10s);
  ASSERT_EQ(asks.decisions.size(), 1u);
  EXPECT_EQ(asks.decisions[0].asked, std::vector<std::string>{"g"});
  EXPECT_EQ(root.deadline(), Duration(12s));
  root.on_up(1, {.presence = {{"g", {2}, {3}, {"rank 3 is stopped"}, true}}}, 10s);
  EXPECT_EQ(root.deadline(), Duration(12s)) << "an answer makes no warning";
  EXPECT_EQ(root.presence_of("g"), (Presence{"g", {2}, {0, 1, 3}, {"", "", "rank 3 is stopped"}}));
  const LeaderOutput ends = root.take(12s);
  EXPECT_TRUE(ends.warnings.empty());
  ASSERT_EQ(ends.expired.size(), 1u);
  EXPECT_EQ(ends.expired[0].expiring.rank, 2);
  EXPECT_EQ(ends.expired[0].presence.missing, (std::vector<int>{0, 1, 3}));
  EXPECT_TRUE(root.take(13s).expired.empty());
}

TEST(Expiring, NothingExpiresThatWasDecidedMeanwhile) {
  LeaderUnderTest root(two_nodes_of_two, 0);
  for (const int r : {0, 1}) root.on_mail(r, report("g", 8), 9s);
  root.on_mail(0, expiring("g"), 10s);
  root.take(10s);
  root.on_up(1, below("g"), 11s);
  EXPECT_EQ(root.take(11s).decisions.size(), 1u);
  EXPECT_EQ(root.deadline(), std::nullopt);
  EXPECT_TRUE(root.take(20s).expired.empty());
}

TEST(Expiring, LeadersAnswerAndPassOn) {
  LeaderUnderTest leader(four_nodes, 2);
  leader.on_mail(1, report("g", 8), 0s);
  leader.on_mail(1, expiring("g"), 10s);
  leader.on_up(3, {.expiring = {{"g", 4, kSoon}}}, 10s);
  EXPECT_EQ(leader.take(10s).up.expiring,
            (std::vector<Expiring>{{"g", 3, kSoon}, {"g", 4, kSoon}}));
  leader.on_decision({.asked = {"g", "h"}});
  const Presence below{"g", {4}, {}, {}, true};
  leader.on_up(3, {.presence = {below}}, 11s);
  const Up up = leader.take(11s).up;
  EXPECT_EQ(up.presence,
            (std::vector<Presence>{{"g", {3}, {2}, {}, true}, {"h", {}, {2, 3}, {}, true}, below}));
  EXPECT_EQ(leader.deadline(), std::nullopt);
}

}  // namespace
}  // namespace hora::internal
