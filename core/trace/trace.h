/// The engine's timeline: off, or written to a file by a thread of its own, and the hooks that
/// record in it. Events on rows of tensors, units and chunks wait in a bounded buffer to be
/// written, as in the Trace Event Format (Chrome's about:tracing; Perfetto):
///   https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
/// pid is the rank, tid the row; times are microseconds of the host's steady clock.
#pragma once

#include <hora/collectives.h>

#include <atomic>
#include <chrono>
#include <compare>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/sync.h"

namespace hora::internal {

/// Time on std::chrono::steady_clock, one clock for all processes of a host.
using TraceTime = std::chrono::nanoseconds;
TraceTime trace_now();

/// Kinds of rows, in the order in which they are shown.
enum class RowGroup : std::uint8_t { threads = 0, device = 1, chunks = 2, tensors = 3 };

/// A tensor and a unit of a process set. 0, the world, is not shown.
///@{
struct TensorKey {
  std::string_view name;
  ProcessSet set = kWorld;
};
struct UnitKey {
  std::uint64_t number = 0;  ///< 1, 2, ... in the set; 0: none
  ProcessSet set = kWorld;
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
  bool is_mark = false;
  std::string_view name = {};  ///< static storage
  RowIndex row = 0;
  RowIndex subject = kNoRow;  ///< the row of the tensor that it is about, where that is another
  TraceTime begin{};
  TraceTime duration{};
  UnitKey unit = {};
  std::optional<std::uint64_t> bytes = {};   ///< of the tensor, or the chunk
  std::optional<std::uint64_t> offset = {};  ///< of the chunk in its unit
  std::optional<UnitFacts> facts = {};
  int last_rank = -1;  ///< the world rank that came last to a negotiation; -1: not known
  TraceTime late{};    ///< after the one before it
};

/// The rank that writes a timeline, and its job.
struct TraceIdentity {
  int rank = 0;
  int size = 1;
  int node = 0;
  std::string host;
};

/// Bounds of a timeline: two sets of events, one filled while the other is written, and two copies
/// of each row's name (up to 1 KiB). Memory is touched only as far as it is used.
inline constexpr std::size_t kTraceEvents = std::size_t{1} << 15;
inline constexpr std::size_t kTraceRows = std::size_t{1} << 13;
static_assert(2 * kTraceEvents * sizeof(TraceEvent) <= std::size_t{12} << 20);

/// The result of Recording::take(), in order.
struct EventBatch {
  std::vector<TraceRow> rows;  ///< new since the last batch
  std::vector<TraceEvent> events;
  std::uint64_t dropped = 0;  ///< in all, so far
};

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

/// A device stream's work for a unit. Texts have static storage.
struct DevicePhase {
  std::string_view row;   ///< the stream's, "GPU: collectives"
  std::string_view name;  ///< "reduce_scatter"
  UnitKey unit;
  std::uint64_t bytes = 0;
};

/// One recording, from start to stop. Leaves out what began before it and is not known to it; drops
/// and counts what does not fit. Thread rule: one thread at a time.
class Recording {
 public:
  explicit Recording(std::size_t events = kTraceEvents, std::size_t rows = kTraceRows);

  /// Something that happens to a tensor while it is negotiated; `mark` has static storage.
  void marked(const TensorKey& tensor, std::string_view mark, TraceTime time);
  void negotiated(const TensorKey& tensor, TraceTime submitted, TraceTime decided,
                  int last_rank = -1, TraceTime late = {});
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
  /// So many events are lost.
  void drop(std::uint64_t count) { dropped_ += count; }

  bool half_full() const { return 2 * events_.size() >= capacity_; }
  /// Moves what was recorded into `batch`, whose memory is used further.
  void take(EventBatch& batch);

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
  /// The row of this name, made where it is new; kNoRow where there are too many.
  RowIndex row(RowGroup group, std::string_view name);
  RowIndex row(const TensorKey& tensor);
  /// A span, of which `event` says the rest; without a row it is dropped.
  void push(RowIndex row, std::string_view name, TraceTime begin, TraceTime end, TraceEvent event);

