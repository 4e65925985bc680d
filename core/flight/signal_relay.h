/// SIGUSR1 and SIGUSR2, which batch systems send before they end a job: one that comes to this rank
/// is passed on to all.
#pragma once

#include <sys/types.h>

#include <csignal>

namespace hora::internal {

/// While it lives, the program's own handlers of these signals are preceded by one that sends the
/// signal to the guard (unless it came from there), which signals all other ranks. A signal without
/// a handler of the program keeps its effect, and is not watched. One at a time. Thread rule: one
/// thread; signals on any.
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
