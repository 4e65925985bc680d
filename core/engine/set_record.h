/// A process set's part of its rank's flight record.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/engine/parts.h"
#include "core/engine/submission.h"
#include "core/flight/flight_recorder.h"
#include "core/flight/record_writer.h"

namespace hora::internal {

/// Thread rule: decided() and started(): the thread that makes progress; the rest: any thread.
class SetRecord {
 public:
  SetRecord(const FlightRecorder* flight, ProcessSet set, int peers)
      : writer_(flight ? flight->writer() : RecordWriter()),
        set_(set),
        peers_(static_cast<std::size_t>(peers)) {}

  bool on() const { return writer_.on(); }
  /// Before it is announced.
  void submitted(Submission& submission) const {
    submission.record = writer_.submitted(submission.name, set_, submission.signature,
                                          submission.memory.bytes(), peers_, submission.submitted);
  }
  /// Each one that the set decides, in its order.
  void decided(const Submission& submission) {
    writer_.decided(submission.record, ++decided_, submission.decided_at);
  }
  void started(const Submission& submission, Duration time) const {
    writer_.started(submission.record, time);
  }
  void finished(const Submission& submission, bool failed, Duration time) const {
    writer_.finished(submission.record, failed ? RecordOutcome::failed : RecordOutcome::done, time);
  }
  /// A thread begins or ends to wait for a result.
  void blocked(bool begins) const { writer_.blocked(begins); }

 private:
  RecordWriter writer_;
  ProcessSet set_;
  std::size_t peers_;
  std::uint64_t decided_ = 0;
};

}  // namespace hora::internal
