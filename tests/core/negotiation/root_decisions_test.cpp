#include "core/negotiation/root_decisions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/negotiation/leader_under_test.h"

namespace hora::internal {
namespace {

using test::shaped;
using testing::ElementsAre;
using testing::Field;

/// The root of one node of two ranks, with ids for two names.
class RootDecisionsTest : public testing::Test {
 protected:
  /// All ranks have reported it alike.
  void agree(const std::string& name) {
    const Report report{name, {{shaped(8), {0, 1}}}};
    names_.reports.add(name, 2, names_.ids.id_of(name)).merged = report;
    root_.decide(report, names_.ids.id_of(name));
  }
  /// The next decision, as a leader carries it out.
  Decision next() {
    root_.assign_ids(names_, use_, with_signatures_);
    Decision decision = root_.take().value_or(Decision{});
    for (const Assigned& assigned : decision.assigned) {
      names_.reports.erase(assigned.name);
      names_.ids.assign(assigned.id, assigned.name, shaped(8));
    }
    return decision;
  }

  bool idle_ = true;
  bool with_signatures_ = false;
  IdUse use_{.retire = [this](Id, bool only_idle) { return idle_ || !only_idle; },
             .last_run = [](Id) { return std::uint64_t{0}; },
             .ready_ranks = {}};
  KnownNames names_;
  RootDecisions root_{2, 2};
};

TEST_F(RootDecisionsTest, AreNumberedAndThereIsNoneOfNothing) {
  EXPECT_EQ(root_.take(), std::nullopt);
  root_.run(4, false);
  EXPECT_EQ(root_.take(), (Decision{.number = 0, .run = {4}}));
  EXPECT_EQ(root_.take(), std::nullopt);
  root_.ask({"g"});
  EXPECT_EQ(root_.take(), (Decision{.number = 1, .asked = {"g"}}));
  root_.all_joined(1);
  EXPECT_EQ(root_.take(), (Decision{.number = 2, .all_joined = true, .last_joined = 1}));
}

TEST_F(RootDecisionsTest, AreFinishedWithTheLastRankThatDeparts) {
  root_.depart({1});
  EXPECT_EQ(root_.take(), (Decision{.number = 0, .departed = {1}}));
  root_.depart({0});
  EXPECT_EQ(root_.take(), (Decision{.number = 1, .departed = {0}, .finished = true}));
}

TEST_F(RootDecisionsTest, GiveAgreedNamesIdsInTheOrderOfAgreement) {
  agree("z");
  agree("a");
  EXPECT_THAT(next().assigned,
              ElementsAre(Field(&Assigned::name, "z"), Field(&Assigned::name, "a")));
}

TEST_F(RootDecisionsTest, CarrySignaturesWhereRanksMayNotKnowTheNames) {
  with_signatures_ = true;
  agree("g");
  EXPECT_EQ(next().assigned.at(0).signature, shaped(8));
}

TEST_F(RootDecisionsTest, GiveUpAnIdForANameWhereAllAreInUse) {
  for (const char* name : {"a", "b"}) agree(name);
  next();
  idle_ = false;
  agree("c");
  const Decision decision = next();
  EXPECT_THAT(decision.retired, ElementsAre(make_id(0, 0)));
  ASSERT_EQ(decision.assigned.size(), 1u);
  EXPECT_EQ(decision.assigned[0].id, make_id(0, 1));
  EXPECT_EQ(names_.ids.id_of("a"), std::nullopt);
}

TEST_F(RootDecisionsTest, LetANameWaitWhileEveryIdIsDecidedToRun) {
  for (const char* name : {"a", "b"}) agree(name);
  next();
  for (const Id id : {0u, 1u}) names_.ids.find(id)->forwarded = true;
  agree("c");
  EXPECT_TRUE(next().empty());
  names_.ids.clear_ready(1);
  EXPECT_THAT(next().retired, ElementsAre(make_id(1, 0)));
}

TEST_F(RootDecisionsTest, GiveANameWithAnotherSignatureTheNextIdOfItsSlot) {
  agree("a");
  next();
  agree("a");
  const Decision decision = next();
  EXPECT_THAT(decision.retired, ElementsAre(make_id(0, 0)));
  EXPECT_EQ(decision.assigned.at(0).id, make_id(0, 1));
}

TEST_F(RootDecisionsTest, SayWhatRanksDisagreeAbout) {
  root_.decide({"g", {{shaped(8), {0}}, {shaped(7), {1}}}}, Id{1});
  const Decision decision = next();
  ASSERT_EQ(decision.failed.size(), 1u);
  EXPECT_EQ(decision.failed[0].name, "g");
  EXPECT_THAT(decision.failed[0].text, testing::HasSubstr("disagree about its shape"));
  EXPECT_TRUE(decision.failed[0].has_id);
  EXPECT_EQ(decision.failed[0].id, Id{1});
}

}  // namespace
}  // namespace hora::internal
