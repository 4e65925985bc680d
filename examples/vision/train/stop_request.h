/// A training that is told to end: SIGTERM or SIGUSR1, at any rank.
///
///     vision::StopRequest stop(world);
///     for (...) {
///       optimizer.step();
///       if (stop.poll()) break;   // on every rank, after the same step
///     }
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
/// signal does not end a program that has done all its work. Ranks learn of each other's by one
/// number that is reduced while the next step goes on: from the signal to the end at most two steps
/// pass.
///
/// Cost: one allreduce_async of 4 bytes a step, which is done long before it is waited for.
///
/// One at a time: std::logic_error for a second. std::system_error where a handler cannot be
/// installed. Thread rule: one thread; signals on any. The handler only writes to an atomic.
class StopRequest {
 public:
  explicit StopRequest(const hora::Context& world);
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  /// After each step, on every rank: whether a rank had got a signal at the time of the poll
  /// before. The same on every rank; once true it stays so. Collective. Errors: as allreduce's.
  bool poll();
  /// Waits for the exchange that the last poll() has begun, before the context's end. Collective.
  void finish();
  /// The signal's name, "SIGUSR1" or, where any rank has got that, "SIGTERM"; empty before poll()
  /// is true. The same on every rank.
  std::string signal() const;

 private:
  const hora::Context& world_;
  std::array<struct sigaction, 2> before_ = {};
  int value_ = 0;  ///< hora's while the handle is open: 0, or the signal's place in the order
  hora::Handle handle_;
};

}  // namespace vision
