#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/settings.h"
#include "core/trace/trace.h"

namespace hora::internal {
namespace {

TraceEvent numbered(std::uint64_t unit) {
  TraceEvent event;
  event.unit = {unit};
  return event;
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

TEST(Recording, AUnitThatNeverStartsHereQueuesUntilItIsComplete) {
  Recording recording;
  recording.planned({1}, kFacts, {{"a", 0, 20ns}});
  recording.completed({1}, 50ns);
  EXPECT_THAT(taken(recording), ElementsAre("a: queue 20..50", "a: allreduce 50..50"));
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

using nlohmann::json;

const std::vector<TraceRow> kRows = {{RowGroup::tensors, "grad"}, {RowGroup::threads, "main"}};

json parsed(const TraceEvent& event, const std::vector<TraceRow>& rows = kRows, int rank = 5) {
  return json::parse(event_json(event, rows, rank));
}

TEST(TraceJson, ASpanWithAllItsFacts) {
  TraceEvent event;
  event.name = "allreduce";
  event.begin = 1'000'000'000'123ns;
  event.duration = 4567ns;
  event.unit = {9};
  event.bytes = 100;
  event.offset = 64;
  event.facts = UnitFacts{"allreduce", "float32", "average", 128, 2, 3};
  EXPECT_EQ(parsed(event), (json{{"name", "allreduce"},
                                 {"cat", "tensor"},
                                 {"ph", "X"},
                                 {"ts", 1'000'000'000.123},
                                 {"dur", 4.567},
                                 {"pid", 5},
                                 {"tid", 300001},
                                 {"args",
                                  {{"unit", 9},
                                   {"bytes", 100},
                                   {"offset", 64},
                                   {"type", "float32"},
                                   {"op", "average"},
                                   {"unit_bytes", 128},
                                   {"unit_tensors", 2},
                                   {"unit_chunks", 3}}}}));
}

TEST(TraceJson, TheRankThatCameLastIsNamed) {
  TraceEvent event;
  event.name = "negotiate";
  event.last = {3, 1234500ns};
  EXPECT_EQ(parsed(event).at("args"), (json{{"last_rank", 3}, {"late_us", 1234.5}}));
}

TEST(TraceJson, AMarkHasNoLength) {
  TraceEvent event;
  event.kind = TraceEvent::Kind::mark;
  event.name = "ready";
  event.begin = 2000ns;
  EXPECT_EQ(parsed(event), (json{{"name", "ready"},
                                 {"cat", "tensor"},
                                 {"ph", "i"},
                                 {"ts", 2.0},
                                 {"s", "t"},
                                 {"pid", 5},
                                 {"tid", 300001}}));
}

TEST(TraceJson, RowsOfDifferentGroupsHaveDifferentNumbers) {
  const auto number = [](RowGroup group, RowIndex index) {
    return json::parse(row_json({group, "x"}, index, 0).front()).at("tid").get<int>();
  };
  EXPECT_EQ(number(RowGroup::threads, 0), 1);  // 0 is the process
  EXPECT_LT(number(RowGroup::threads, 8191), number(RowGroup::device, 0));
  EXPECT_LT(number(RowGroup::device, 8191), number(RowGroup::chunks, 0));
  EXPECT_LT(number(RowGroup::chunks, 8191), number(RowGroup::tensors, 0));
}

TEST(TraceJson, NamesMayHoldAnyBytes) {
  const std::string name("a\"\\\n\x01\x7f\u009b\xff\xc3", 10);
  for (const std::string& text : row_json({RowGroup::tensors, name}, 0, 0)) {
    const auto printable = [](char c) { return c >= 0x20 && c < 0x7f; };
    EXPECT_TRUE(std::all_of(text.begin(), text.end(), printable)) << text;
    EXPECT_TRUE(json::accept(text)) << text;
  }
  TraceEvent event;
  event.subject = 0;
  EXPECT_EQ(parsed(event, {{RowGroup::tensors, "ä\"\n"}}).at("args").at("tensor"), "ä\"\n");
}

TEST(TraceJson, TheHeaderNamesTheProcessAndBothClocks) {
  const TraceIdentity identity{.rank = 2, .size = 4, .node = 1, .host = "h"};
  std::map<std::string, json> events;
  for (const std::string& text : header_json(identity, {1500ns, 1'700'000'000'000'000'500ns})) {
    const json event = json::parse(text);
    EXPECT_EQ(event.at("ph"), "M");
    EXPECT_EQ(event.at("pid"), 2);
    events[event.at("name")] = event.at("args");
  }
  EXPECT_EQ(events.at("process_name"), (json{{"name", "rank 2 (h)"}}));
  const json& facts = events.at("hora_timeline");
  EXPECT_EQ(facts.at("rank"), 2);
  EXPECT_EQ(facts.at("size"), 4);
  EXPECT_EQ(facts.at("node"), 1);
  EXPECT_EQ(facts.at("host"), "h");
  EXPECT_DOUBLE_EQ(facts.at("steady_clock_us"), 1.5);
  EXPECT_DOUBLE_EQ(facts.at("wall_clock_us"), 1'700'000'000'000'000.5);
}

TEST(TraceJson, DroppedEventsAreSaidOverAllRowsAndInTheEnd) {
  const json mark = json::parse(dropped_json(7, 1000ns, 1));
  EXPECT_EQ(mark.at("s"), "p");
  EXPECT_EQ(mark.at("args").at("dropped_events"), 7);
  EXPECT_EQ(json::parse(end_json(7, 1000ns, 1)).at("args").at("dropped_events"), 7);
}

TEST(TimelinePath, TheRankStandsWhereThePathSays) {
  EXPECT_EQ(timeline_file("%r.json", 3), "3.json");
  EXPECT_EQ(timeline_file("/a/%r/t%r", 12), "/a/12/t12");
  EXPECT_EQ(timeline_file("%r%r", 0), "00");
}

TEST(TimelinePath, TheRankComesBeforeTheExtensionElsewhere) {
  EXPECT_EQ(timeline_file("t.json", 0), "t.0.json");
  EXPECT_EQ(timeline_file("/a.b/t", 7), "/a.b/t.7");
  EXPECT_EQ(timeline_file("a/t.x.json", 10), "a/t.x.10.json");
}

TEST(TimelinePath, SaysWhatIsWrong) {
  EXPECT_EQ(wrong_with_timeline_path("/a b/%r.json"), "");
  EXPECT_EQ(wrong_with_timeline_path("%r%r"), "");
  EXPECT_NE(wrong_with_timeline_path(""), "");
  EXPECT_NE(wrong_with_timeline_path("100%"), "");
  EXPECT_NE(wrong_with_timeline_path("%r%d"), "");
  EXPECT_NE(wrong_with_timeline_path("a\nb"), "");
  for (const char* folder : {"/", "a/", "/a/b//", ".", "..", "a/..", "./", "/tmp"}) {
    EXPECT_EQ(wrong_with_timeline_path(folder), "the path names a folder, not a file") << folder;
  }
}

}  // namespace

}  // namespace hora::internal
