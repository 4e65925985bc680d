#include "core/trace/json.h"

#include <nlohmann/json.hpp>

namespace hora {
namespace {

using Json = nlohmann::ordered_json;

/// ASCII without control characters, so that a file can be looked at in a terminal.
std::string line(const Json& json) {
  return json.dump(-1, ' ', true, Json::error_handler_t::replace);
}

double microseconds(std::chrono::nanoseconds time) {
  return static_cast<double>(time.count()) / 1000.0;
}

/// Rows of a group lie together: viewers sort by tid, too. 0 stands for the process.
std::uint64_t tid(RowGroup group, RowIndex index) {
  constexpr std::uint64_t kRowsOfGroup = 100'000;
  return static_cast<std::uint64_t>(group) * kRowsOfGroup + index + 1;
}

Json metadata(std::string_view name, int rank, std::uint64_t thread, Json arguments) {
  return {
      {"name", name}, {"ph", "M"}, {"pid", rank}, {"tid", thread}, {"args", std::move(arguments)}};
}

const char* category(RowGroup group) {
  switch (group) {
    case RowGroup::threads:
      return "thread";
    case RowGroup::device:
      return "device";
    case RowGroup::chunks:
      return "chunk";
    case RowGroup::tensors:
      return "tensor";
  }
  return "";
}

Json arguments_of(const TraceEvent& event, std::span<const TraceRow> rows) {
  Json arguments = Json::object();
  if (event.subject != kNoRow) arguments["tensor"] = rows[event.subject].name;
  if (event.unit.number > 0) arguments["unit"] = event.unit.number;
  if (event.unit.set > 0) arguments["set"] = event.unit.set;
  if (event.bytes) arguments["bytes"] = *event.bytes;
  if (event.offset) arguments["offset"] = *event.offset;
  if (event.facts) {
    const UnitFacts& facts = *event.facts;
    arguments["type"] = facts.type;
    if (!facts.op.empty()) arguments["op"] = facts.op;
    arguments["unit_bytes"] = facts.bytes;
    arguments["unit_tensors"] = facts.tensors;
    arguments["unit_chunks"] = facts.chunks;
  }
  return arguments;
}

}  // namespace

std::vector<std::string> header_json(const TraceIdentity& identity, const ClockPair& start) {
  const int rank = identity.rank;
  const std::string name = "rank " + std::to_string(rank) + " (" + identity.host + ")";
  return {line(metadata("process_name", rank, 0, {{"name", name}})),
          line(metadata("process_sort_index", rank, 0, {{"sort_index", rank}})),
          line(metadata("hora_timeline", rank, 0,
                        {{"rank", rank},
                         {"size", identity.size},
                         {"node", identity.node},
                         {"host", identity.host},
                         {"steady_clock_us", microseconds(start.steady)},
                         {"wall_clock_us", microseconds(start.wall)}}))};
}

std::vector<std::string> row_json(const TraceRow& row, RowIndex index, int rank) {
  const std::uint64_t thread = tid(row.group, index);
  return {line(metadata("thread_name", rank, thread, {{"name", row.name}})),
          line(metadata("thread_sort_index", rank, thread, {{"sort_index", thread}}))};
}

std::string event_json(const TraceEvent& event, std::span<const TraceRow> rows, int rank) {
  const RowGroup group = rows[event.row].group;
  const bool is_span = event.kind == TraceEvent::Kind::span;
  Json json{{"name", event.name},
            {"cat", category(group)},
            {"ph", is_span ? "X" : "i"},
            {"ts", microseconds(event.begin)}};
  if (is_span) {
    json["dur"] = microseconds(event.duration);
  } else {
    json["s"] = "t";
  }
  json["pid"] = rank;
  json["tid"] = tid(group, event.row);
  Json arguments = arguments_of(event, rows);
  if (!arguments.empty()) json["args"] = std::move(arguments);
  return line(json);
}

std::string dropped_json(std::uint64_t dropped, TraceTime time, int rank) {
  return line({{"name", "events dropped"},
               {"cat", "hora"},
               {"ph", "i"},
               {"ts", microseconds(time)},
               {"s", "p"},
               {"pid", rank},
               {"tid", 0},
               {"args", {{"dropped_events", dropped}}}});
}

std::string end_json(std::uint64_t dropped, TraceTime time, int rank) {
  return line(metadata("hora_timeline_end", rank, 0,
                       {{"steady_clock_us", microseconds(time)}, {"dropped_events", dropped}}));
}

}  // namespace hora
