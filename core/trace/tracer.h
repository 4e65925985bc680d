/// What the engine and the transports record in a timeline.
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
  explicit Tracer(Trace* trace, ProcessSet set = 0) noexcept : trace_(trace), set_(set) {}
  /// For what a process set does, in the same trace.
  Tracer of_set(ProcessSet set) const noexcept { return Tracer(trace_, set); }

  Trace* trace() const noexcept { return trace_; }
  TensorKey tensor(std::string_view name) const noexcept { return {name, set_}; }
  UnitKey unit(std::uint64_t number) const noexcept { return {number, set_}; }
  bool on() const noexcept { return trace_ != nullptr && trace_->on(); }

  /// See Recording; now is the time.
  ///@{
  void marked(std::string_view name, std::string_view mark) const {
    record([&](Recording& recording) { recording.marked(tensor(name), mark, trace_now()); });
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
  ProcessSet set_ = 0;
};

/// "main thread", or the calling thread's name and number.
std::string this_thread_name();

}  // namespace hora
