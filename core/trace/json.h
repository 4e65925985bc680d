/// Events of a timeline as the Trace Event Format has them (Chrome's about:tracing; Perfetto):
///   https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
/// Each function gives one JSON object on one line. pid is the rank, tid the row. Times ("ts",
/// "dur") are microseconds of the host's steady clock, to the nanosecond. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/trace/event.h"

namespace hora {

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

}  // namespace hora
