/// Reports of errors that no call can throw. Without fmt: some builds of LibTorch bring their own.
#pragma once

#include <hora/export.h>

#include <exception>
#include <functional>
#include <string>

namespace hora::internal {

/// While it lives, std::terminate() first has `report`, which does not throw, say which rank ends
/// the job and why, or logs that; then the handler that was installed before is called, but for the
/// C++ library's own. One at a time. Thread rule: one thread.
class TerminateReport {
 public:
  using Report = std::function<void(const std::string& why)>;
  explicit TerminateReport(int rank, Report report = {});
  ~TerminateReport();
  TerminateReport(const TerminateReport&) = delete;
  TerminateReport& operator=(const TerminateReport&) = delete;

 private:
  const Report report_;
};

/// Logs which rank ends the job. `is_known`: some rank's log has the reason.
void log_end(int rank, const std::string& why, bool is_known = false) noexcept;

/// The text of the last Error made on this thread while that object lives (while it unwinds the
/// stack), as far as it fits; else empty. For destructors, where std::current_exception() is null.
std::string error_in_flight();

/// As log().warn() in log.h. Thread rule: any thread.
HORA_EXPORT void log_warning(const std::string& text);
/// As log().info().
HORA_EXPORT void log_info(const std::string& text);

}  // namespace hora::internal
