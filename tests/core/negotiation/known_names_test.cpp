// Decisions that cannot follow those before: a leader refuses them before it applies them.
#include "core/negotiation/known_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/negotiation/leader_under_test.h"

namespace hora::internal {
namespace {

// Node 0 has the children 1, 2; 3 is below 2.
const TreePosition root_of_four_nodes({{{0, 5}, {1}, {2}, {3, 4}}}, 0);

TEST(JoinedRanks, ALocalRankIsABit) {
  JoinedRanks joined;
  EXPECT_EQ(joined.of_node(root_of_four_nodes), 0u);
  joined.add({5});
  joined.add({1});
  EXPECT_EQ(joined.of_node(root_of_four_nodes), 0b10u);
  joined.add({0});
  EXPECT_EQ(joined.of_node(root_of_four_nodes), root_of_four_nodes.whole_node());
}

TEST(JoinedRanks, AChildIsPresentOnceItsWholeSubtreeHasJoined) {
  JoinedRanks joined;
  EXPECT_FALSE(joined.all_below(1, root_of_four_nodes));
  joined.add({2, 3});
  EXPECT_FALSE(joined.all_below(2, root_of_four_nodes)) << "rank 4 is below node 2, too";
  joined.add({4});
  EXPECT_TRUE(joined.all_below(2, root_of_four_nodes));
  EXPECT_FALSE(joined.all_below(1, root_of_four_nodes));
}

TEST(JoinedRanks, KnowsTheLastUntilAllHaveJoinedAndBeyond) {
  JoinedRanks joined;
  EXPECT_TRUE(joined.empty());
  joined.add({3, 0});
  joined.add({2, 1});
  EXPECT_EQ(joined.size(), 4u);
  EXPECT_TRUE(joined.contains(2));
  EXPECT_FALSE(joined.contains(4));
  EXPECT_EQ(joined.last(), 1);
  joined.clear();
  EXPECT_TRUE(joined.empty());
  EXPECT_EQ(joined.last(), 1);
}

using test::shaped;
using testing::UnorderedElementsAre;

const TreePosition root_of_two_nodes(test::two_nodes_of_two, 0);

IdUse use_with(LocalRanks ready) {
  return {.retire = {}, .last_run = {}, .ready_ranks = [ready](Id) { return ready; }};
}

TEST(IdTable, FindsANameByItsIdAndBack) {
  IdTable table;
  table.assign(3, "g", shaped(8));
  EXPECT_EQ(table.id_of("g"), Id{3});
  EXPECT_EQ(table.at(3).name, "g");
  EXPECT_EQ(table.at(3).signature, shaped(8));
  EXPECT_EQ(table.id_of("h"), std::nullopt);
  EXPECT_EQ(table.find(4), nullptr);
}

TEST(IdTable, OfAnIdThatIsGivenUpNothingIsLeft) {
  IdTable table;
  table.assign(3, "g", shaped(8));
  EXPECT_EQ(table.give_up(3), "g");
  EXPECT_EQ(table.id_of("g"), std::nullopt);
  EXPECT_EQ(table.find(3), nullptr);
  EXPECT_EQ(table.give_up(3), std::nullopt);
}

TEST(IdTable, ReadyIdsAreThoseOfANodeOrAChildUntilTheyHaveRun) {
  IdTable table;
  for (const Id id : {0u, 1u, 2u}) table.assign(id, "t" + std::to_string(id), shaped(8));
  EXPECT_TRUE(table.ready_ids().empty());
  table.find(0)->node_ready = true;
  table.find(2)->ready_below.insert(1);
  EXPECT_THAT(table.ready_ids(), UnorderedElementsAre(0, 2));
  table.clear_ready(0);
  table.clear_ready(7);
  EXPECT_THAT(table.ready_ids(), UnorderedElementsAre(2));
}

TEST(IdTable, AFullMaskCountsOnlyOnceItIsAnnounced) {
  IdTable table;
  table.assign(3, "g", shaped(8));
  EXPECT_EQ(table.ready_by(3, use_with(0b10), root_of_two_nodes).local, 0b10u);
  EXPECT_EQ(table.ready_by(3, use_with(0b11), root_of_two_nodes).local, 0u);
  table.find(3)->node_ready = true;
  EXPECT_EQ(table.ready_by(3, use_with(0), root_of_two_nodes).local, 0b11u);
}

TEST(KnownId, IsCompleteOnceItsNodeAndEveryChildIsReadyOrHasJoined) {
  JoinedRanks joined;
  KnownId known{.name = "g", .signature = shaped(8)};
  known.node_ready = true;
  EXPECT_FALSE(known.complete(joined, root_of_two_nodes));
  joined.add({2});
  EXPECT_FALSE(known.complete(joined, root_of_two_nodes));
  joined.add({3});
  EXPECT_TRUE(known.complete(joined, root_of_two_nodes));
  EXPECT_FALSE(known.all_came(root_of_two_nodes));
  known.ready_below.insert(1);
  EXPECT_TRUE(known.all_came(root_of_two_nodes));
}

using test::shaped;

const TreePosition reporting_root(test::two_nodes_of_two, 0);

ReportedName nothing_yet() {
  return {.local = std::vector<std::optional<Signature>>(2), .locations = {}};
}

TEST(ReportedName, IsCompleteOnceEveryLocalRankAndChildHasReportedIt) {
  ReportedName reported = nothing_yet();
  reported.local[1] = shaped(8);
  EXPECT_EQ(reported.local_ranks(), 0b10u);
  reported.below[1] = {"g", {{shaped(8), {}}}};
  EXPECT_FALSE(reported.complete(nullptr, {}, reporting_root));
  reported.local[0] = shaped(8);
  EXPECT_TRUE(reported.complete(nullptr, {}, reporting_root));
  EXPECT_EQ(merged_report("g", reported, nullptr, reporting_root),
            (Report{"g", {{shaped(8), {0, 1, 2, 3}}}}));
}

TEST(ReportedName, WhoIsReadyForItsIdCountsAsAReportOfTheIdsSignature) {
  const KnownId known{.name = "g", .signature = shaped(8), .ready_below = {1}};
  const ReadyById by_id{5, 0b01, known};
  ReportedName reported = nothing_yet();
  reported.local[1] = shaped(7);
  reported.id = 5;
  EXPECT_FALSE(reported.complete(nullptr, {}, reporting_root));
  EXPECT_TRUE(reported.complete(&by_id, {}, reporting_root));
  EXPECT_EQ(merged_report("g", reported, &by_id, reporting_root),
            (Report{"g", {{shaped(8), {0, 2, 3}}, {shaped(7), {1}}}, Id{5}}));
}

TEST(ReportedName, WhoHasJoinedIsNamedOnlyWhereTheOperationNeedsAll) {
  Signature gathered = shaped(8);
  gathered.kind = OperationKind::allgather;
  Signature join;
  join.kind = OperationKind::join;
  JoinedRanks joined;
  joined.add({2, 3});
  for (const Signature& signature : {shaped(8), gathered}) {
    ReportedName reported = nothing_yet();
    for (auto& local : reported.local) local = signature;
    EXPECT_TRUE(reported.complete(nullptr, joined, reporting_root));
    Report expected{"g", {{signature, {0, 1}}}};
    if (signature == gathered) expected.values.push_back({join, {2, 3}});
    EXPECT_EQ(merged_report("g", reported, nullptr, reporting_root), expected);
  }
}

TEST(NameReports, AreFoundUntilTheyAreTaken) {
  NameReports reports;
  EXPECT_EQ(reports.find("g"), nullptr);
  reports.add("h", 2, std::nullopt);
  ReportedName& added = reports.add("g", 2, Id{5});
  EXPECT_EQ(added.locations, std::vector<Location>(2, kNowhere));
  EXPECT_EQ(reports.find("g"), &added);
  EXPECT_EQ(reports.names(), (std::vector<std::string>{"g", "h"}));
  EXPECT_EQ(reports.names(true), std::vector<std::string>{"g"});
  EXPECT_EQ(reports.take("g")->id, Id{5});
  EXPECT_EQ(reports.take("g"), std::nullopt);
}

TEST(NameReports, WhatCountedAnIdIsVoidOnceItIsGivenUp) {
  NameReports reports;
  ReportedName& reported = reports.add("g", 2, Id{5});
  reported.below[1] = {"g", {{shaped(8), {}}}, Id{5}};
  reported.below[2] = {"g", {{shaped(8), {}}}};
  reported.merged = {"g", {{shaped(8), {}}}, Id{5}};
  reports.uncount("g", 5);
  EXPECT_EQ(reported.id, std::nullopt);
  EXPECT_FALSE(reported.below.contains(1));
  EXPECT_TRUE(reported.below.contains(2));
  EXPECT_EQ(reported.merged, std::nullopt);
  reports.uncount("h", 5);
}

using namespace std::chrono_literals;
using test::LeaderUnderTest;
using test::report;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr Id kFirst = make_id(3, 0);

/// The second of two nodes, where "g" has an id, and all ranks have reported "h", one "i".
class LeaderProblems : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"g", "h"}) {
      for (int r = 0; r < 2; ++r) seat_.leader.on_mail(r, report(name, 8), 0s);
    }
    seat_.leader.on_decision({.assigned = {{"g", kFirst, {}}}});
    seat_.leader.on_mail(0, report("i", 8), 0s);
  }
  std::string problem(const Decision& decision) const { return seat_.leader.problem_in(decision); }

  LeaderUnderTest seat_{test::two_nodes_of_two, 1};
};

