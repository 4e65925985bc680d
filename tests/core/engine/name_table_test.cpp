#include <gtest/gtest.h>

#include "core/engine/operations.h"

namespace hora::internal {
namespace {

std::shared_ptr<Submission> submission(const std::string& name, std::int64_t extent = 8) {
  auto result = std::make_shared<Submission>();
  result->name = name;
  result->signature.shape = {extent};
  return result;
}

constexpr Id kId = make_id(2, 5);

class NameTableOfOneName : public testing::Test {
 protected:
  /// "g" with an id, nothing of it in flight.
  void SetUp() override {
    const auto first = submission("g");
    ASSERT_TRUE(table_.enter(first));
    ASSERT_EQ(table_.assign("g", kId), first);
    table_.leave(*first);
  }
  /// As an engine that finds the id does.
  std::shared_ptr<Submission> ready() {
    auto result = submission("g");
    EXPECT_TRUE(table_.enter(result));
    result->id = kId;
    table_.set_waiting(kId, result);
    return result;
  }
  NameTable table_{8};
};

TEST_F(NameTableOfOneName, AnotherIdReplacesTheFirst) {
  const auto again = submission("g");
  ASSERT_TRUE(table_.enter(again));
  ASSERT_EQ(table_.assign("g", kId + 1), again);
  EXPECT_EQ(table_.signature_of(kId), nullptr);
  EXPECT_NE(table_.signature_of(kId + 1), nullptr);
  table_.leave(*again);
  EXPECT_EQ(table_.retire(kId + 1), nullptr);
  EXPECT_EQ(table_.signature_of(kId), nullptr) << "of a name that is gone";
  EXPECT_TRUE(table_.names_of_ids().empty());
}

TEST(NameTable, ANameIsInFlightOnce) {
  NameTable table(4);
  const auto first = submission("g");
  const auto second = submission("g");
  EXPECT_TRUE(table.enter(first));
  EXPECT_FALSE(table.enter(second));
  table.leave(*second);
  EXPECT_FALSE(table.enter(second)) << "only its owner frees a name";
  table.leave(*first);
  EXPECT_TRUE(table.enter(second));
}

TEST(NameTable, UnnamedIsTheLowestFreeSlot) {
  NameTable table(4);
  std::vector<std::shared_ptr<Submission>> open;
  for (const char* name : {"p.0", "p.1", "p.3"}) {
    open.push_back(submission(name));
    table.enter(open.back());
  }
  EXPECT_EQ(table.unnamed("p"), "p.2");
  table.leave(*open[0]);
  EXPECT_EQ(table.unnamed("p"), "p.0");
  EXPECT_EQ(table.unnamed("q"), "q.0");
}

TEST_F(NameTableOfOneName, KeepsIdAndSignatureWhenTheNameIsFree) {
  const auto changed = submission("g", 9);
  ASSERT_TRUE(table_.enter(changed));
  EXPECT_EQ(changed->entry->id, kId);
  EXPECT_EQ(changed->entry->signature.shape, Shape{8});
}

TEST_F(NameTableOfOneName, ASubmissionIsUsedAgainOnceNothingRefersToIt) {
  auto own = table_.enter_again("g");
  ASSERT_NE(own, nullptr);
  Submission* const same = own.get();
  own->decided = own->orphaned = true;
  own->number = 3;
  own->state.store(Submission::kFailed);
  own->error.emplace(ErrorCode::mismatch, "of the call before");
  EXPECT_EQ(table_.enter_again("g"), nullptr) << "in flight";
  table_.leave(*own);
  EXPECT_EQ(own->entry, nullptr);
  EXPECT_EQ(table_.enter_again("g"), nullptr) << "a handle refers to it";
  own.reset();
  const auto again = table_.enter_again("g");
  ASSERT_EQ(again.get(), same);
  EXPECT_EQ(again->entry->id, kId);
  EXPECT_EQ(again->id, std::nullopt);
  EXPECT_FALSE(again->decided || again->orphaned || again->finished() || again->error);
  EXPECT_EQ(again->number, 0);
  EXPECT_EQ(table_.enter_again("g"), nullptr);
  EXPECT_EQ(table_.enter_again("unknown"), nullptr);
}

TEST_F(NameTableOfOneName, AnotherSubmissionIsUsedAgainWhileOneIsHeld) {
  const auto held = table_.enter_again("g");
  ASSERT_NE(held, nullptr);
  table_.leave(*held);
  auto own = submission("g");
  ASSERT_TRUE(table_.enter(own));
  table_.leave(*own);
  Submission* const same = own.get();
  own.reset();
  for (int call = 0; call < 3; ++call) {
    auto again = table_.enter_again("g");
    ASSERT_EQ(again.get(), same);
    table_.leave(*again);
  }
  auto third = submission("g");
  ASSERT_TRUE(table_.enter(third));
  table_.leave(*third);
  EXPECT_EQ(third.use_count(), 1) << "two are enough";
}

TEST_F(NameTableOfOneName, WaitingIsFoundByTheWholeIdOnly) {
  const auto own = ready();
  EXPECT_EQ(table_.waiting_for(kId), own);
  EXPECT_EQ(table_.waiting_for(make_id(2, 6)), nullptr) << "the slot's next generation";
  table_.set_waiting(kId, nullptr);
  EXPECT_EQ(table_.waiting_for(kId), nullptr);
}

TEST_F(NameTableOfOneName, AssignFindsOnlyAnUndecidedSubmission) {
  EXPECT_EQ(table_.assign("unknown", 1), nullptr);
  EXPECT_EQ(table_.assign("g", 1), nullptr) << "nothing in flight";
  const auto decided = submission("g");
  ASSERT_TRUE(table_.enter(decided));
  decided->decided = true;
  EXPECT_EQ(table_.assign("g", 1), nullptr);
}

TEST_F(NameTableOfOneName, RetiringGivesBackWhoMustReport) {
  const auto own = ready();
  EXPECT_EQ(table_.retire(kId), own);
  EXPECT_EQ(own->id, std::nullopt);
  EXPECT_EQ(table_.waiting_for(kId), nullptr);
  EXPECT_EQ(own->entry->id, std::nullopt);
  EXPECT_EQ(table_.retire(kId), nullptr) << "the second time it names nothing";
}

TEST_F(NameTableOfOneName, RetiringForgetsANameThatIsNotInFlight) {
  EXPECT_EQ(table_.retire(kId), nullptr);
  EXPECT_EQ(table_.enter_again("g"), nullptr);
  const auto fresh = submission("g");
  ASSERT_TRUE(table_.enter(fresh));
  EXPECT_EQ(fresh->entry->id, std::nullopt);
}

TEST_F(NameTableOfOneName, RetiringLeavesWhoHasReportedOrRuns) {
  const auto changed = submission("g", 9);
  ASSERT_TRUE(table_.enter(changed));  // reported by name, without the id
  EXPECT_EQ(table_.retire(kId), nullptr);
  EXPECT_EQ(changed->entry->id, std::nullopt);

  const Id next = make_id(3, 0);
  ASSERT_EQ(table_.assign("g", next), changed);
  changed->decided = true;
  EXPECT_EQ(table_.retire(next), nullptr) << "it is running";
}

TEST_F(NameTableOfOneName, ARetiredIdsNextNameIsLeftAlone) {
  EXPECT_EQ(table_.retire(kId), nullptr);
  const auto other = submission("h");
  ASSERT_TRUE(table_.enter(other));
  ASSERT_EQ(table_.assign("h", make_id(2, 6)), other);
  EXPECT_EQ(table_.retire(kId), nullptr);
  EXPECT_EQ(other->entry->id, make_id(2, 6));
}

TEST_F(NameTableOfOneName, TakingAFailedOneStopsItsWaiting) {
  const auto own = ready();
  EXPECT_EQ(table_.take_undecided("g"), own);
  EXPECT_EQ(table_.waiting_for(kId), nullptr);
  EXPECT_EQ(own->entry->id, kId) << "the name keeps its id";
  own->state.store(Submission::kFailed);
  EXPECT_EQ(table_.take_undecided("g"), nullptr);
  EXPECT_EQ(table_.take_undecided("unknown"), nullptr);
}

TEST_F(NameTableOfOneName, UncollectedAreThoseThatHaveNotLeft) {
  const auto own = ready();
  own->state.store(Submission::kFailed);
  EXPECT_EQ(table_.uncollected(), std::vector{own});
  table_.leave(*own);
  EXPECT_TRUE(table_.uncollected().empty());
}

TEST_F(NameTableOfOneName, UnfinishedAreThoseInFlight) {
  EXPECT_TRUE(table_.unfinished().empty());
  const auto own = ready();
  const auto other = submission("h");
  table_.enter(other);
  EXPECT_EQ(table_.unfinished().size(), 2u);
  own->state.store(Submission::kDone);
  EXPECT_EQ(table_.unfinished(), std::vector{other});
}

}  // namespace
}  // namespace hora::internal
