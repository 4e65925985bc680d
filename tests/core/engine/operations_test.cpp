#include "core/engine/operations.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

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
  const auto own = ready();
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
  Bytes counted(std::size_t bytes) {
    Bytes result(bytes);
    for (std::size_t i = 0; i < bytes; ++i) result[i] = static_cast<std::byte>(i * 7 + 1);
    return result;
  }
  void copy_in(OperationKind kind, Bytes& data, Caller caller, int root = 0) {
    signature_.kind = kind;
    signature_.type = DataType::uint8;
    signature_.root = root;
    signature_.shape = {static_cast<std::int64_t>(data.size())};
    Request request{.name = {}, .signature = {}, .data = data.data(), .bytes = data.size()};
    if (is_exchange(kind)) {
      request.rows = {static_cast<std::int64_t>(data.size())};
      request.result = std::make_shared<NoResult>();
      signature_.shape = {kAnyExtent};
    }
    memory_.copy_in(set_, signature_, request, caller);
  }
  /// The memory that peers find at `location`.
  std::byte* seen(Location location, std::size_t bytes) {
    return heap_.address(1, location, bytes);
  }
  void release() {
    memory_.release(set_);
    EXPECT_EQ(node_.blocks_in_use(), 0U);
  }

  struct NoResult final : ExchangeResult {
    std::byte* allocate(std::span<const std::int64_t>, std::size_t) override { return nullptr; }
  };

  test::HeapNode node_{3};
  test::HeapMemory heap_{node_, 1};
  BlockVolume volume_;
  SetParts parts_{.topology = {{{0, 1, 2}}}, .memory = &heap_};
  const SetMemory set_{.set = parts_,
                       .device = nullptr,
                       .heap = nullptr,
                       .rank = 1,
                       .local_rank = 1,
                       .local_size = 3,
                       .volume = &volume_};
  Signature signature_;
  TensorMemory memory_;
};

TEST_F(MemoryOfOneRank, OfASumByMemoryNodesPeersReachAll) {
  const SetMemory& set = set_;
  signature_.type = DataType::uint8;
  signature_.shape = {kAloneBytes + 13};
  EXPECT_GT(own_part(set, signature_, signature_.bytes(), {}).bytes, 0U);
  parts_.memory_nodes = {.count = 2, .ranks = 2};
  EXPECT_EQ(own_part(set, signature_, signature_.bytes(), {}), Range{});
  signature_.type = DataType::float16;
  EXPECT_GT(own_part(set, signature_, signature_.bytes(), {}).bytes, 0U);
}

TEST_F(MemoryOfOneRank, OfALargeTensorItsOwnSliceIsNeverCopied) {
  Bytes data = counted(kAloneBytes + 13);
  const Bytes before = data;
  copy_in(OperationKind::allreduce, data, Caller::waits);
  const Range own = own_part(set_, signature_, data.size(), {});
  ASSERT_GT(own.begin, 0U);
  ASSERT_LT(own.begin + own.bytes, data.size());
  EXPECT_EQ(memory_.own_data(), data.data());
  EXPECT_TRUE(memory_.is_in_place());
  std::byte* const block = seen(memory_.location(), data.size());
  EXPECT_EQ(block[own.begin - 1], before[own.begin - 1]);
  EXPECT_EQ(block[data.size() - 1], before[data.size() - 1]);
  std::fill(block, block + data.size(), std::byte{0});
  memory_.copy_out(set_);
  EXPECT_EQ(data.front(), std::byte{0});
  EXPECT_EQ(data[own.begin - 1], std::byte{0});
  EXPECT_TRUE(std::equal(data.begin() + static_cast<std::ptrdiff_t>(own.begin),
                         data.begin() + static_cast<std::ptrdiff_t>(own.begin + own.bytes),
                         before.begin() + static_cast<std::ptrdiff_t>(own.begin)));
  EXPECT_EQ(data[own.begin + own.bytes], std::byte{0});
  release();
}

