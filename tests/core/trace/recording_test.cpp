#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/trace/trace.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::IsEmpty;

/// "row: name begin..end" of all that was recorded, in the order of events.
std::vector<std::string> taken(Recording& recording) {
  EventBatch batch;
  recording.buffer().take(batch);
  std::vector<std::string> texts;
  for (const TraceEvent& event : batch.events) {
    texts.push_back(batch.rows[event.row].name + ": " + std::string(event.name) + " " +
                    std::to_string(event.begin.count()) + ".." +
                    std::to_string((event.begin + event.duration).count()));
  }
  return texts;
}

const UnitFacts kFacts{"allreduce", "float32", "sum", 128, 2, 2};

TEST(Recording, ATensorIsNegotiatedQueuedAndRun) {
  Recording recording;
  recording.marked({"a"}, "ready", 10ns);
  recording.negotiated({"a"}, 10ns, 20ns);
  recording.negotiated({"b"}, 12ns, 20ns);
  recording.planned({1}, kFacts, {{"a", 60, 20ns}, {"b", 64, 20ns}});
  recording.started({1}, 30ns);
  recording.completed({1}, 50ns);
  EXPECT_THAT(taken(recording),
              ElementsAre("a: ready 10..10", "a: negotiate 10..20", "b: negotiate 12..20",
                          "a: queue 20..30", "b: queue 20..30", "a: allreduce 30..50",
                          "b: allreduce 30..50"));
}

TEST(Recording, TheRunCarriesTheUnitsFacts) {
  Recording recording;
  recording.planned({7}, kFacts, {{"a", 60, 20ns}});
  recording.completed({7}, 50ns);
  EventBatch batch;
  recording.buffer().take(batch);
  ASSERT_EQ(batch.events.size(), 2u);
  const TraceEvent& run = batch.events.back();
  EXPECT_EQ(run.facts, kFacts);
  EXPECT_EQ(run.unit, UnitKey{7});
  EXPECT_EQ(run.bytes, 60u);
}

TEST(Recording, AUnitThatNeverStartsHereQueuesUntilItIsComplete) {
  Recording recording;
  recording.planned({1}, kFacts, {{"a", 0, 20ns}});
  recording.completed({1}, 50ns);
  EXPECT_THAT(taken(recording), ElementsAre("a: queue 20..50", "a: allreduce 50..50"));
}

TEST(Recording, StagesOfAChunkFollowOneAnotherInItsSlot) {
  Recording recording;
  recording.planned({1}, kFacts, {{"a", 60, 0ns}});
  const ChunkFacts first{{1}, 0, 64, 2};
  const ChunkFacts second{{1}, 64, 64, 3};
  recording.chunk(first, ChunkStage::local_in, 1ns);
  recording.chunk(second, ChunkStage::local_in, 2ns);
  recording.chunk(first, ChunkStage::ready, 3ns);
  recording.chunk(first, ChunkStage::cross, 4ns);
  recording.chunk(second, ChunkStage::ready, 5ns);
  recording.chunk(first, ChunkStage::ready, 6ns);
  recording.chunk(first, ChunkStage::local_out, 7ns);
  recording.chunk(first, ChunkStage::done, 9ns);
  EXPECT_THAT(
      taken(recording),
      ElementsAre("a: queue 0..1", "chunk slot 2: local_in 1..3", "chunk slot 3: local_in 2..5",
                  "chunk slot 2: cross 4..6", "chunk slot 2: local_out 7..9"));
}

TEST(Recording, WhatBeganEarlierIsLeftOut) {
  Recording recording;
  recording.started({1}, 5ns);
  recording.chunk({{1}, 64, 64, 0}, ChunkStage::ready, 6ns);
  recording.chunk({{1}, 64, 64, 0}, ChunkStage::done, 7ns);
  recording.completed({1}, 8ns);
  EXPECT_THAT(taken(recording), IsEmpty());
  EXPECT_EQ(recording.subject({1}), kNoRow);
}

TEST(Recording, WaitsAndDevicesKnowTheirTensor) {
  Recording recording;
  recording.planned({4}, kFacts, {{"a", 60, 0ns}});
  recording.waited("main thread", {"a"}, 1ns, 2ns);
  recording.device({"GPU: upload", "upload", {4}, 64}, recording.subject({4}), 3ns, 4ns);
  EventBatch batch;
  recording.buffer().take(batch);
  ASSERT_EQ(batch.events.size(), 2u);
  for (const TraceEvent& event : batch.events) {
    ASSERT_LT(event.subject, batch.rows.size());
    EXPECT_EQ(batch.rows[event.subject].name, "a");
  }
  EXPECT_EQ(batch.rows[batch.events[0].row], (TraceRow{RowGroup::threads, "main thread"}));
  EXPECT_EQ(batch.rows[batch.events[1].row], (TraceRow{RowGroup::device, "GPU: upload"}));
}

TEST(Recording, SetsHaveTheirOwnRowsUnitsAndSlots) {
  Recording recording;
  for (const ProcessSet set : {kWorld, ProcessSet(2)}) {
    recording.marked({"a", set}, "ready", 1ns);
    recording.planned({1, set}, kFacts, {{"a", 60, 1ns}});
    recording.chunk({{1, set}, 0, 64, 3}, ChunkStage::local_in, 2ns);
  }
  recording.chunk({{1, ProcessSet(2)}, 0, 64, 3}, ChunkStage::done, 4ns);
  recording.completed({1, ProcessSet(2)}, 5ns);
  recording.waited("main thread", {"a", ProcessSet(2)}, 2ns, 6ns);
  EXPECT_NE(recording.subject({1, kWorld}), recording.subject({1, ProcessSet(2)}));
  EXPECT_THAT(taken(recording),
              ElementsAre("a: ready 1..1", "a: queue 1..2", "a (set 2): ready 1..1",
                          "a (set 2): queue 1..2", "chunk slot 3 (set 2): local_in 2..4",
                          "a (set 2): allreduce 2..5", "main thread: wait 2..6"));
}

TEST(Recording, WithoutARowEventsAreCountedAsDropped) {
  Recording recording(100, 1);
  recording.marked({"a"}, "ready", 1ns);
  recording.marked({"b"}, "ready", 1ns);
  recording.planned({1}, kFacts, {{"a", 60, 0ns}, {"b", 60, 0ns}});
  recording.completed({1}, 2ns);
  EventBatch batch;
  recording.buffer().take(batch);
  EXPECT_EQ(batch.events.size(), 3u);
  EXPECT_EQ(batch.dropped, 3u);
}

}  // namespace
}  // namespace hora::internal
