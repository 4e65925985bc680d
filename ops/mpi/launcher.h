/// Do the launcher and the MPI library of this process belong together?
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace hora {

/// Looks up an environment variable; null where it is not set.
using EnvironmentLookup = std::function<const char*(const char*)>;

/// What is wrong where a launcher says that it started several processes, but MPI sees one: the
/// mpirun of one MPI library started a program linked with another; or where an Open MPI 5 was
/// started by the mpirun of an earlier one. `library`: running_mpi(). Pure.
std::optional<std::string> launcher_mismatch(int world_size, std::string_view library,
                                             const EnvironmentLookup& lookup);

}  // namespace hora
