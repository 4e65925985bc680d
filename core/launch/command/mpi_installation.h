/// The MPI that starts the ranks: which it is, told from its own words, and where it lies.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>

namespace hora::launch {

enum class MpiFlavour {
  open_mpi_4,  ///< Open MPI 3 and 4: ORTE, whose daemon is orted
  open_mpi_5,  ///< Open MPI 5: PRRTE, whose daemon is prted
  hydra,       ///< MPICH, and what is made of it with hydra as its launcher (MVAPICH)
};
std::string_view name_of(MpiFlavour flavour) noexcept;

struct MpiVersion {
  MpiFlavour flavour = MpiFlavour::open_mpi_4;
  std::string version;  ///< digits and dots, and what follows at once ("5.0.11", "4.1.5rc2")

  bool operator==(const MpiVersion&) const = default;
};

struct MpiInstallation {
  MpiFlavour flavour = MpiFlavour::open_mpi_4;
  std::string version;
  std::string mpirun;  ///< absolute path
  /// Absolute path of orted or prted beside it; empty where PATH has to find it on other hosts.
  std::string daemon;
};

/// From what `mpirun --version` printed. Pure. Intel MPI is refused as others are: its mpirun is a
/// script around hydra whose options have not been tried. The error says which program printed what
/// instead.
tl::expected<MpiVersion, std::string> parse_mpi_version(std::string_view mpirun,
                                                        std::string_view output);

/// Where to look for mpirun, in this order; the first that is there is taken.
struct MpiSearch {
  std::string
      explicit_path;        ///< --mpirun, a path or a name on PATH; empty: none. Nothing else then
  std::string built_with;   ///< that of the MPI for which this hora was compiled
  std::string search_path;  ///< PATH: mpirun, mpiexec, mpirun.openmpi, mpirun.mpich
};

/// This hora's own: --mpirun's value, what it was built with, and PATH.
MpiSearch mpi_search(std::string explicit_path);

/// Runs `mpirun --version`. The error says where was looked, or what the program found has said,
/// and what to do.
tl::expected<MpiInstallation, std::string> find_mpi(const MpiSearch& search);

/// The executable file `name` on `search_path`, absolute; `name` itself where it holds a slash.
/// Empty: none.
std::string find_program(const std::string& name, std::string_view search_path);

}  // namespace hora::launch
