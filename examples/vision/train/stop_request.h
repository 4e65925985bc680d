/// A training that is told to end: SIGTERM or SIGUSR1, at any rank.
#pragma once

#include <hora/context.h>
#include <hora/handle.h>

#include <array>
#include <csignal>
#include <string>

namespace vision {

/// Exit code of a training that was told to end before its last epoch, and can be started again to
/// go on: EX_TEMPFAIL of sysexits.h.
inline constexpr int stopped_exit_code = 75;

/// While it lives, SIGTERM and SIGUSR1 do not end the process, but are noted; afterwards the
/// handlers before it are back. It may outlive the context's end, after finish(), so that a late
/// signal does not end a program that has done all its work. Thread rule: one thread, one at a
/// time.
class StopRequest {
 public:
  explicit StopRequest(const hora::Context& world);
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  /// After each step, on every rank: whether a rank had got a signal at the poll before; once true
  /// it stays so. Collective: 4 bytes are reduced while the next step goes on.
  bool poll();
  /// Waits for the exchange that the last poll() has begun, before the context's end. Collective.
  void finish();
  /// The signal's name, "SIGUSR1" or, where any rank has got that, "SIGTERM"; empty before poll()
  /// is true. The same on every rank.
  std::string signal() const;

 private:
  const hora::Context& world_;
  std::array<struct sigaction, 2> before_ = {};
  int value_ = 0;  ///< hora's while the handle is open: the signal, or 0
  hora::Handle handle_;
};

}  // namespace vision
