/// This process's identity in messages, and whether it is a forked child of a rank.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>

namespace hora::internal {

/// One process of the job.
struct ProcessIdentity {
  int rank = -1;
  std::string host = {};
  std::int64_t pid = 0;
};

/// By which ranks know the name that horarun's user has for their host.
inline constexpr const char* kHostVariable = "HORARUN_HOST";

/// This host's name, as horarun has it; "unknown" where it has none.
std::string host_name();

/// A text that differs from that of processes whose pids mean nothing here (pid_namespaces(7));
/// "unknown" where there is no /proc.
std::string pid_namespace();

/// This process as `rank`.
ProcessIdentity identity_of_process(int rank);

/// True where descriptors that are not the program's own have been closed since the first call, as
/// a loop of close() over all numbers does. Thread rule: any thread.
bool descriptors_are_gone() noexcept;

/// "rank 3 (host node7, pid 4242)"; what is not known is left out.
std::string to_string(const ProcessIdentity& process);

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

}  // namespace hora::internal
