/// Events that wait to be written, and the rows they lie on: bounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/trace/event.h"

namespace hora {

/// What a timeline takes at most: two sets of events, one filled while the other is written, and
/// two copies of each row's name (up to 1 KiB). Memory is touched only as far as it is used.
inline constexpr std::size_t kTraceEvents = std::size_t{1} << 15;
inline constexpr std::size_t kTraceRows = std::size_t{1} << 13;
static_assert(2 * kTraceEvents * sizeof(TraceEvent) <= std::size_t{12} << 20);

/// What take() returns, in order.
struct EventBatch {
  std::vector<TraceRow> rows;  ///< new since the last batch
  std::vector<TraceEvent> events;
  std::uint64_t dropped = 0;  ///< in all, so far
};

/// What does not fit is dropped and counted. Thread rule: one thread at a time.
class EventBuffer {
 public:
  EventBuffer(std::size_t events, std::size_t rows);

  /// The row of this name, made where it is new; none where there are too many.
  std::optional<RowIndex> row(RowGroup group, std::string_view name);
  void push(const TraceEvent& event);
  void drop(std::uint64_t count) { dropped_ += count; }

  bool half_full() const { return 2 * events_.size() >= capacity_; }
  /// Empties the buffer into `batch`, whose memory is used further.
  void take(EventBatch& batch);

 private:
  std::size_t capacity_;
  std::size_t most_rows_;
  std::vector<TraceEvent> events_;
  std::vector<TraceRow> new_rows_;
  std::unordered_map<std::string, RowIndex> rows_;  ///< by group and name
  std::uint64_t dropped_ = 0;
};

}  // namespace hora
