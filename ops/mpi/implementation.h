/// The identity of the MPI library: is it the one that hora was compiled for, and the launcher's?
/// And does it take memory of GPUs?
#pragma once

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

/// What is wrong where the library in this process has other types behind MPI's names than the
/// header that hora was compiled with. MPICH's relatives (Intel MPI, MVAPICH, Cray MPICH) share
/// MPICH's; Open MPI's hold from a version on, not before it. Empty where a name is not known.
/// Pure.
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
/// MPI has started and a device has been chosen. CMake selects the source (cuda_support_*.cpp), by
/// what MPI's headers have; none without HORA_CUDA.
CudaSupport mpi_cuda_support();

}  // namespace hora::internal
