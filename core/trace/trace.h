/// The engine's timeline: off, or written to a file by a thread of its own; and the hooks by which
/// the engine and the transports record in it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/base/sync.h"
#include "core/trace/trace.h"

namespace hora::internal {

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
  explicit Trace(const TraceOptions& options = {}) : options_(options) {}
  /// Stops.
  ~Trace() { close(); }
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  bool on() const noexcept { return on_.load(std::memory_order_relaxed); }

  /// Throws Error(invalid_argument) where the file cannot be written, Error(invalid_use) while on.
  void start(const std::string& file, const TraceIdentity& identity);
  /// The file is complete when this returns; nothing where the trace is off. Throws
  /// Error(transport) where not all of it could be written.
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
      const bool before = recording_->buffer().half_full();
      body(*recording_);
      wake = !before && recording_->buffer().half_full();
    }
    if (wake) wake_.notify_one();
  }

  /// The source outlives its attachment; detach() waits for calls under way.
  void attach(TraceSource& source);
  void detach(TraceSource& source) noexcept;

 private:
  void run_writer();
  void write(EventBatch& batch);
  bool collect();
  void finish_sources();

  const TraceOptions options_;
  std::atomic<bool> on_{false};

  Mutex control_mutex_;               ///< start and stop
  std::optional<TimelineFile> file_;  ///< under control_mutex_, or the writer's
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
  ///@{
  void marked(std::string_view name, std::string_view mark) const {
    record([&](Recording& recording) { recording.marked(tensor(name), mark, trace_now()); });
  }
  void negotiated(std::string_view name, TraceTime submitted, TraceTime decided,
                  const LastRank& last = {}) const {
    record([&](Recording& recording) {
      recording.negotiated(tensor(name), submitted, decided, last);
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
  ///@}

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
