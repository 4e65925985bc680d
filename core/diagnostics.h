/// Reports of errors that no call can throw. Does not include fmt: some builds of LibTorch bring
/// their own.
#pragma once

#include <hora/export.h>

#include <exception>
#include <functional>
#include <string>

namespace hora::internal {

class FlightRecorder;

/// While it lives, std::terminate() first logs which rank ends the job, and the exception's type
/// and text, which are the cause in the rank's flight record, too; then the handler that was
/// installed before is called, but for the C++ library's own, which would repeat them. One at a
/// time. Thread rule: one thread.
class TerminateReport {
 public:
  /// Neither throws, and both return soon.
  struct Calls {
    /// Whether this rank's log, or that of the rank which failed first, has the text of the
    /// exception: it is not repeated then, below the level "info". Unset: never.
    std::function<bool(const std::string& why)> is_logged;
    /// Sends the exception's type and text to other ranks. May be unset.
    std::function<void(const std::string& why)> notify_peers;
  };

  /// `flight` outlives it; null: there is no record.
  explicit TerminateReport(int rank, FlightRecorder* flight = nullptr, Calls calls = {});
  ~TerminateReport();
  TerminateReport(const TerminateReport&) = delete;
  TerminateReport& operator=(const TerminateReport&) = delete;

 private:
  const Calls calls_;
};

/// The text of the last Error made on this thread, as far as it fits, while that object lives:
/// while it unwinds the stack. Empty where there is none. Destructors cannot use
/// std::current_exception(), which is null until a catch clause is entered.
std::string error_in_flight();

/// As log().warn() in log.h. Thread rule: any thread.
HORA_EXPORT void log_warning(const std::string& text);
/// Likewise, log().info().
HORA_EXPORT void log_info(const std::string& text);

}  // namespace hora::internal
