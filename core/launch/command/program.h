/// The program that ranks shall run, looked at before the start.
#pragma once

#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/command/elf_libraries.h"
#include "core/launch/command/mpi_installation.h"

namespace hora::launch {

struct ProgramFile {
  std::string path;  ///< as it would be executed
  std::optional<ElfLibraries>
      libraries;  ///< none of a script, whose interpreter is another program
};

/// A path that is not absolute, from `folder`; a name without a slash, which PATH is searched for,
/// as it is. Pure.
std::string program_from(const std::string& folder, const std::string& program);

/// `program` as execvp finds it: a path, or a name on `search_path`. The error says what is wrong:
/// not there, a folder, not executable by this user, neither a program nor a script, for another
/// machine.
tl::expected<ProgramFile, std::string> inspect_program(const std::string& program,
                                                       std::string_view search_path);

enum class LinkedMpi {
  none,      ///< statically linked, loaded later (Python), or behind a library of the program's
  open_mpi,  ///< libmpi.so.20 (Open MPI 2), .40 (3 to 5)
  mpich,     ///< libmpich.so.*, or libmpi.so.12: the ABI of MPICH, Intel MPI, MVAPICH
};
/// Pure.
LinkedMpi linked_mpi(const std::vector<std::string>& needed);

/// What is wrong with starting a program linked with `linked` by this mpirun; empty where nothing
/// is. Its ranks would each believe that they are alone. Pure.
std::string wrong_with_linked_mpi(const std::string& program, LinkedMpi linked,
                                  const MpiInstallation& mpi);

}  // namespace hora::launch
