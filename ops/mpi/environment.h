/// MPI's start and end in this process, at most once each; and the identity of its library: is it
/// the one that hora was compiled for, and the launcher's? And does it take memory of GPUs?
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace hora::internal {

/// The library whose mpi.h hora was compiled with: "Open MPI 4.1.4", "MPICH 4.0.2"; empty where
/// mpi.h does not say.
std::string compiled_mpi();

/// The first line of MPI_Get_library_version, without which package it comes from: "Open MPI
/// v4.1.4", "MPICH Version: 4.0.2". Before MPI is initialised, too.
std::string running_mpi();

/// Says what is wrong where the library in this process has other types behind MPI's names than the
/// header: MPICH's relatives share MPICH's, Open MPI's hold from a version on. Empty where a name
/// is not known. Pure.
std::optional<std::string> library_mismatch(std::string_view compiled, std::string_view running);

/// Whether that text is of an Open MPI of this major version or a later one. Pure.
bool is_open_mpi_from(int major_version, std::string_view running);

/// Looks up an environment variable; null where it is not set.
using EnvironmentLookup = std::function<const char*(const char*)>;

/// The error where a launcher reports several processes, but MPI sees one: the mpirun of one MPI
/// library started a program linked with another; or where an Open MPI 5 was started by the mpirun
/// of an earlier one. `library`: running_mpi(). Pure.
std::optional<std::string> launcher_mismatch(int world_size, std::string_view library,
                                             const EnvironmentLookup& lookup);

enum class CudaSupport : std::uint8_t { unknown, no, yes };

/// Whether this process's MPI takes pointers to CUDA memory, as it reports itself, which can be
/// wrong: Open MPI has said no where UCX did take them (its issues 7963 and 11070). Call it once
/// MPI has started and a device has been chosen.
CudaSupport mpi_cuda_support();

/// Held by every user of MPI. The first initialises MPI where the application has not, and
/// MPI_Finalize runs at the process's exit. A process that exits, or whose application finalises
/// MPI, while one is held aborts the job, with a message; a forked child may exit. Thread rule: one
/// thread at a time.
class MpiEnvironment {
 public:
  /// Asks for MPI_THREAD_MULTIPLE; SERIALIZED is enough. MPI takes its arguments out of argv.
  /// Throws Error(transport): MPI is finalised, its thread level is less, or launcher, library and
  /// header differ. Throws Error(invalid_use) in a forked child.
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
