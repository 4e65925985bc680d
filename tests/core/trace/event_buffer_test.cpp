#include <gtest/gtest.h>

#include "core/trace/trace.h"

namespace hora::internal {
namespace {

TraceEvent numbered(std::uint64_t unit) {
  TraceEvent event;
  event.unit = {unit};
  return event;
}

TEST(EventBuffer, GivesEventsInTheirOrderAndEachOnce) {
  EventBuffer buffer(4, 4);
  EventBatch batch;
  for (std::uint64_t unit = 1; unit <= 3; ++unit) buffer.push(numbered(unit));
  buffer.take(batch);
  ASSERT_EQ(batch.events.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(batch.events[i].unit.number, i + 1);
  buffer.take(batch);
  EXPECT_TRUE(batch.events.empty());
  EXPECT_EQ(batch.dropped, 0u);
}

TEST(EventBuffer, WhatDoesNotFitIsDroppedAndCountedForGood) {
  EventBuffer buffer(4, 4);
  EventBatch batch;
  for (std::uint64_t unit = 1; unit <= 10; ++unit) buffer.push(numbered(unit));
  buffer.take(batch);
  EXPECT_EQ(batch.events.size(), 4u);
  EXPECT_EQ(batch.events.back().unit.number, 4u);
  EXPECT_EQ(batch.dropped, 6u);
  for (std::uint64_t unit = 1; unit <= 5; ++unit) buffer.push(numbered(unit));
  buffer.take(batch);
  EXPECT_EQ(batch.events.size(), 4u);
  EXPECT_EQ(batch.dropped, 7u);
}

TEST(EventBuffer, IsHalfFullFromTheMiddleOn) {
  EventBuffer buffer(4, 4);
  buffer.push({});
  EXPECT_FALSE(buffer.half_full());
  buffer.push({});
  EXPECT_TRUE(buffer.half_full());
  EventBatch batch;
  buffer.take(batch);
  EXPECT_FALSE(buffer.half_full());
}

TEST(EventBuffer, RowsAreMadeOnceAndBounded) {
  EventBuffer buffer(4, 3);
  EXPECT_EQ(buffer.row(RowGroup::tensors, "a"), 0u);
  EXPECT_EQ(buffer.row(RowGroup::threads, "a"), 1u) << "another group, another row";
  EXPECT_EQ(buffer.row(RowGroup::tensors, "a"), 0u);
  EventBatch batch;
  buffer.take(batch);
  EXPECT_EQ(batch.rows,
            (std::vector<TraceRow>{{RowGroup::tensors, "a"}, {RowGroup::threads, "a"}}));
  EXPECT_EQ(buffer.row(RowGroup::tensors, "b"), 2u);
  EXPECT_EQ(buffer.row(RowGroup::tensors, "c"), std::nullopt);
  EXPECT_EQ(buffer.row(RowGroup::tensors, "a"), 0u);
  buffer.take(batch);
  EXPECT_EQ(batch.rows, (std::vector<TraceRow>{{RowGroup::tensors, "b"}}));
}

TEST(EventBuffer, RowsHaveNamesThatCanBeShown) {
  EventBuffer buffer(4, 4);
  EXPECT_EQ(buffer.row(RowGroup::tensors, "a\xff"), RowIndex{0});
  EXPECT_EQ(buffer.row(RowGroup::tensors, "a\xfe"), RowIndex{1});
  buffer.row(RowGroup::tensors, std::string(1 << 20, 'n'));
  EventBatch batch;
  buffer.take(batch);
  ASSERT_EQ(batch.rows.size(), 3u);
  EXPECT_EQ(batch.rows[0].name, "a\\xff");
  EXPECT_EQ(batch.rows[1].name, "a\\xfe");
  EXPECT_LT(batch.rows[2].name.size(), 2000u);
}

}  // namespace
}  // namespace hora::internal