TEST_F(MemoryOfOneRank, WhereBlocksExceedTheCachesAllButTheOwnSliceIsCopiedPastThem) {
  Bytes data = counted(kAloneBytes + 13);
  const Bytes before = data;
  for (const bool exceeds : {false, true}) {
    volume_.add(BlockVolume::kCached - data.size() + (exceeds ? 1 : 0));
    const std::size_t so_far = heap_.bytes_past_caches();
    copy_in(OperationKind::allreduce, data, Caller::goes_on);
    const std::size_t copied = data.size() - own_part(set_, signature_, data.size(), {}).bytes;
    EXPECT_EQ(heap_.bytes_past_caches() - so_far, exceeds ? copied : 0);
    std::byte* const block = seen(memory_.location(), data.size());
    EXPECT_TRUE(std::equal(before.end() - 13, before.end(), block + kAloneBytes));
    memory_.copy_out(set_);
    EXPECT_EQ(heap_.bytes_past_caches() - so_far, exceeds ? 2 * copied : 0);
    EXPECT_EQ(data, before);
    release();
    volume_.remove(BlockVolume::kCached - data.size());
  }
}

TEST_F(MemoryOfOneRank, AfterARetreatTheBlockStandsForAllOfIt) {
  Bytes data = counted(kAloneBytes + 13);
  const Bytes before = data;
  copy_in(OperationKind::allreduce, data, Caller::goes_on);
  ASSERT_EQ(memory_.own_data(), data.data());
  EXPECT_FALSE(memory_.is_cancelled());
  EXPECT_TRUE(memory_.cancel());
  EXPECT_TRUE(memory_.is_cancelled());
  std::byte* const block = seen(memory_.location(), data.size());
  EXPECT_EQ(memory_.own_data(), block);
  EXPECT_FALSE(memory_.is_in_place());
  EXPECT_TRUE(std::equal(before.begin(), before.end(), block));
  std::fill(block, block + data.size(), std::byte{0});
  memory_.copy_out(set_);
  EXPECT_EQ(data, before);
  release();
}

TEST_F(MemoryOfOneRank, WhatIsInMessagesDoesNotRetreat) {
  Bytes data = counted(kAloneBytes + 13);
  copy_in(OperationKind::allreduce, data, Caller::goes_on);
  memory_.note_messages();
  EXPECT_FALSE(memory_.cancel());
  EXPECT_FALSE(memory_.is_cancelled());
  EXPECT_EQ(memory_.own_data(), data.data());
  EXPECT_TRUE(memory_.is_in_place());
  release();
  copy_in(OperationKind::allreduce, data, Caller::waits);
  release();
  TensorMemory block;
  block.note_messages();
  EXPECT_TRUE(block.cancel()) << "a block's messages do not concern the caller";
}

