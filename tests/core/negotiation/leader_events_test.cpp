// A single leader: the values by which it decides, and its reactions to single events.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "core/negotiation/leader.h"
#include "tests/support/golden.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;

Signature shaped(std::int64_t extent, OperationKind kind = OperationKind::allreduce) {
  return {.kind = kind, .shape = {extent}};
}

constexpr Expiry kSoon{60s, 2s, false};

Mail mail(MailKind kind, const std::string& name = {}, const Signature& signature = {}) {
  return {.kind = kind,
          .name = name,
          .signature = signature,
          .location = {},
          .expiry = kind == MailKind::expiring ? kSoon : Expiry{}};
}
Mail report(const std::string& name, std::int64_t extent = 8) {
  return mail(MailKind::report, name, shaped(extent));
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
                  Duration warning_interval = {}, int id_capacity = 16,
                  std::size_t most_eager_bytes = 0)
      : Leader(topology, node, id_capacity,
               {.retire = [](Id, bool) { return true; },
                .ready_ranks = [this](Id) { return ready_ranks; },
                .eager = {.most_bytes = most_eager_bytes,
                          .node_sum = [](Id) { return std::vector<std::uint8_t>(32); }}},
               set, warning_interval) {}

  Up take_up(Duration now = 0s) { return take(now).up; }
  /// Reports `name` by every local rank and child, and gives the id that the root assigns.
  Id assign(const std::string& name, int local_size, const std::vector<int>& children) {
    for (int r = 0; r < local_size; ++r) on_mail(r, report(name), 0s);
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

NodeSum sum(Id id, std::size_t bytes = 32) {
  return {.id = id, .data = std::vector<std::uint8_t>(bytes)};
}

TEST(LeaderReadiness, WhatRunsAloneThreeTimesIsEagerUntilARankLeaves) {
  for (const std::int64_t extent : {8, 9}) {  // 32 bytes are the most
    LeaderUnderTest root(two_nodes_of_two, 0, kWorld, {}, 16, 32);
    for (const int rank : {0, 1}) root.on_mail(rank, report("g", extent), 0s);
    root.on_up(1, below("g", extent), 0s);
    const Id id = root.take(0s).decisions.at(0).assigned.at(0).id;
    std::vector<bool> eager;
    for (int round = 0; round < 3; ++round) {
      root.on_node_ready(id);
      root.on_up(1, ready(id), 0s);
      eager.push_back(!root.take(0s).decisions.at(0).eager.empty());
    }
    EXPECT_EQ(eager, (std::vector{false, false, extent == 8}));
    if (extent == 9) continue;

    EXPECT_FALSE(root.on_sum(1, sum(id, 31), 0s));
    for (int round = 0; round < 2; ++round) {
      root.on_node_ready(id);
      EXPECT_EQ(root.take(0s).sums, std::vector{sum(id)});
      EXPECT_TRUE(root.on_sum(1, sum(id), 0s));
      const LeaderOutput output = root.take(0s);
      EXPECT_THAT(output.complete, SizeIs(1));
      EXPECT_THAT(output.decisions, IsEmpty());
    }
    EXPECT_TRUE(root.reached(std::vector{Rounds{id, 2}}));
    EXPECT_FALSE(root.reached(std::vector{Rounds{id, 3}}));
    root.on_node_ready(id);
    root.on_up(1, {.departed = {3}}, 0s);
    EXPECT_EQ(root.take(0s).decisions.at(0).after, (std::vector{Rounds{id, 2}}));
    EXPECT_TRUE(root.on_sum(1, sum(id), 0s));
    EXPECT_THAT(root.take(0s).complete, IsEmpty()) << "its waiters have got an error";
  }
}

TEST(LeaderReadiness, AReportOfANameWithAnIdGivesTheIdUp) {
  LeaderUnderTest root(two_nodes_of_two, 0);
  const Id id = root.assign("g", 2, {1});
  root.on_up(1, ready(id), 0s);
  root.on_mail(1, report("g", 7), 0s);
  EXPECT_EQ(root.take(0s).decisions, std::vector{Decision{.retired = {id}}});
  root.on_up(1, ready(id), 0s);  // it has not read that yet
  root.on_up(1, below("g"), 0s);
  EXPECT_THAT(root.take(0s).decisions, IsEmpty());
  root.on_mail(0, report("g"), 0s);
  const Failed failed{"g", mismatch_text({"g", {{shaped(8), {0, 2, 3}}, {shaped(7), {1}}}})};
  EXPECT_EQ(root.take(0s).decisions, std::vector{Decision{.failed = {failed}}});

  LeaderUnderTest leader(two_nodes_of_two, 1);
  leader.on_decision({.assigned = {{"g", 5, {}, shaped(8)}}});
  leader.take(0s);
  for (int again = 0; again < 2; ++again) leader.on_mail(0, report("g", 7), 0s);
  EXPECT_EQ(leader.take_up().disputed, std::vector<Id>{5});
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
  EXPECT_EQ(leader.take_up().disputed, std::vector<Id>{5});
}

// A decision must fit into the node's log, however much there is to decide for however many ranks.
TEST(LeaderReadiness, LongDecisionsAreCut) {
  constexpr int kNames = 1500, kRanks = 64;
  std::vector<int> ranks(kRanks);
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto name_of = [](int n) { return std::string(1000, 'n') + std::to_string(n); };
  for (const bool agreed : {true, false}) {
    LeaderUnderTest root(Topology{{ranks}}, 0, kWorld, {}, kNames);
    for (int n = 0; n < kNames; ++n) {
      for (const int r : ranks) root.on_mail(r, report(name_of(n), agreed || r < 9 ? 8 : 7), 0s);
    }
    int told = 0;
    for (auto output = root.take(0s); !output.decisions.empty(); output = root.take(0s)) {
      for (const Decision& decision : output.decisions) {
        EXPECT_LT(encode(decision).size(), kDecisionBytes + kDecisionBytes / 4);
        EXPECT_GT(encode(decision).size(), told + 1200 < kNames ? kDecisionBytes / 2 : 0);
        for (const Assigned& assigned : decision.assigned)
          ASSERT_EQ(assigned.name, name_of(told++));
        for (const Failed& failed : decision.failed) ASSERT_EQ(failed.name, name_of(told++));
      }
    }
    EXPECT_EQ(told, kNames);
  }
}

TEST(LeaderReadiness, TellsUpWhoCameLastAndTheRootSaysOfAll) {
  LeaderUnderTest leader(Topology{{{0}, {1, 2}}}, 1);
  for (const int r : {0, 1}) leader.on_mail(r, report("g"), 0s);
  const Id own = make_id(3, 0);
  leader.on_decision({.assigned = {{"g", own, {}}}});
  leader.take(0s);
  leader.on_node_ready(own, {2, 7ms, 3ms});
  EXPECT_EQ(leader.take_up(), (Up{.ready = {own}, .last = {{2, 7ms, 3ms}}}));

  LeaderUnderTest root(two_nodes_of_two, 0);
  const Id id = root.assign("g", 2, {1});
  for (int round = 0; round < 2; ++round) {
    root.on_node_ready(id, {1, 10ms, 5ms});
    root.on_up(1, {.ready = {id}, .last = {{2, {}, 9ms}}}, 12ms);
    EXPECT_THAT(root.take(12ms).arrivals, ElementsAre(Pair(id, LastArrival{2, 12ms, 2ms})))
        << "after rank 1, round " << round;
  }
}

TEST(ReportedName, WhoHasJoinedIsNamedOnlyWhereTheOperationNeedsAll) {
  const TreePosition root(two_nodes_of_two, 0);
  JoinedRanks joined;
  joined.add({2, 3});
  for (const Signature& signature : {shaped(8), shaped(8, OperationKind::allgather)}) {
    const ReportedName reported{.local = {signature, signature}, .locations = {}};
    EXPECT_TRUE(reported.complete(joined, root));
    Report expected{"g", {{signature, {0, 1}}}};
    if (signature.kind == OperationKind::allgather) {
      expected.values.push_back({{.kind = OperationKind::join}, {2, 3}});
    }
    EXPECT_EQ(merged_report("g", reported, root), expected);
  }
}

// "g" has an id, and all ranks of the node have reported "h", one "i".
TEST(LeaderProblems, AreDecisionsThatCannotFollowThoseBefore) {
  constexpr Id kFirst = make_id(3, 0);
  LeaderUnderTest leader(two_nodes_of_two, 1);
  for (const char* name : {"g", "h"}) {
    for (const int r : {0, 1}) leader.on_mail(r, report(name), 0s);
  }
  leader.on_decision({.assigned = {{"g", kFirst, {}}}});
  leader.on_mail(0, report("i"), 0s);
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
  for (const auto& [decision, problem] : cases) EXPECT_EQ(leader.problem_in(decision), problem);
}

TEST(MismatchText, NamesTensorRanksAndTheFieldsThatDiffer) {
  const Shape shape = {3, 4};
  std::string texts;
  for (const Signature& other : {Signature{.shape = {3, 5}},
                                 {.kind = OperationKind::broadcast, .shape = shape},
                                 {.type = DataType::bfloat16, .shape = shape},
                                 {.shape = {12}},
                                 {.op = ReduceOp::average, .shape = shape},
                                 {.shape = shape, .prescale = 2},
                                 {.shape = shape, .postscale = 2},
                                 {.root = 1, .shape = shape},
                                 {.device = DeviceKind::cuda, .shape = shape},
                                 {.kind = OperationKind::broadcast,
                                 .type = DataType::int64,
                                 .op = ReduceOp::average,
                                 .device = DeviceKind::cuda,
                                 .root = 2}}) {
    texts += mismatch_text({"layer1.weight", {{{.shape = shape}, {0, 1, 2}}, {other, {3}}}}) + "\n";
  }
  using enum OperationKind;
  texts += mismatch_text({"x", {{shaped(8, allgather), {0, 1}}, {shaped(8, join), {2}}}}) + "\n";
  // At most eight values.
  Report report{"g", {}};
  for (int rank = 0; rank < 11; ++rank) {
    report.values.push_back({shaped(100 + rank), {rank}});
    if (rank == 7 || rank == 10) texts += mismatch_text(report) + "\n";
  }
  test::expect_golden("core/negotiation/texts.txt", "mismatches", texts);
  const std::string long_name(std::size_t{1} << 20, 'n');
  EXPECT_LT(mismatch_text({long_name, {{shaped(1), {0}}, {shaped(2), {1}}}}).size(), 2000u);
}

TEST(OverdueText, NamesTensorsAndRanks) {
  std::string texts;
  const auto add = [&](ProcessSet set, const std::vector<Presence>& tensors,
                       const std::vector<int>& ranks = {}) {
    texts += overdue_text(set, tensors, ranks) + "\n";
  };
  add(kWorld, {{"late", {0, 2, 3}, {1}}});
  add(ProcessSet(3), {{"late", {0, 2, 3}, {1}}});
  // Tensors that wait for the same ranks are named together.
  std::vector<Presence> tensors;
  for (int i = 0; i < 7; ++i) tensors.push_back({"b" + std::to_string(i), {0}, {1, 2}});
  tensors.push_back({"loss", {0, 1}, {2}});
  add(kWorld, tensors);
  for (int i = 0; i < 50; ++i) tensors.push_back({"t" + std::to_string(i), {i}, {i + 1}});
  add(kWorld, tensors);
  // Nodes that are silent.
  add(kWorld, {{"x\n", {0}, {2}}}, {0, 1, 2, 6});
  add(kWorld, {{"x", {0, 2}, {}}}, {0, 1, 2, 6});
  test::expect_golden("core/negotiation/texts.txt", "overdue", texts);
}
// Five nodes: 0 has the children 1, 2, 4; 3 is below 2.
const Topology five_nodes{{{0}, {1}, {2, 3}, {4, 5}, {6}}};

TEST(Overdue, NamesTheRanksThatLackANewTensorOnceOthersHaveHadTime) {
  LeaderUnderTest root(five_nodes, 0);
  root.on_mail(0, report("late"), 0s);
  root.on_mail(0, mail(MailKind::overdue, "late"), 1s);
  const LeaderOutput first = root.take(1s);
  EXPECT_THAT(first.warnings, IsEmpty());
  EXPECT_EQ(first.decisions, std::vector{Decision{.asked = {"late"}}});
  const auto when = root.deadline().value();
  root.on_up(2, {.presence = {{"late", {3, 4}, {2, 5}}}}, 1s);
  EXPECT_THAT(root.take(when).warnings,
              ElementsAre(HasSubstr("\"late\" is waited for by ranks 0, 3, 4 and has not been "
                                    "submitted by ranks 2, 5, by ranks 1, 6 (nothing heard")));
  EXPECT_EQ(root.deadline(), std::nullopt);
}

TEST(Overdue, BetweenTwoWarningsIsTheInterval) {
  LeaderUnderTest root(two_nodes_of_two, 0, kWorld, 10s);
  root.on_mail(0, report("a"), 0s);
  root.on_mail(0, mail(MailKind::overdue, "a"), 10s);
  const auto first = root.deadline().value();
  EXPECT_THAT(root.take(first).warnings, SizeIs(1));
  // Another rank has submitted later, and reports the same tensor later.
  root.on_up(1, {.presence = {{"a", {2}, {3}}}}, 13s);
  EXPECT_EQ(root.deadline(), first + 10s);
  EXPECT_THAT(root.take(19s).warnings, IsEmpty());
  root.on_mail(0, mail(MailKind::overdue, "a"), 20s);
  EXPECT_THAT(root.take(first + 10s).warnings,
              ElementsAre(HasSubstr("waited for by ranks 0, 2 and has not")));
}

TEST(Overdue, ALeaderTellsItsParentWhatItKnowsOfItsSubtree) {
  LeaderUnderTest leader(five_nodes, 2), silent(five_nodes, 2);
  leader.on_mail(1, report("late"), 0s);
  leader.on_up(3, below("late"), 0s);
  leader.on_mail(1, mail(MailKind::overdue, "late"), 1s);
  EXPECT_THAT(leader.take_up(1s).presence, ElementsAre(Presence{"late", {3, 4, 5}, {2}}));
  silent.on_up(3, {.presence = {{"late", {5}, {4}}}}, 1s);
  EXPECT_THAT(silent.take_up(1s).presence, ElementsAre(Presence{"late", {5}, {2, 3, 4}}))
      << "its own ranks are not ready";
}

TEST(Overdue, ASubtreeThatIsReadyForAKnownNameStillComplains) {
  LeaderUnderTest leader(two_nodes_of_two, 1);
  for (const int r : {0, 1}) leader.on_mail(r, report("g"), 0s);
  leader.on_decision({.assigned = {{"g", 5, {}}}});
  leader.take(0s);
  leader.on_node_ready(5);
  EXPECT_EQ(leader.take_up().ready, std::vector<Id>{5});
  leader.on_mail(0, mail(MailKind::overdue, "g"), 1s);
  // No other node tells the root of it; that it is ready is not told twice.
  EXPECT_EQ(leader.take_up(1s), (Up{.presence = {{"g", {2, 3}, {}}}}));
  // Once it has run, a report that was under way means nothing.
  leader.on_decision({.run = {5}});
  leader.on_mail(0, mail(MailKind::overdue, "g"), 2s);
  EXPECT_TRUE(leader.take_up(2s).empty());
}

TEST(OverdueAndExpiring, EndWithADecision) {
  for (const MailKind kind : {MailKind::overdue, MailKind::expiring}) {
    LeaderUnderTest root(two_nodes_of_two, 0);
    for (const int r : {0, 1}) root.on_mail(r, report("g"), 9s);
    root.on_mail(0, mail(kind, "g"), 10s);
    root.take(10s);
    root.on_up(1, below("g"), 11s);
    EXPECT_THAT(root.take(11s).decisions, SizeIs(1));
    EXPECT_EQ(root.deadline(), std::nullopt);
    const LeaderOutput later = root.take(20s);
    EXPECT_TRUE(later.warnings.empty() && later.expired.empty());
  }
}

TEST(Expiring, TheRootAsksAndSaysWhatItHasHeard) {
  LeaderUnderTest root(two_nodes_of_two, 0);
  root.on_up(1, {.expiring = {{"g", 2, kSoon}}}, 10s);
  EXPECT_EQ(root.take(10s).decisions, std::vector{Decision{.asked = {"g"}}});
  EXPECT_EQ(root.deadline(), Duration(12s));
  root.on_up(1, {.presence = {{"g", {2}, {3}, {"rank 3 is stopped"}, true}}}, 10s);
  EXPECT_EQ(root.deadline(), Duration(12s)) << "an answer makes no warning";
  const Presence heard{"g", {2}, {0, 1, 3}, {"", "", "rank 3 is stopped"}};
  EXPECT_EQ(root.presence_of("g"), heard);
  const LeaderOutput ends = root.take(12s);
  EXPECT_THAT(ends.warnings, IsEmpty());
  ASSERT_THAT(ends.expired, SizeIs(1));
  EXPECT_EQ(ends.expired[0].expiring.rank, 2);
  EXPECT_EQ(ends.expired[0].presence.missing, heard.missing);
  EXPECT_THAT(root.take(13s).expired, IsEmpty());
}

TEST(Expiring, LeadersAnswerAndPassOn) {
  LeaderUnderTest leader(Topology{{{0}, {1}, {2, 3}, {4}}}, 2);
  leader.on_mail(1, report("g"), 0s);
  leader.on_mail(1, mail(MailKind::expiring, "g"), 10s);
  leader.on_up(3, {.expiring = {{"g", 4, kSoon}}}, 10s);
  EXPECT_THAT(leader.take_up(10s).expiring,
              ElementsAre(Expiring{"g", 3, kSoon}, Expiring{"g", 4, kSoon}));
  leader.on_decision({.asked = {"g", "h"}});
  const Presence below{"g", {4}, {}, {}, true};
  leader.on_up(3, {.presence = {below}}, 11s);
  EXPECT_THAT(
      leader.take_up(11s).presence,
      ElementsAre(Presence{"g", {3}, {2}, {}, true}, Presence{"h", {}, {2, 3}, {}, true}, below));
  EXPECT_EQ(leader.deadline(), std::nullopt);
}

}  // namespace
}  // namespace hora::internal
