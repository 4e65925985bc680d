#include "core/launch/guard/rank_evidence.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <vector>

#include "core/flight/record_reader.h"

namespace hora::launch {
namespace {

bool is_of_signal_handler(std::string_view line) {
  const auto colon = line.find(':');
  const auto end = line.find("] ");
  if (!line.starts_with('[') || colon == line.npos || end == line.npos || colon >= end)
    return false;
  for (const char character : line.substr(colon + 1, end - colon - 1)) {
    if (std::isdigit(static_cast<unsigned char>(character)) == 0) return false;
  }
  return true;
}

std::string last_of(const std::vector<std::string_view>& lines, std::size_t count) {
  std::string text;
  for (std::size_t i = lines.size() - std::min(count, lines.size()); i < lines.size(); ++i) {
    text.append(text.empty() ? "" : "\n").append(lines[i]);
  }
  return text;
}

}  // namespace

void LastWords::append(std::string_view bytes) {
  text_.append(bytes);
  if (text_.size() > most_) text_.erase(0, text_.size() - most_);
}

std::string LastWords::lines(std::size_t count) const {
  std::vector<std::string_view> all, own;
  std::string_view rest = text_;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find_first_of("\r\n"));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (line.find_first_not_of(" \t") == line.npos) continue;
    all.push_back(line);
    if (!is_of_signal_handler(line)) own.push_back(line);
  }
  return last_of(own.empty() ? all : own, count);
}

std::optional<int> status_of_abort(std::string_view last_words) {
  constexpr std::string_view kStart = "Abort(";
  const auto said = last_words.find("): application called MPI_Abort(");
  const auto start = last_words.substr(0, said).rfind(kStart);
  if (said == last_words.npos || start == last_words.npos) return std::nullopt;
  const std::string_view number = last_words.substr(start + kStart.size());
  int status = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), status);
  if (error != std::errc()) return std::nullopt;
  return (status & 0xff) == 0 ? 1 : status & 0xff;
}

namespace {

using internal::RecordTime;

/// Escapes of what is not printable make a text longer.
constexpr std::size_t kMostName = 100;
constexpr std::size_t kMostPhaseName = 64;

}  // namespace

RankSeen rank_seen(const internal::RecordLayout& memory, int rank, RecordTime now) {
  const internal::RecordGlance glance = internal::glance_at(memory);
  RankSeen seen;
  seen.rank = rank;
  seen.state = glance.has_begun ? static_cast<std::uint8_t>(glance.state) : kNotBegun;
  seen.waits = glance.waits;
  seen.submitted = glance.submitted;
  seen.collective = glance.last_collective.substr(0, kMostName);
  seen.phase = glance.phase.substr(0, kMostName);
  const RecordTime idle = std::max(now - glance.last_activity, RecordTime(0));
  seen.idle_ms = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(idle).count());
  return seen;
}

std::optional<ArrivalsSeen> arrivals_seen(const internal::RecordLayout& memory, RecordTime& after) {
  const auto arrivals = internal::read_arrivals(memory.arrivals);
  if (!arrivals || arrivals->at <= after) return std::nullopt;
  after = arrivals->at;
  ArrivalsSeen seen;
  seen.decisions = arrivals->decisions;
  seen.steps = arrivals->steps;
  for (const std::string& phase : arrivals->phases) {
    seen.phases.push_back(phase.substr(0, kMostPhaseName));
  }
  for (const internal::RecordedArrivalsRow& row : arrivals->rows) {
    seen.rows.emplace_back(row.last, row.median.count(), row.p99.count(), row.rank, row.phase);
  }
  return seen;
}

}  // namespace hora::launch
