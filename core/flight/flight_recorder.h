/// The flight record of this rank, and the relay of SIGUSR1 and SIGUSR2, which batch systems send
/// before they end a job: one that comes to this rank is passed on to all.
#pragma once

#include <hora/error.h>
#include <sys/types.h>

#include <atomic>
#include <csignal>
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

/// While it lives, the program's handlers of these signals are preceded by one that sends the
/// signal to the guard (unless it came from there), which signals all other ranks. A signal without
/// a handler keeps its effect. One at a time. Thread rule: one thread; signals on any.
class SignalRelay {
 public:
  /// The program has installed its handlers before.
  explicit SignalRelay(pid_t guard) noexcept;
  /// Puts the program's handlers back, where no others have been installed meanwhile.
  ~SignalRelay();
  SignalRelay(const SignalRelay&) = delete;
  SignalRelay& operator=(const SignalRelay&) = delete;
};

}  // namespace hora::internal
