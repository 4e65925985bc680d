/// Whether this process is the one that made an object, or a child that fork() gave a copy of it.
#pragma once

#include <sys/types.h>

#include <atomic>

namespace hora {

/// A forked child has its parent's memory, but none of its threads, none of its place in the job,
/// and any lock as another thread held it. Of what a ProcessOwner guards it may destroy nothing.
/// Thread rule: any thread. Asking costs one load.
class ProcessOwner {
 public:
  ProcessOwner();
  ~ProcessOwner();
  ProcessOwner(const ProcessOwner&) = delete;
  ProcessOwner& operator=(const ProcessOwner&) = delete;

  /// False in every process forked from the one that made this.
  bool is_this_process() const noexcept;

 private:
  std::atomic<bool>* mark_;  ///< true; in a child the kernel has cleared it; null: no such kernel
  pid_t process_;
};

}  // namespace hora
