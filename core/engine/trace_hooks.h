/// What the engine records in a timeline about submissions. Each costs one load while it is off.
#pragma once

#include <memory>
#include <vector>

#include "core/engine/submission.h"
#include "core/negotiation/topology.h"
#include "core/trace/trace.h"

namespace hora {

inline void trace_decided(const Tracer& trace, const Submission& submission) {
  trace.record([&](Recording& recording) {
    recording.negotiated(trace.tensor(submission.name), submission.submitted,
                         submission.decided_at);
  });
}

/// Its ranks disagree: it will not run.
inline void trace_failed(const Tracer& trace, const Submission& submission) {
  trace.record([&](Recording& recording) {
    const TraceTime time = trace_now();
    recording.negotiated(trace.tensor(submission.name), submission.submitted, time);
    recording.marked(trace.tensor(submission.name), "mismatch", time);
  });
}

TraceIdentity identity_of(const Topology& topology, int rank);

/// Before the unit starts.
void trace_unit(const Tracer& trace, std::uint64_t number, const Unit& unit,
                const std::vector<std::shared_ptr<Submission>>& submissions);

/// For the time in which a thread is blocked; records nothing where it is finished already.
class TracedWait {
 public:
  TracedWait(const Tracer& trace, const Submission& submission) : trace_(trace) {
    if (!trace.on() || submission.finished()) return;
    submission_ = &submission;
    begin_ = trace_now();
  }
  ~TracedWait() {
    if (submission_) finish();
  }
  TracedWait(const TracedWait&) = delete;
  TracedWait& operator=(const TracedWait&) = delete;

 private:
  void finish() noexcept;

  const Tracer& trace_;
  const Submission* submission_ = nullptr;
  TraceTime begin_{};
};

}  // namespace hora
