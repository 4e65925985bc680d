// Decisions that cannot follow those before: a leader refuses them before it applies them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/negotiation/leader_under_test.h"

namespace hora::internal {
namespace {

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
