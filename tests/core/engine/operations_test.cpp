#include "core/engine/operations.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <variant>

#include "tests/core/control_block/shared_control_block.h"
#include "tests/support/threads/heap_memory.h"

namespace hora::internal {
namespace {

using test::SharedControlBlock;

std::shared_ptr<Operation> submission(const std::string& name, std::int64_t extent = 8) {
  auto result = std::make_shared<Operation>();
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
  std::shared_ptr<Operation> ready() {
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

TEST_F(NameTableOfOneName, ASubmissionIsUsedAgainOnceNothingRefersToIt) {
  auto own = table_.enter_again("g");
  ASSERT_NE(own, nullptr);
  Operation* const same = own.get();
  own->decided = own->is_detached = true;
  own->number = 3;
  own->state.store(Operation::kFailed);
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
  EXPECT_FALSE(again->decided || again->is_detached || again->finished() || again->error);
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
  Operation* const same = own.get();
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

constexpr Id kGathered = make_id(1, 0);
constexpr Id kReduced = make_id(2, 0);

/// Rank 1 of two, which knows two names, has joined; rank 0 is the leader.
class JoinedProxiesOfTwo : public testing::Test {
 protected:
  void SetUp() override {
    Signature gathered;
    gathered.kind = OperationKind::allgather;
    gathered.shape = {kAnyExtent};
    Signature reduced;
    reduced.shape = {8};
    join_ = submissions_.join();
    EXPECT_EQ(next_mail().kind, MailKind::joined);
    // Rank 0 has submitted both names, which this rank learns.
    Decision learnt;
    const std::vector<Location> nowhere(2, kNowhere);
    learnt.assigned = {{"gathered", kGathered, nowhere, gathered},
                       {"reduced", kReduced, nowhere, reduced}};
    DecidedBatch batch;
    submissions_.take(learnt, {}, batch);
  }
  NodeControlBlock& block(int rank) { return blocks_[rank]; }
  bool has_mail() { return block(0).leader_has_pending_work(); }
  Mail next_mail() {
    const auto bytes = block(0).pop_mail(1);
    return bytes ? std::get<Mail>(decode(*bytes).value()) : Mail{};
  }

  SharedControlBlock blocks_{{.local_size = 2,
                              .id_capacity = 8,
                              .single_node = true,
                              .mailbox_bytes = 1024,
                              .control_bytes = 1024}};
  test::HeapNode node_{2};
  test::HeapMemory heap_{node_, 1};
  const SetParts parts_{.topology = {{{0, 1}}}, .control_block = &block(1), .memory = &heap_};
  const EngineParts engine_{.world = parts_, .rank = 1, .settings = {}};
  const std::atomic<bool> aborted_{false};
  const Tracer trace_;
  Operations submissions_{parts_, engine_, aborted_, trace_, kWorld};
  std::shared_ptr<Operation> join_;
};

TEST_F(JoinedProxiesOfTwo, AnswerWhatOthersAreReadyFor) {
  EXPECT_FALSE(submissions_.proxies_are_wanted());
  block(0).arrive(kGathered, kNowhere);
  EXPECT_TRUE(submissions_.submit_proxies());
  const Mail refusal = next_mail();
  EXPECT_EQ(refusal.name, "gathered");
  EXPECT_EQ(refusal.signature.kind, OperationKind::join);
  EXPECT_FALSE(submissions_.proxies_are_wanted()) << "refused once";
  EXPECT_EQ(block(0).arrive(kReduced, kNowhere), NodeControlBlock::Arrival::waiting);
  EXPECT_TRUE(submissions_.submit_proxies());
  EXPECT_TRUE(block(0).log_has_pending_work()) << "of all ranks of the node it was the last";
}

// Rank 0 has read in the log that all have joined, and submits again, before rank 1 has read it.
TEST_F(JoinedProxiesOfTwo, ReadTheLogBeforeTheyAnswer) {
  const std::array<std::byte, 8> all_have_joined{};
  ASSERT_TRUE(block(0).push_control(all_have_joined));
  block(0).arrive(kGathered, kNowhere);
  block(0).arrive(kReduced, kNowhere);
  EXPECT_TRUE(submissions_.submit_proxies()) << "there is something to do: the log";
  EXPECT_FALSE(has_mail());
  EXPECT_EQ(block(1).ready_ranks(kGathered), 0b01u);
  EXPECT_EQ(block(1).ready_ranks(kReduced), 0b01u);
  ASSERT_TRUE(block(1).next_batch().has_value());
  submissions_.end_join(0);
  EXPECT_EQ(block(1).ready_ranks(kReduced), 0b01u);
}

}  // namespace
}  // namespace hora::internal
