/// MPI's start and end in this process: initialised at most once, finalised at most once.
#pragma once

#include <chrono>
#include <functional>

namespace hora::internal {

/// Held by every user of MPI. The first one initialises MPI where the application has not; then
/// MPI_Finalize runs at the process's exit, because MPI cannot start again. A process that exits
/// while one is held left its peers behind: the job is aborted instead, with a message; so is one
/// whose application calls MPI_Finalize then. A forked child may exit at any time. Thread rule: one
/// thread at a time.
class MpiEnvironment {
 public:
  /// Asks for MPI_THREAD_MULTIPLE; SERIALIZED is enough. MPI takes its own arguments out of argv.
  /// Throws Error(transport): MPI is finalised already, its thread level is less, or the launcher
  /// belongs to another MPI library, or the library to another header. Throws Error(invalid_use) in
  /// a forked child.
  explicit MpiEnvironment(int* argc = nullptr, char*** argv = nullptr);
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;
  ~MpiEnvironment();

  /// This process has finished with MPI, as agreed with its peers. The destructor calls it.
  void release() noexcept;
  /// True: other threads may call MPI at the same time.
  bool thread_multiple() const noexcept { return thread_multiple_; }

 private:
  bool held_ = false;
  bool thread_multiple_ = false;
};

/// Ends every process of the job at once, without MPI_Finalize, which could hang. The exit code is
/// `code`, or 1 for 0.
[[noreturn]] void abort_job(int code) noexcept;

/// From here on this process's exit, or MPI_Finalize, ends the job, as a failure: they would wait
/// for peers that have not called them, or that wait themselves.
void abandon_job() noexcept;
/// The same, and after `grace` it ends anyway; `first` is called before that, by any thread.
void abandon_job(std::chrono::milliseconds grace, std::function<void()> first);

}  // namespace hora::internal
