#include <gtest/gtest.h>

#include "core/negotiation/known_names.h"
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

TEST(NameReports, AreFoundUntilTheyAreTaken) {
  NameReports reports;
  EXPECT_EQ(reports.find("g"), nullptr);
  reports.add("h", 2, std::nullopt);
  ReportedName& added = reports.add("g", 2, Id{5});
  EXPECT_EQ(added.locations, std::vector<Location>(2, kNowhere));
  EXPECT_EQ(reports.find("g"), &added);
  EXPECT_EQ(reports.names(), (std::vector<std::string>{"g", "h"}));
  EXPECT_EQ(reports.names_with_ids(), std::vector<std::string>{"g"});
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

}  // namespace
}  // namespace hora::internal
