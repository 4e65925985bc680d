#include <hora/error.h>
#include <hora/printable.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "core/base/file.h"
#include "core/trace/trace.h"

namespace hora::internal {
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
  if (event.unit.set != kWorld) arguments["set"] = event.unit.set.number();
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
  if (event.last.rank >= 0) {
    arguments["last_rank"] = event.last.rank;
    arguments["late_us"] = microseconds(event.last.late);
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

namespace {

constexpr std::string_view kRank = "%r";

}  // namespace

std::string timeline_file(std::string_view path, int rank) {
  const std::string number = std::to_string(rank);
  if (path.find(kRank) == path.npos) {
    std::filesystem::path file(path);
    const std::string extension = file.extension().string();
    return file.replace_extension("." + number + extension).string();
  }
  std::string file(path);
  for (auto at = file.find(kRank); at != file.npos; at = file.find(kRank, at + number.size())) {
    file.replace(at, kRank.size(), number);
  }
  return file;
}

namespace {

NewFile new_file(const std::string& path, int rank) {
  try {
    return NewFile(path);
  } catch (const Error& error) {
    throw Error(error.code(), "the timeline of rank " + std::to_string(rank) + ": " + error.what(),
                rank);
  }
}

/// errno is 0 before the first call that may fail.
std::string reason() {
  return errno == 0 ? std::string("unknown error") : std::generic_category().message(errno);
}

}  // namespace

TimelineFile::TimelineFile(std::string path, const TraceIdentity& identity, const ClockPair& start)
    : path_(std::move(path)), rank_(identity.rank) {
  const NewFile made = new_file(path_, rank_);
  errno = 0;
  file_.open(made.descriptor_path(), std::ios::trunc);
  file_ << '[';
  for (const std::string& json : header_json(identity, start)) add(json);
  if (file_.flush()) return;
  throw Error(ErrorCode::invalid_argument,
              "the timeline of rank " + std::to_string(rank_) + " cannot be written to " +
                  in_quotes(path_) + ": " + reason(),
              rank_);
}

void TimelineFile::add(const std::string& json) {
  file_ << (std::exchange(empty_, false) ? "\n" : ",\n") << json;
}

void TimelineFile::flush() {
  if (!problem_.empty()) return;
  file_.flush();
  if (!file_) problem_ = "writing the timeline " + in_quotes(path_) + " has failed: " + reason();
}

void TimelineFile::write(const EventBatch& batch, TraceTime time) {
  if (!problem_.empty()) return;
  errno = 0;
  for (const TraceRow& row : batch.rows) {
    const auto index = static_cast<RowIndex>(rows_.size());
    for (const std::string& json : row_json(row, index, rank_)) add(json);
    rows_.push_back(row);
  }
  for (const TraceEvent& event : batch.events) add(event_json(event, rows_, rank_));
  if (batch.dropped > dropped_) {
    dropped_ = batch.dropped;
    add(dropped_json(dropped_, time, rank_));
  }
  flush();
}

void TimelineFile::end(std::uint64_t dropped, TraceTime time) {
  errno = 0;
  add(end_json(dropped, time, rank_));
  file_ << "\n]\n";
  flush();
  file_.close();
}

}  // namespace hora::internal
