/// What this hora was built with, and what this host has for it (--check-build).
#pragma once

#include <string>
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

}  // namespace hora::launch
