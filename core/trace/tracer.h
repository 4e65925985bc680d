/// What the engine and the transports tell a timeline.
#pragma once

#include <string_view>
#include <vector>

#include "core/trace/trace.h"

namespace hora {

/// A place for hooks: each costs one relaxed load while the trace is off. The trace outlives it.
/// Copied freely; default-constructed: always off. Thread rule: any thread.
class Tracer {
 public:
  Tracer() noexcept = default;
  explicit Tracer(Trace* trace) noexcept : trace_(trace) {}

  Trace* trace() const noexcept { return trace_; }
  bool on() const noexcept { return trace_ != nullptr && trace_->on(); }

  /// See Recording; now is the time.
  ///@{
  void marked(std::string_view tensor, std::string_view mark) const {
    record([&](Recording& recording) { recording.marked(tensor, mark, trace_now()); });
  }
  void started(std::uint64_t unit) const {
    record([&](Recording& recording) { recording.started(unit, trace_now()); });
  }
  void completed(std::uint64_t unit) const {
    record([&](Recording& recording) { recording.completed(unit, trace_now()); });
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
};

/// "main thread", or the calling thread's name and number.
std::string this_thread_name();

}  // namespace hora
