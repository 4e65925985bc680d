/// The MPI that starts the ranks, and the command line of its mpirun: ranks host by host, unbound,
/// remote daemons by `remote_shell` straight from mpirun, no allocation looked for by mpirun itself
/// (core/launch/README.md). Pure, but for find_mpi().
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/command/command.h"

namespace hora::launch {

enum class MpiFlavour {
  open_mpi_4,  ///< Open MPI 3 and 4: ORTE, whose daemon is orted
  open_mpi_5,  ///< Open MPI 5: PRRTE, whose daemon is prted
  hydra,       ///< MPICH, and what is made of it with hydra as its launcher (MVAPICH)
};
std::string_view name_of(MpiFlavour flavour) noexcept;

struct MpiInstallation {
  MpiFlavour flavour = MpiFlavour::open_mpi_4;
  std::string version;  ///< digits and dots, and what follows at once ("5.0.11", "4.1.5rc2")
  std::string mpirun;   ///< absolute path
  /// Absolute path of orted or prted beside it; empty where PATH has to find it on other hosts.
  std::string daemon = {};
};

/// Flavour and version of `mpirun`, from its `--version`. Pure. Intel MPI is refused as others are:
/// its mpirun is a script around hydra whose options have not been tried. The error says which
/// program printed what instead.
tl::expected<MpiInstallation, std::string> parse_mpi_version(std::string_view mpirun,
                                                             std::string_view output);

/// Finds mpirun, and runs `mpirun --version`: `named` alone (--mpirun: a path or a name on PATH);
/// where that is empty `built_with`, of the MPI for which hora was compiled, else one on PATH.
tl::expected<MpiInstallation, std::string> find_mpi(const std::string& named);
tl::expected<MpiInstallation, std::string> find_mpi(const std::string& named,
                                                    const std::string& built_with,
                                                    const std::string& search_path);

struct MpiHost {
  std::string name;       ///< as remote_shell shall be given it
  int ranks = 1;          ///< at least 1
  bool is_local = false;  ///< this machine: mpirun starts these ranks itself. At most one host is.
};

/// Networks that MPI may use to reach other hosts. All empty: left to MPI.
struct MpiNetwork {
  /// In CIDR form ("10.0.0.0/24"): for hosts whose interfaces differ in name. Preferred over names.
  std::vector<std::string> subnets;
  /// Names that every host has.
  std::vector<std::string> interfaces;
  /// The address of this machine at which the others reach it.
  std::string local_address;
};

struct MpiCommandInput {
  MpiInstallation mpi;
  std::vector<MpiHost> hosts;
  /// A program's absolute path and its arguments.
  std::vector<std::string> remote_shell;
  /// Executed by each rank: a program's path and words that no mpirun takes for options.
  std::vector<std::string> rank_command;
  /// The user's own arguments for mpirun (--mpi-args), before the program.
  std::vector<std::string> extra_arguments;
  MpiNetwork network;
  bool allow_run_as_root = false;
  bool verbose = false;
};

/// The command. The error says what is wrong with the input: a path that the flavour's option
/// cannot carry, an argument of the user's that contradicts what horarun relies on. Variables of
/// the result give way to those that the user has set.
tl::expected<Command, std::string> mpi_command(const MpiCommandInput& input);

}  // namespace hora::launch
