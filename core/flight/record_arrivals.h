/// Who came last to collectives, as the root leaves it in its flight record for those who watch.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/flight/record.h"

namespace hora::internal {

struct RecordedArrivalsRow {
  int rank = 0;
  std::uint64_t last = 0;             ///< decisions to which it came last
  std::chrono::nanoseconds median{};  ///< how late it was then
  std::chrono::nanoseconds p99{};
  std::uint32_t phase = 0;  ///< index of the phase in which it has held up the others most
  bool operator==(const RecordedArrivalsRow&) const = default;
};

struct RecordedArrivals {
  std::chrono::nanoseconds at{};  ///< of CLOCK_MONOTONIC
  std::uint64_t decisions = 0;    ///< on ids (negotiation/arrivals.h)
  std::uint64_t steps = 0;
  std::vector<std::string> phases = {};  ///< names by index; empty: not known
  std::vector<RecordedArrivalsRow> rows = {};
  bool operator==(const RecordedArrivals&) const = default;
};

/// Writes all of it, or as much as there is place for. Stores alone. Thread rule: one thread.
///@{
struct ArrivalsToRecord {
  std::chrono::nanoseconds at{};
  std::uint64_t decisions = 0;
  std::uint64_t steps = 0;
  std::span<const std::string_view> phases;
  std::span<const RecordedArrivalsRow> rows;
};
void write_arrivals(RecordArrivals& memory, const ArrivalsToRecord& arrivals) noexcept;
///@}

/// None where nothing was written, or a writer has died at it. Whatever the memory holds, texts are
/// printable, counts and phases within their bounds, and nothing negative. Thread rule: any thread.
std::optional<RecordedArrivals> read_arrivals(const RecordArrivals& memory);

}  // namespace hora::internal