  std::size_t capacity_;
  std::size_t most_rows_;
  std::vector<TraceEvent> events_;
  std::vector<TraceRow> new_rows_;
  std::unordered_map<std::string, RowIndex> rows_;  ///< by group and name
  std::uint64_t dropped_ = 0;
  std::map<UnitKey, OpenUnit> units_;
  std::map<std::pair<ProcessSet, std::uint64_t>, OpenStage> stages_;  ///< by set and slot
};

/// `path` with each "%r" replaced by the rank. Where it has none, ".<rank>" is put before the file
/// name's extension, so that ranks never share a file: "a/t.json" -> "a/t.3.json".
std::string timeline_file(std::string_view path, int rank);

/// A source of events whose times are known only later, such as a device. Thread rule: both by the
/// writer's thread, one call at a time; after drop() nothing comes until the trace is on again.
class TraceSource {
 public:
  virtual ~TraceSource() = default;
  /// Records what is known by now, without blocking; true while something is still to come.
  virtual bool collect() = 0;
  /// Forgets the rest and releases what it needed; returns how many events are lost.
  virtual std::uint64_t drop() noexcept = 0;
};

struct TraceOptions {
  std::size_t events = kTraceEvents;
  std::size_t rows = kTraceRows;
  /// The file is behind by at most about this.
  std::chrono::milliseconds write_interval{200};
  /// How long stop() waits for a device to finish what it was given before.
  std::chrono::milliseconds source_limit{1000};
};

/// While on, its lock is held to add an event or to exchange the buffers, never during input or
/// output; the lock is a leaf: it may be taken under any other. Thread rule: any thread.
class Trace {
 public:
  explicit Trace(const TraceOptions& options = {});
  /// Stops.
  ~Trace();

  bool on() const noexcept { return on_.load(std::memory_order_relaxed); }

  /// Throws Error(invalid_argument) where the file cannot be written, Error(invalid_use) while on.
  void start(const std::string& file, const TraceIdentity& identity);
  /// Completes the file, if there is one. Throws Error(transport) where not all could be written.
  void stop();
  /// stop() for destructors: failures are logged.
  void close() noexcept;

  /// `body` is called with the recording, where there is one.
  template <class Body>
  void record(Body&& body) {
    bool wake = false;
    {
      const LockGuard lock(mutex_);
      if (!recording_) return;
      const bool before = recording_->half_full();
      body(*recording_);
      wake = !before && recording_->half_full();
    }
    if (wake) wake_.notify_one();
  }

  /// The source outlives its attachment; detach() waits for calls under way.
  void attach(TraceSource& source);
  void detach(TraceSource& source) noexcept;

 private:
  class File;
  void run_writer();
  bool collect();
  void finish_sources();

  const TraceOptions options_;
  std::atomic<bool> on_{false};

  Mutex control_mutex_;         ///< start and stop
  std::unique_ptr<File> file_;  ///< under control_mutex_, or the writer's
  std::thread writer_ HORA_GUARDED_BY(control_mutex_);

  Mutex mutex_;
  std::condition_variable_any wake_;  ///< the writer's
  std::optional<Recording> recording_ HORA_GUARDED_BY(mutex_);
  bool stopping_ HORA_GUARDED_BY(mutex_) = false;

  Mutex sources_mutex_;
  std::vector<TraceSource*> sources_ HORA_GUARDED_BY(sources_mutex_);
};

/// A place for hooks: each costs one relaxed load while the trace is off. The trace outlives it.
/// Copied freely; default-constructed: always off. Thread rule: any thread.
class Tracer {
 public:
  Tracer() noexcept = default;
  explicit Tracer(Trace* trace, ProcessSet set = kWorld) noexcept : trace_(trace), set_(set) {}
  /// For what a process set does, in the same trace.
  Tracer of_set(ProcessSet set) const noexcept { return Tracer(trace_, set); }

  Trace* trace() const noexcept { return trace_; }
  TensorKey tensor(std::string_view name) const noexcept { return {name, set_}; }
  UnitKey unit(std::uint64_t number) const noexcept { return {number, set_}; }
  bool on() const noexcept { return trace_ != nullptr && trace_->on(); }

  /// See Recording; now is the time where none is given.
  void marked(std::string_view name, std::string_view mark) const {
    record([&](Recording& recording) { recording.marked(tensor(name), mark, trace_now()); });
  }
  void negotiated(std::string_view name, TraceTime submitted, TraceTime decided, int last_rank = -1,
                  TraceTime late = {}) const {
    record([&](Recording& recording) {
      recording.negotiated(tensor(name), submitted, decided, last_rank, late);
    });
  }
  void started(std::uint64_t number) const {
    record([&](Recording& recording) { recording.started(unit(number), trace_now()); });
  }
  void completed(std::uint64_t number) const {
    record([&](Recording& recording) { recording.completed(unit(number), trace_now()); });
  }
  void chunk(const ChunkFacts& chunk, ChunkStage stage) const {
    record([&](Recording& recording) { recording.chunk(chunk, stage, trace_now()); });
  }

  /// `body(Recording&)`, while the trace is on.
  template <class Body>
  void record(Body&& body) const {
    if (on()) trace_->record(body);
  }

 private:
  Trace* trace_ = nullptr;
  ProcessSet set_ = kWorld;
};

/// "main thread", or the calling thread's name and number.
std::string this_thread_name();

}  // namespace hora::internal
