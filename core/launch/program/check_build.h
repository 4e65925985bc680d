/// What this hora was built with, and what this host has for it (--check-build).
#pragma once

#include <string>

#include "core/launch/command/mpi_installation.h"

namespace hora::launch {

/// As the build configured it.
struct BuildFacts {
  std::string version;
  std::string mpi;         ///< "Open MPI 4"
  std::string torch = {};  ///< version; empty: built without
  bool cuda = false;
};
BuildFacts this_build();

/// The widest vector instructions of this processor that hora has kernels for.
std::string vector_instructions();

/// One line a subject: what there is, or what is missing and how to get it. Pure.
std::string check_build_text(const BuildFacts& build,
                             const tl::expected<MpiInstallation, std::string>& mpi,
                             const std::string& vectors);

}  // namespace hora::launch