TEST_F(LeaderProblems, WhatFollowsHasNone) {
  EXPECT_THAT(problem({}), IsEmpty());
  EXPECT_THAT(problem({.run = {kFirst}}), IsEmpty());
  EXPECT_THAT(problem({.assigned = {{"h", 5, {}}}}), IsEmpty());
  EXPECT_THAT(problem({.retired = {kFirst}, .assigned = {{"h", kFirst + (1 << 16), {}}}}),
              IsEmpty());
  EXPECT_THAT(problem({.retired = {kFirst}, .assigned = {{"g", kFirst + (1 << 16), {}}}}),
              IsEmpty());
  EXPECT_THAT(problem({.failed = {{"h", "why"}}}), IsEmpty());
}

TEST_F(LeaderProblems, AnIdThatNoNameHas) {
  EXPECT_THAT(problem({.run = {kFirst, 4}}), HasSubstr("id 4"));
  EXPECT_THAT(problem({.retired = {4}}), HasSubstr("id 4"));
  EXPECT_THAT(problem({.retired = {kFirst + (1 << 16)}}), HasSubstr("given up"));
}

TEST_F(LeaderProblems, ANameThatHasAnIdGetsAnother) {
  EXPECT_THAT(problem({.assigned = {{"g", 5, {}}}}), HasSubstr("\"g\", which has id 3"));
}

TEST_F(LeaderProblems, AnIdThatANameHasIsGivenToAnother) {
  EXPECT_THAT(problem({.assigned = {{"h", kFirst, {}}}}), HasSubstr("which \"g\" has"));
}

TEST_F(LeaderProblems, ANameIsDecidedBeforeAllRanksHaveReportedIt) {
  EXPECT_THAT(problem({.assigned = {{"i", 5, {}}}}), HasSubstr("\"i\", which not all ranks"));
}

}  // namespace

}  // namespace hora::internal
