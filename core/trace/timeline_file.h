/// The file of a timeline while it grows.
#pragma once

#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "core/trace/event_buffer.h"
#include "core/trace/json.h"

namespace hora {

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

}  // namespace hora
