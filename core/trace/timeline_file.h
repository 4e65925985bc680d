/// The file of a timeline: where it lies, what stands in it, and how it grows.
///
/// Events are written as in the Trace Event Format (Chrome's about:tracing; Perfetto):
///   https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
/// Functions that end in `_json` are pure and give one JSON object on one line. pid is the rank,
/// tid the row. Times ("ts", "dur") are microseconds of the host's steady clock, to the nanosecond.
#pragma once

#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/trace/trace.h"

namespace hora::internal {

/// Both clocks at one moment: ts + (wall - steady) is the wall-clock time of an event.
struct ClockPair {
  TraceTime steady{};
  std::chrono::nanoseconds wall{};  ///< since 1970-01-01 UTC
};

/// What a file begins with: the process's name and place, and the clocks.
std::vector<std::string> header_json(const TraceIdentity& identity, const ClockPair& start);
/// The names of row number `index`.
std::vector<std::string> row_json(const TraceRow& row, RowIndex index, int rank);
/// `rows`: all up to the event's and its subject's.
std::string event_json(const TraceEvent& event, std::span<const TraceRow> rows, int rank);
/// A mark over all rows: events were lost up to here.
std::string dropped_json(std::uint64_t dropped, TraceTime time, int rank);
/// What a file ends with that was stopped properly.
std::string end_json(std::uint64_t dropped, TraceTime time, int rank);

/// `path` with each "%r" replaced by the rank. Where it has none, ".<rank>" is put before the file
/// name's extension, so that ranks never share a file: "a/t.json" -> "a/t.3.json".
std::string timeline_file(std::string_view path, int rank);

/// An array of the Trace Event Format. After each write() all of it but the closing bracket is with
/// the operating system; viewers take files without it, such as a crash leaves.
/// Thread rule: one thread at a time.
class TimelineFile {
 public:
  /// Replaces a file of that name. Throws Error(invalid_argument) where it cannot be written.
  TimelineFile(std::string path, const TraceIdentity& identity, const ClockPair& start);

  void write(const EventBatch& batch, TraceTime time);
  void end(std::uint64_t dropped, TraceTime time);

  const std::string& path() const { return path_; }
  /// Why not all could be written; empty where it could.
  const std::string& problem() const { return problem_; }

 private:
  void add(const std::string& json);
  void flush();

  std::string path_;
  int rank_;
  std::ofstream file_;
  std::vector<TraceRow> rows_;
  std::uint64_t dropped_ = 0;
  bool empty_ = true;
  std::string problem_;
};

}  // namespace hora::internal
