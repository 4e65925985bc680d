#include "core/launch/rendezvous/roster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hora::launch {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

JoinRequest node(const std::string& host, std::optional<int> rank, int nodes = 4) {
  return {"0.1.0", "job", host, nodes, rank, 2};
}

std::vector<std::string> hosts_of(const Roster& roster) {
  std::vector<std::string> hosts;
  for (const Node& each : roster.nodes()) hosts.push_back(each.host);
  return hosts;
}

std::string error_of(Roster& roster, const JoinRequest& request) {
  const auto ticket = roster.add(request, "10.0.0.9");
  EXPECT_FALSE(ticket);
  return ticket ? "" : ticket.error();
}

TEST(Roster, NamesTheNodesThatAreMissing) {
  Roster roster(node("a", 0), "10.0.0.1");
  EXPECT_EQ(roster.missing(), "nodes 1, 2, 3 of 4");
  ASSERT_TRUE(roster.add(node("c", 2), "10.0.0.3"));
  EXPECT_EQ(roster.missing(), "nodes 1, 3 of 4");
  ASSERT_TRUE(roster.add(node("b", 1), "10.0.0.2"));
  EXPECT_EQ(roster.missing(), "node 3 of 4");
  EXPECT_FALSE(roster.complete());
  ASSERT_TRUE(roster.add(node("d", 3), "10.0.0.4"));
  EXPECT_TRUE(roster.complete());
  EXPECT_THAT(hosts_of(roster), ElementsAre("a", "b", "c", "d"));
  EXPECT_THAT(roster.order(), ElementsAre(0U, 2U, 1U, 3U));
  EXPECT_EQ(roster.nodes()[2], (Node{"c", "10.0.0.3", 2}));
}

TEST(Roster, ManyMissingNodesAreNotAllListed) {
  const Roster roster(node("a", 0, 100), "10.0.0.1");
  EXPECT_THAT(roster.missing(), testing::EndsWith("15, 16 and 83 more of 100"));
}

TEST(Roster, WithoutRanksTheOrderOfArrivalCounts) {
  Roster roster(node("z", {}, 3), "10.0.0.1");
  EXPECT_EQ(roster.missing(), "2 of 3 nodes");
  const auto left = roster.add(node("y", {}, 3), "10.0.0.2");
  ASSERT_TRUE(left);
  roster.remove(*left);
  ASSERT_TRUE(roster.add(node("x", {}, 3), "10.0.0.3"));
  EXPECT_FALSE(roster.complete());
  ASSERT_TRUE(roster.add(node("w", {}, 3), "10.0.0.4"));
  EXPECT_TRUE(roster.complete());
  EXPECT_THAT(hosts_of(roster), ElementsAre("z", "x", "w"));
}

TEST(Roster, ANodeThatHasGoneMayComeAgain) {
  Roster roster(node("a", 0, 2), "10.0.0.1");
  const auto ticket = roster.add(node("b", 1, 2), "10.0.0.2");
  ASSERT_TRUE(ticket && roster.complete());
  roster.remove(*ticket);
  EXPECT_EQ(roster.missing(), "node 1 of 2");
  EXPECT_TRUE(roster.add(node("b", 1, 2), "10.0.0.2"));
}

TEST(Roster, TwoNodesOfOneRankAreNamedWithBothHosts) {
  Roster roster(node("a", 0), "10.0.0.1");
  ASSERT_TRUE(roster.add(node("b", 2), "10.0.0.2"));
  EXPECT_THAT(error_of(roster, node("c", 2)),
              AllOf(HasSubstr("host b (10.0.0.2)"), HasSubstr("host c (10.0.0.9)"),
                    HasSubstr("--node-rank 2"), HasSubstr("0 to 3")));
  EXPECT_THAT(error_of(roster, node("c", 0)), AllOf(HasSubstr("host a"), HasSubstr("host c")));
}

TEST(Roster, WhatDiffersBetweenNodesIsNamedWithBothHosts) {
  Roster roster(node("a", 0), "10.0.0.1");
  EXPECT_THAT(error_of(roster, node("b", 1, 3)),
              AllOf(HasSubstr("host b"), HasSubstr("--nnodes 3"), HasSubstr("host a"),
                    HasSubstr("--nnodes 4")));
  JoinRequest other = node("b", 1);
  other.version = "0.2.0";
  EXPECT_THAT(error_of(roster, other),
              AllOf(HasSubstr("has hora 0.2.0"), HasSubstr("host a has 0.1.0")));
  other = node("b", 1);
  other.job = "second";
  EXPECT_THAT(error_of(roster, other), HasSubstr("for the job second, host a for job"));
  EXPECT_THAT(error_of(roster, node("b", {})),
              HasSubstr("host a was started with --node-rank, host b (10.0.0.9) without"));
  EXPECT_THAT(error_of(roster, node("b", 4)), HasSubstr("node ranks are 0 to 3"));
  Roster unranked(node("a", {}), "10.0.0.1");
  EXPECT_THAT(error_of(unranked, node("b", 1)),
              HasSubstr("host b (10.0.0.9) was started with --node-rank, host a without"));
}

TEST(Roster, OfOneNodeIsCompleteAtOnce) {
  EXPECT_TRUE(Roster(node("a", 0, 1), "10.0.0.1").complete());
  EXPECT_TRUE(Roster(node("a", {}, 1), "10.0.0.1").complete());
}

}  // namespace
}  // namespace hora::launch
