#include "core/launch/live/seen.h"

#include <algorithm>

#include "core/flight/record_arrivals.h"

namespace hora::launch {
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
