/// What this hora was built with, and what this host has for it (--check-build).
///
/// What a shared library says of itself is asked in a process of its own, which loads it, so that
/// horarun needs none of them, and whatever goes wrong in them ends that process alone.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/command/mpi_installation.h"

namespace hora::launch {

/// As the build configured it.
struct BuildFacts {
  std::string version;
  std::string mpi;                           ///< "Open MPI 4"
  std::vector<std::string> mpi_files = {};   ///< of its library: paths and names, the best first
  std::string torch = {};                    ///< version; empty: built without
  std::string cuda = {};                     ///< the toolkit's version; empty: built without
  std::string nccl = {};                     ///< the header's version
  std::vector<std::string> nccl_files = {};  ///< as `mpi_files`
};
BuildFacts this_build();

/// What is found when it is looked for; errors say what was tried.
struct HostFacts {
  tl::expected<MpiInstallation, std::string> mpirun;
  tl::expected<std::string, std::string> mpi_library;  ///< see Library::mpi
  /// Of a build with CUDA alone.
  tl::expected<std::string, std::string> cuda_driver = {};
  tl::expected<std::string, std::string> nccl = {};
  std::string vectors = {};  ///< see vector_instructions()
};

/// Of this host. `self` is the path of this program, `mpirun` the value of --mpirun.
HostFacts this_hosts_facts(const BuildFacts& build, const std::string& self,
                           const std::string& mpirun);

/// The widest vector instructions of this processor that hora has kernels for.
std::string vector_instructions();

/// Lines that begin with their subject: what there is, or what is missing and how to get it. Pure.
std::string check_build_text(const BuildFacts& build, const HostFacts& host);

enum class Library {
  mpi,          ///< "Open MPI v4.1.4..., MPI_THREAD_MULTIPLE": what MPI_Init_thread() grants
  nccl,         ///< "2.19.3"
  cuda_driver,  ///< "12.4": the newest CUDA that it supports
};

/// `horarun --query-library LIBRARY FILE...`, in that process: loads the first file that can be
/// loaded, and prints its answer in one line after kAnswer; the exit status.
int run_library_query(std::span<const std::string> arguments);

/// Starts it: `self` is the path of this program, `files` are paths or names that the dynamic
/// linker searches for. The error says what was tried and what failed. Takes a second at most, but
/// where the library hangs.
tl::expected<std::string, std::string> query_library(const std::string& self, Library library,
                                                     const std::vector<std::string>& files);

/// The answer among all that the process has printed, for MPI has words of its own. Pure.
tl::expected<std::string, std::string> answer_of(std::string_view output);

}  // namespace hora::launch
