/// From what happens to tensors, units and chunks to the events of a timeline. No clock, no lock,
/// no file: times are arguments.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "core/trace/event.h"
#include "core/trace/event_buffer.h"

namespace hora {

/// A tensor of a unit.
struct TensorFacts {
  std::string_view name;
  std::uint64_t bytes = 0;
  TraceTime decided{};
};

/// Where a chunk is. In `ready` it has finished a stage and waits for its turn in the next one.
enum class ChunkStage : std::uint8_t { local_in, cross, local_out, ready, done };

struct ChunkFacts {
  UnitKey unit;
  std::uint64_t offset = 0;  ///< in the unit's bytes
  std::uint64_t bytes = 0;
  std::uint64_t slot = 0;  ///< its row: slots hold one chunk at a time
};

/// What a stream of a device does for a unit. Texts have static storage.
struct DevicePhase {
  std::string_view row;   ///< the stream's, "GPU: collectives"
  std::string_view name;  ///< "reduce_scatter"
  UnitKey unit;
  std::uint64_t bytes = 0;
};

/// One recording, from start to stop. What began before it and is not known to it is left out.
/// Thread rule: one thread at a time.
class Recording {
 public:
  explicit Recording(std::size_t events = kTraceEvents, std::size_t rows = kTraceRows)
      : buffer_(events, rows) {}

  /// Something that happens to a tensor while it is negotiated; `mark` has static storage.
  void marked(const TensorKey& tensor, std::string_view mark, TraceTime time);
  void negotiated(const TensorKey& tensor, TraceTime submitted, TraceTime decided);
  /// The unit will run; its tensors' queue spans begin.
  void planned(UnitKey unit, const UnitFacts& facts, const std::vector<TensorFacts>& tensors);
  void started(UnitKey unit, TraceTime time);
  void completed(UnitKey unit, TraceTime time);
  /// The first chunk's first stage starts its unit.
  void chunk(const ChunkFacts& chunk, ChunkStage stage, TraceTime time);
  /// `thread` was blocked for the tensor.
  void waited(std::string_view thread, const TensorKey& tensor, TraceTime begin, TraceTime end);
  /// The row of the unit's first tensor, kNoRow where the unit is not known.
  RowIndex subject(UnitKey unit) const;
  void device(const DevicePhase& phase, RowIndex subject, TraceTime begin, TraceTime end);

  EventBuffer& buffer() { return buffer_; }

 private:
  struct OpenTensor {
    RowIndex row;
    std::uint64_t bytes;
    TraceTime decided;
  };
  struct OpenUnit {
    UnitFacts facts;
    std::vector<OpenTensor> tensors;
    std::optional<TraceTime> started;
  };
  struct OpenStage {
    ChunkStage stage;
    TraceTime begin;
  };
  /// Pushes `event` onto that row; without one it is dropped.
  void push(RowGroup group, std::string_view row, TraceEvent event);

  EventBuffer buffer_;
  std::map<UnitKey, OpenUnit> units_;
  std::map<std::pair<ProcessSet, std::uint64_t>, OpenStage> stages_;  ///< by set and slot
};

}  // namespace hora
