/// The flight record of this rank: where its memory is, and what becomes of it when the rank fails.
#pragma once

#include <hora/error.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "core/flight/record_writer.h"

namespace hora::internal {

/// Under horarun the memory is the guard's, which reads it after the rank's end; otherwise it is
/// the rank's own, and the rank that fails writes it to a file itself, if it can. Thread rule:
/// failed() and writer(): any thread; the rest: one thread.
class FlightRecorder {
 public:
  /// hora::init begins. `variable`: the value of kRecordVariable, null where it is not set. Memory
  /// that cannot be used is logged as a warning, and replaced by the rank's own.
  explicit FlightRecorder(const char* variable);
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  RecordWriter writer() const noexcept { return writer_; }
  /// Whether roots keep a ledger of arrivals: not where the variable says "off".
  bool counts_arrivals() const noexcept { return counts_arrivals_; }
  /// The process of the guard; 0 where there is none.
  std::int64_t guard() const noexcept;

  /// From here on a failure is written there; empty: nowhere. Throws Error(invalid_setting) where
  /// nothing can be written. Without effect where there is a guard.
  void write_failures_to(const std::string& folder);
  /// The first call writes the cause, and the file.
  ///@{
  void failed(const Error& error) noexcept;
  void failed(const std::string& cause) noexcept;
  /// The cause is of another rank.
  void failed_elsewhere(const Error& error) noexcept;
  ///@}

 private:
  void write_once() noexcept;

  std::optional<RecordMemory> memory_;  ///< none: off
  bool counts_arrivals_;
  RecordWriter writer_;
  std::string folder_;
  std::atomic<bool> written_{false};
};

}  // namespace hora::internal
