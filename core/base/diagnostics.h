/// Reports of errors that no call can throw. Does not include fmt: some builds of LibTorch bring
/// their own.
#pragma once

#include <hora/export.h>

#include <exception>
#include <functional>
#include <string>

namespace hora::internal {

/// None throws, and all return soon; each may be unset. `why`: the exception's type and text.
struct TerminateCalls {
  /// Whether this rank's log, or that of the rank which failed first, has the text of the
  /// exception: it is not repeated then, below the level "info".
  std::function<bool(const std::string& why)> is_logged = {};
  /// Before it is logged: the cause for the rank's flight record.
  std::function<void(const std::string& why)> record = {};
  /// Tells other ranks.
  std::function<void(const std::string& why)> notify_peers = {};
};

/// While it lives, std::terminate() first logs which rank ends the job, and the exception's type
/// and text; then the handler that was installed before is called, but for the C++ library's own,
/// which would repeat them. One at a time. Thread rule: one thread.
class TerminateReport {
 public:
  explicit TerminateReport(int rank, TerminateCalls calls = {});
  ~TerminateReport();
  TerminateReport(const TerminateReport&) = delete;
  TerminateReport& operator=(const TerminateReport&) = delete;

 private:
  const TerminateCalls calls_;
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
