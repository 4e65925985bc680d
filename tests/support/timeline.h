/// A timeline's file, read back.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace hora::internal::test {

struct TimelineSpan {
  std::string row;
  std::string name;
  double begin = 0;  ///< microseconds
  double end = 0;    ///< equals begin where it is a mark
  nlohmann::json args;
};

/// Throws std::runtime_error where the file is no JSON, or breaks the Trace Event Format's rules.
class Timeline {
 public:
  explicit Timeline(const std::string& file);

  /// In order of time. Empty texts stand for all rows, and all names.
  std::vector<TimelineSpan> spans(const std::string& row, const std::string& name = "") const;
  std::vector<TimelineSpan> marks(const std::string& row, const std::string& name = "") const;
  std::vector<std::string> rows() const;
  /// Arguments of the metadata event of this name.
  const nlohmann::json& metadata(const std::string& name) const;
  int pid() const { return pid_; }
  std::uint64_t dropped() const;

 private:
  void add(const nlohmann::json& event);

  int pid_ = -1;
  nlohmann::json metadata_;
  std::vector<std::pair<std::uint64_t, std::string>> rows_;  ///< by tid
  std::vector<TimelineSpan> spans_;
  std::vector<TimelineSpan> marks_;
};

/// Spans of one row follow one another, to the clock's nanosecond.
bool overlap(const std::vector<TimelineSpan>& spans_of_a_row);

/// Times in files are rounded to this, in microseconds.
inline constexpr double kTimelineRounding = 0.01;

}  // namespace hora::internal::test
