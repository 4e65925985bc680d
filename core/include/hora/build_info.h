/// The parts of this build of hora.
///
///     std::cout << "hora " << hora::version() << '\n';
#pragma once

#include <hora/export.h>

#include <string>
#include <string_view>

namespace HORA_EXPORT hora {

/// Returns the version of the library in this process: "0.1.0". Any thread.
std::string_view version() noexcept;

/// Empty: not built in.
struct BuildInfo {
  std::string mpi;   ///< the library in this process, in its own words: "Open MPI v4.1.4, ..."
  std::string cuda;  ///< the toolkit that hora was compiled with: "12.6"
  std::string nccl;  ///< likewise: "2.21.5"
};

/// Also before init(). Throws Error(transport) where MPI does not say what it is. Any thread.
BuildInfo build_info();

}  // namespace hora
