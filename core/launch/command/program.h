/// The program that ranks shall run, looked at before the start: where it is, and which libraries
/// it is linked with, from its file. Nothing of it is executed or loaded.
///
/// ELF (System V gABI, chapters 4 and 5; 64 bits, little-endian): the program headers name the
/// dynamic section, whose DT_NEEDED entries are offsets into its string table. Every offset and
/// number is checked against the bounds below, whatever the file holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/command/mpi_installation.h"

namespace hora::launch {

struct ElfLibraries {
  std::uint16_t machine = 0;        ///< e_machine: 62 is x86-64, 183 AArch64
  std::vector<std::string> needed;  ///< names as linked ("libmpi.so.40"), in order; empty: static
  std::string run_path;             ///< DT_RUNPATH, else DT_RPATH

  bool operator==(const ElfLibraries&) const = default;
};

/// Reads exactly the bytes of `target` from `offset` of a file; false where it holds fewer.
using ReadAt = std::function<bool(std::uint64_t offset, std::span<std::byte> target)>;

inline constexpr std::size_t kMostElfHeaders = 256;
inline constexpr std::size_t kMostDynamicEntries = 4096;
inline constexpr std::size_t kLongestElfText = 4096;

/// The error says what is wrong with the file, without its name. Pure but for `read`.
tl::expected<ElfLibraries, std::string> read_elf_libraries(const ReadAt& read);

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
