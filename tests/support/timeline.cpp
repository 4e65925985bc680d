#include "tests/support/timeline.h"

#include <algorithm>
#include <fstream>
#include <stdexcept>

namespace hora::internal::test {
namespace {

std::vector<TimelineSpan> select(const std::vector<TimelineSpan>& all, const std::string& row,
                                 const std::string& name) {
  std::vector<TimelineSpan> some;
  for (const TimelineSpan& span : all) {
    if ((row.empty() || span.row == row) && (name.empty() || span.name == name)) {
      some.push_back(span);
    }
  }
  std::ranges::stable_sort(some, {}, &TimelineSpan::begin);
  return some;
}

}  // namespace

Timeline::Timeline(const std::string& file) {
  std::ifstream stream(file);
  if (!stream) throw std::runtime_error(file + " cannot be read");
  const auto json = nlohmann::json::parse(stream);
  if (!json.is_array()) throw std::runtime_error(file + " is no array");
  for (const auto& event : json) add(event);
}

void Timeline::add(const nlohmann::json& event) {
  const int pid = event.at("pid").get<int>();
  if (pid_ >= 0 && pid != pid_) throw std::runtime_error("two processes in one file");
  pid_ = pid;
  const auto tid = event.at("tid").get<std::uint64_t>();
  const auto name = event.at("name").get<std::string>();
  const auto phase = event.at("ph").get<std::string>();
  if (phase == "M") {
    if (name == "thread_name") {
      rows_.emplace_back(tid, event.at("args").at("name").get<std::string>());
    } else {
      metadata_[name] = event.at("args");
    }
    return;
  }
  TimelineSpan span;
  span.name = name;
  span.begin = event.at("ts").get<double>();
  span.end = span.begin + (phase == "X" ? event.at("dur").get<double>() : 0.0);
  span.args = event.value("args", nlohmann::json::object());
  if (tid > 0) {
    const auto row = std::ranges::find(rows_, tid, &std::pair<std::uint64_t, std::string>::first);
    if (row == rows_.end()) throw std::runtime_error("an event before its row was named");
    span.row = row->second;
  }
  if (span.end < span.begin) throw std::runtime_error("a span of negative length");
  if (phase != "X" && phase != "i") throw std::runtime_error("unknown phase " + phase);
  (phase == "X" ? spans_ : marks_).push_back(std::move(span));
}

std::vector<TimelineSpan> Timeline::spans(const std::string& row, const std::string& name) const {
  return select(spans_, row, name);
}

std::vector<TimelineSpan> Timeline::marks(const std::string& row, const std::string& name) const {
  return select(marks_, row, name);
}

std::vector<std::string> Timeline::rows() const {
  std::vector<std::string> names;
  for (const auto& [tid, name] : rows_) names.push_back(name);
  return names;
}

const nlohmann::json& Timeline::metadata(const std::string& name) const {
  return metadata_.at(name);
}

std::uint64_t Timeline::dropped() const {
  return metadata("hora_timeline_end").at("dropped_events").get<std::uint64_t>();
}

bool overlap(const std::vector<TimelineSpan>& spans) {
  for (std::size_t i = 1; i < spans.size(); ++i) {
    if (spans[i].begin + kTimelineRounding < spans[i - 1].end) return true;
  }
  return false;
}

}  // namespace hora::internal::test
