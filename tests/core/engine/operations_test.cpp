#include "core/engine/operations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/threads/heap_memory.h"

namespace hora::internal {
namespace {

using Bytes = std::vector<std::byte>;

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
  NameTable table_{8};
};

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

TEST_F(NameTableOfOneName, RetiringGivesBackWhoMustReport) {
  const auto own = submission("g");
  ASSERT_TRUE(table_.enter(own));  // as by an engine that finds the id
  own->id = kId;
  table_.set_waiting(kId, own);
  EXPECT_EQ(table_.retire(kId), own);
  EXPECT_EQ(own->id, std::nullopt);
  EXPECT_EQ(table_.take_waiting(kId), nullptr);
  EXPECT_EQ(own->entry->id, std::nullopt);
  EXPECT_EQ(table_.retire(kId), nullptr) << "the second time it names nothing";
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

/// Local rank 1 of 3, in one node.
class MemoryOfOneRank : public testing::Test {
 protected:
  MemoryOfOneRank() {
    for (std::size_t i = 0; i < data_.size(); ++i) data_[i] = static_cast<std::byte>(i * 7 + 1);
    before_ = data_;
    signature_.type = DataType::uint8;
    signature_.shape = {static_cast<std::int64_t>(data_.size())};
  }
  /// Gives the memory that peers find.
  std::byte* copy_in(Caller caller) {
    const Request request{.name = {}, .signature = {}, .data = data_.data(), .bytes = data_.size()};
    memory_.copy_in(set_, signature_, request, caller);
    return heap_.address(1, memory_.location(), data_.size());
  }
  /// The slice that is never copied.
  Range own() const { return own_part(set_, signature_, data_.size(), {}); }
  void release() {
    memory_.release(set_);
    EXPECT_EQ(node_.blocks_in_use(), 0U);
  }

  Bytes data_ = Bytes(kAloneBytes + 13), before_;
  test::HeapNode node_{3};
  test::HeapMemory heap_{node_, 1};
  const EngineParts engine_{.world = {}, .rank = 1, .settings = {}};
  SetMember set_{.parts = {.topology = {{{0, 1, 2}}}, .memory = &heap_},
                 .engine = engine_,
                 .local_rank = 1,
                 .local_size = 3};
  Signature signature_;
  TensorMemory memory_;
};

TEST_F(MemoryOfOneRank, OfASumByMemoryNodesPeersReachAll) {
  EXPECT_GT(own().bytes, 0U);
  set_.parts.memory_nodes = {.count = 2, .ranks = 2};
  EXPECT_EQ(own(), Range{});
  signature_.type = DataType::float16;
  EXPECT_GT(own().bytes, 0U);
}

TEST_F(MemoryOfOneRank, OfALargeTensorItsOwnSliceIsNeverCopied) {
  std::byte* const block = copy_in(Caller::waits);
  const std::size_t begin = own().begin, end = begin + own().bytes;
  ASSERT_GT(begin, 0U);
  ASSERT_LT(end, data_.size());
  EXPECT_EQ(memory_.own_data(), data_.data());
  EXPECT_TRUE(memory_.is_in_place());
  EXPECT_EQ(block[begin - 1], before_[begin - 1]);
  EXPECT_EQ(block[data_.size() - 1], before_.back());
  std::fill(block, block + data_.size(), std::byte{0});
  memory_.copy_out(set_);
  for (std::size_t i = 0; i < data_.size(); ++i) {
    ASSERT_EQ(data_[i], i >= begin && i < end ? before_[i] : std::byte{0}) << i;
  }
  release();
}

TEST_F(MemoryOfOneRank, WhereBlocksExceedTheCachesAllButTheOwnSliceIsCopiedPastThem) {
  for (const bool exceeds : {false, true}) {
    const std::size_t others = TensorBlocks::kCached - data_.size() + (exceeds ? 1 : 0);
    const auto block_of_others = set_.blocks.take(others);
    const std::size_t so_far = heap_.bytes_past_caches();
    std::byte* const block = copy_in(Caller::goes_on);
    const std::size_t copied = data_.size() - own().bytes;
    EXPECT_EQ(heap_.bytes_past_caches() - so_far, exceeds ? copied : 0);
    EXPECT_TRUE(std::equal(before_.end() - 13, before_.end(), block + kAloneBytes));
    memory_.copy_out(set_);
    EXPECT_EQ(heap_.bytes_past_caches() - so_far, exceeds ? 2 * copied : 0);
    EXPECT_EQ(data_, before_);
    set_.blocks.put_back(block_of_others, others);
    release();
  }
}

TEST_F(MemoryOfOneRank, AfterARetreatTheBlockStandsForAllOfIt) {
  std::byte* const block = copy_in(Caller::goes_on);
  ASSERT_EQ(memory_.own_data(), data_.data());
  EXPECT_TRUE(memory_.cancel());
  EXPECT_EQ(memory_.own_data(), block);
  EXPECT_FALSE(memory_.is_in_place());
  EXPECT_TRUE(std::equal(before_.begin(), before_.end(), block));
  std::fill(block, block + data_.size(), std::byte{0});
  memory_.copy_out(set_);
  EXPECT_EQ(data_, before_);
  release();
}

TEST_F(MemoryOfOneRank, WhatIsInMessagesDoesNotRetreat) {
  copy_in(Caller::goes_on);
  memory_.note_messages();
  EXPECT_FALSE(memory_.cancel());
  EXPECT_EQ(memory_.own_data(), data_.data());
  EXPECT_TRUE(memory_.is_in_place());
  release();
  copy_in(Caller::waits);
  release();
  TensorMemory block;
  block.note_messages();
  EXPECT_TRUE(block.cancel()) << "a block's messages do not concern the caller";
}

TEST(PlanOfMemory, FollowsFromWhoWaitsAndWhatPeersTouch) {
  using enum OperationKind;
  using enum MemoryWay;
  constexpr std::size_t kBytes = 4096;
  constexpr Range kPart{1024, 512}, kWhole{0, kBytes};
  constexpr bool kIn = true, kOut = true;
  enum Fact {
    kWaits = 1,
    kReceives = 2,
    kRuns = 4,
    kThere = 8,
    kWindows = 16,
    kPlace = 32,
    kOne = 64
  };
  const std::tuple<OperationKind, std::size_t, int, Range, MemoryPlan> cases[] = {
      {allreduce, 0, kThere, {}, {}},
      {allreduce, 0, kThere | kRuns, {}, {device}},
      {allreduce, kBytes, kThere | kWaits, {}, {through_host, {}, kIn, kOut}},
      {allreduce, kBytes, kWindows, {}, {windows}},
      {allgather, kBytes, kWindows | kPlace, {}, {windows}},
      {allreduce, kBytes, 0, kPart, {around, kPart, kIn, kOut}},
      {allreduce, kBytes, 0, kWhole, {around, kWhole, kIn, kOut}},
      {broadcast, kFollowedBytes, kOne, {}, {block, {}, kIn}},
      {broadcast, kBytes, kReceives, {}, {block, {}, false, kOut}},
      {alltoall, kBytes, kOne, {}, {block, {}, kIn}},
      {allgather, kBytes, kPlace, {}, {result}},
      {allgather, kBytes, kWaits | kOne, {}, {in_place, kWhole}},
      {allreduce, kBytes, kWaits, kWhole, {in_place, kWhole}},
      {allreduce, kBytes, kWaits, kPart, {around, kPart, kIn, kOut}},
      {broadcast, kBytes, kWaits | kOne | kReceives, kPart, {around, kPart, false, kOut}},
      {broadcast, kFollowedBytes, kWaits | kOne, {}, {published}},
      {broadcast, kBytes, kWaits | kOne, {}, {block, {}, kIn}},
      {broadcast, kBytes, kWaits | kOne | kReceives, {}, {fetched}},
      {alltoall, kBytes, kWaits, kPart, {around, kPart, kIn}},
      {alltoall, kBytes, kWaits, {}, {around, {}, kIn}}};
  for (const auto& [kind, bytes, facts, own, plan] : cases) {
    EXPECT_EQ(plan_memory({.kind = kind,
                           .bytes = bytes,
                           .caller = (facts & kWaits) != 0 ? Caller::waits : Caller::goes_on,
                           .brings_data = (facts & kReceives) == 0,
                           .runs_on_device = (facts & kRuns) != 0,
                           .is_on_device = (facts & kThere) != 0,
                           .in_windows = (facts & kWindows) != 0,
                           .has_place = (facts & kPlace) != 0,
                           .single_node = (facts & kOne) != 0,
                           .own = own}),
              plan)
        << name_of(kind) << " " << facts;
  }
}

TEST(ExchangeHeaders, ComeBackAsTheyWereOrAreAnErrorOfTheRank) {
  alignas(64) std::byte memory[256] = {};
  const Location payload{1, 0, 8192}, expected{2, 0, 64};
  ExchangeHeader::write(memory, payload, expected, 48, std::vector<std::int64_t>{1, 0, 5});
  const ExchangePart right(memory, 3, 8, 4);
  EXPECT_EQ(right.header.payload, payload);
  EXPECT_EQ(right.header.expected, expected);
  struct Case {
    std::uint64_t bytes;
    std::vector<std::int64_t> extents;
    std::size_t row_bytes;
  };
  for (const Case& each :
       {Case{40, {1, 0, 5}, 8}, Case{56, {1, 0, 5}, 8}, Case{8, {-1, 2, 0}, 8}, Case{48, {1, 5}, 8},
        Case{48, {1, 0, 5, 0}, 8}, Case{0, {INT64_MAX, INT64_MAX, 2}, 8},
        Case{0, {INT64_MAX / 4 + 1, 0, 0}, 16},
        Case{std::uint64_t{1} << 49, {std::int64_t{1} << 49, 0, 0}, 1}}) {
    const Error error = test::expect_error(ErrorCode::transport, [&] {
      ExchangeHeader::write(memory, payload, expected, each.bytes, each.extents);
      ExchangePart(memory, 3, each.row_bytes, 4);
    });
    EXPECT_EQ(error.rank(), 4) << each.bytes;
  }
}

}  // namespace
}  // namespace hora::internal
