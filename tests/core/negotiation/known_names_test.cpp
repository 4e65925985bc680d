// Decisions that cannot follow those before: a leader refuses them before it applies them.
#include "core/negotiation/known_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/negotiation/leader_under_test.h"

namespace hora::internal {
namespace {

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
