#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/trace/trace.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
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

TEST(TraceJson, ASetOtherThanTheWorldIsNamed) {
  TraceEvent event;
  event.unit = {9, ProcessSet(2)};
  EXPECT_EQ(parsed(event).at("args"), (json{{"unit", 9}, {"set", 2}}));
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

TEST(TraceJson, ASubjectIsNamed) {
  TraceEvent event;
  event.name = "wait";
  event.row = 1;
  event.subject = 0;
  EXPECT_EQ(parsed(event).at("args"), (json{{"tensor", "grad"}}));
  EXPECT_EQ(parsed(event).at("tid"), 2);
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

}  // namespace
}  // namespace hora::internal
