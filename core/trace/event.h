/// What a timeline is made of: rows, and events on them. Values only.
#pragma once

#include <hora/collectives.h>

#include <chrono>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace hora {

/// Time on std::chrono::steady_clock, one clock for all processes of a host.
using TraceTime = std::chrono::nanoseconds;
TraceTime trace_now();

/// Kinds of rows, in the order in which they are shown.
enum class RowGroup : std::uint8_t { threads = 0, device = 1, chunks = 2, tensors = 3 };

/// A tensor and a unit of a process set. 0, the world, is not shown.
///@{
struct TensorKey {
  std::string_view name;
  ProcessSet set = 0;
};
struct UnitKey {
  std::uint64_t number = 0;  ///< 1, 2, ... in the set; 0: none
  ProcessSet set = 0;
  auto operator<=>(const UnitKey&) const = default;
};
///@}

/// A horizontal line of the timeline. Spans of one row never overlap.
struct TraceRow {
  RowGroup group = RowGroup::tensors;
  std::string name;  ///< a tensor's name, "main thread", ...
  bool operator==(const TraceRow&) const = default;
};

/// Position of a row among all rows of one recording.
using RowIndex = std::uint32_t;
inline constexpr RowIndex kNoRow = ~RowIndex{0};

/// Facts about the unit that an event belongs to; texts have static storage.
struct UnitFacts {
  std::string_view operation;  ///< "allreduce"
  std::string_view type;
  std::string_view op;  ///< empty where the operation has none
  std::uint64_t bytes = 0;
  std::uint64_t tensors = 0;  ///< that travel together in it
  std::uint64_t chunks = 0;
  bool operator==(const UnitFacts&) const = default;
};

struct TraceEvent {
  enum class Kind : std::uint8_t { span, mark };
  Kind kind = Kind::span;
  std::string_view name;  ///< static storage
  RowIndex row = 0;
  RowIndex subject = kNoRow;  ///< the row of the tensor that it is about, where that is another
  TraceTime begin{};
  TraceTime duration{};  ///< of spans
  UnitKey unit;
  std::optional<std::uint64_t> bytes;   ///< of the tensor, or the chunk
  std::optional<std::uint64_t> offset;  ///< of the chunk in its unit
  std::optional<UnitFacts> facts;
};

/// Whose timeline it is.
struct TraceIdentity {
  int rank = 0;
  int size = 1;
  int node = 0;
  std::string host;
};

}  // namespace hora