TEST(PlanOfMemory, FollowsFromWhoWaitsAndWhatPeersTouch) {
  using enum OperationKind;
  using enum MemoryWay;
  constexpr auto goes_on = Caller::goes_on, waits = Caller::waits;
  constexpr std::size_t kBytes = 4096;
  constexpr Range kPart{1024, 512}, kWhole{0, kBytes};
  constexpr bool kIn = true, kOut = true;
  struct Case {
    MemoryFacts facts;
    MemoryPlan plan;
  };
  const Case cases[] = {
      {{.kind = allreduce, .bytes = 0, .is_on_device = true, .own = {}}, {}},
      {{.kind = allreduce, .runs_on_device = true, .is_on_device = true, .own = {}}, {device}},
      {{.kind = allreduce, .bytes = kBytes, .caller = waits, .is_on_device = true, .own = {}},
       {through_host, {}, kIn, kOut}},
      {{.kind = allreduce, .bytes = kBytes, .in_windows = true, .own = {}}, {windows}},
      {{.kind = allgather, .bytes = kBytes, .in_windows = true, .has_place = true, .own = {}},
       {windows}},
      {{.kind = allreduce, .bytes = kBytes, .caller = goes_on, .own = kPart},
       {around, kPart, kIn, kOut}},
      {{.kind = allreduce, .bytes = kBytes, .caller = goes_on, .own = kWhole},
       {around, kWhole, kIn, kOut}},
      {{.kind = broadcast, .bytes = kFollowedBytes, .single_node = true, .own = {}},
       {block, {}, kIn}},
      {{.kind = broadcast, .bytes = kBytes, .brings_data = false, .own = {}},
       {block, {}, false, kOut}},
      {{.kind = alltoall, .bytes = kBytes, .single_node = true, .own = {}}, {block, {}, kIn}},
      {{.kind = allgather, .bytes = kBytes, .has_place = true, .own = {}}, {result}},
      {{.kind = allgather, .bytes = kBytes, .caller = waits, .single_node = true, .own = {}},
       {in_place, kWhole}},
      {{.kind = allreduce, .bytes = kBytes, .caller = waits, .own = kWhole}, {in_place, kWhole}},
      {{.kind = allreduce, .bytes = kBytes, .caller = waits, .own = kPart},
       {around, kPart, kIn, kOut}},
      {{.kind = broadcast,
        .bytes = kBytes,
        .caller = waits,
        .brings_data = false,
        .single_node = true,
        .own = kPart},
       {around, kPart, false, kOut}},
      {{.kind = broadcast,
        .bytes = kFollowedBytes,
        .caller = waits,
        .single_node = true,
        .own = {}},
       {published}},
      {{.kind = broadcast, .bytes = kBytes, .caller = waits, .single_node = true, .own = {}},
       {block, {}, kIn}},
      {{.kind = broadcast,
        .bytes = kBytes,
        .caller = waits,
        .brings_data = false,
        .single_node = true,
        .own = {}},
       {fetched}},
      {{.kind = alltoall, .bytes = kBytes, .caller = waits, .own = kPart}, {around, kPart, kIn}},
      {{.kind = alltoall, .bytes = kBytes, .caller = waits, .own = {}}, {around, {}, kIn}}};
  for (const Case& each : cases) {
    EXPECT_EQ(plan_memory(each.facts), each.plan) << "case " << &each - cases;
  }
}

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

class ExchangeHeaders : public testing::Test {
 protected:
  const std::byte* written(std::uint64_t bytes, const std::vector<std::int64_t>& extents) {
    ExchangeHeader::write(memory_, {1, 0, 8192}, kNowhere, bytes, extents);
    return memory_;
  }
  alignas(64) std::byte memory_[256] = {};
};

TEST_F(ExchangeHeaders, ComeBackAsTheyWereWritten) {
  const ExchangePart part(written(48, {1, 0, 5}), 3, 8, 4);
  EXPECT_EQ(part.header.payload, (Location{1, 0, 8192}));
  EXPECT_EQ(part.header.expected, kNowhere);
  EXPECT_EQ(part.header.bytes, 48u);
  EXPECT_EQ(std::vector(part.extents.begin(), part.extents.end()),
            (std::vector<std::int64_t>{1, 0, 5}));
}

TEST_F(ExchangeHeaders, ThatCannotBeAreAnErrorOfTheRank) {
  struct Case {
    std::uint64_t bytes;
    std::vector<std::int64_t> extents;
    std::size_t row_bytes;
  };
  for (const Case& each : {Case{40, {1, 0, 5}, 8}, Case{56, {1, 0, 5}, 8}, Case{8, {-1, 2, 0}, 8},
                           Case{48, {1, 5}, 8}, Case{48, {1, 0, 5, 0}, 8},
                           Case{0, {kMost, kMost, 2}, 8}, Case{0, {kMost / 4 + 1, 0, 0}, 16},
                           Case{std::uint64_t{1} << 49, {std::int64_t{1} << 49, 0, 0}, 1}}) {
    try {
      ExchangePart(written(each.bytes, each.extents), 3, each.row_bytes, 4);
      ADD_FAILURE() << "no error for " << each.bytes;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::transport);
      EXPECT_EQ(error.rank(), 4);
    }
  }
}

}  // namespace
}  // namespace hora::internal
