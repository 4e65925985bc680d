/// The MPI that starts the ranks: which it is, told from its own words, where it lies, and the
/// command line of its mpirun. Pure, but for find_mpi().
///
/// The command asks of each flavour: ranks host by host (0..k-1 on the first), no binding (a
/// rank's guard binds), as many ranks on a host as the input says whatever mpirun thinks of its
/// cores, every remote daemon by `remote_shell` straight from mpirun (no tree), no allocation
/// looked for by mpirun itself.
///
/// Found by experiment with Open MPI 4.1.4 and 5.0.11 and MPICH 4.0.2; mpirun_test.cpp repeats much
/// of it with the mpirun at hand.
/// - `remote_shell` is called with [options] host word...; it may exit with 0 before the daemon has
///   connected. After another status Open MPI ends; hydra waits for longer than a minute, as does
///   every flavour for a daemon that never connects. prterun ignores SIGTERM meanwhile.
/// - The daemon stays the child of who starts it (the options that leave the session attached).
/// - A local rank inherits mpirun's variables, a remote one its daemon's, and MPI's own; for Open
///   MPI these include OMPI_MCA_* of mpirun's environment, for hydra, by -genvnone, none of it.
/// - Both Open MPI read the program's arguments, too, and `:` ends a program for all: see
///   encode_words(). The same option twice is an error for some, and the command line wins over a
///   variable: what a user may want to change is left out where the user gives it, or a variable.
/// - With `host:ranks` for every host no flavour needs permission for more ranks than cores. Open
///   MPI 5's OVERSUBSCRIBE distributes ranks otherwise than the numbers say.
/// - In a list of hosts Open MPI 4 puts its own first. Where it stands elsewhere, each host is an
///   application of its own (MPMD), in order.
/// - Exit statuses are no evidence: Open MPI 5 returned 14 for a rank that ended by SIGABRT. 4's
///   `--quiet` would also silence what is said of a daemon that could not be started.
/// - PRRTE's prte_if_include takes names that every host has: of CIDR forms it goes on with all. It
///   drops loopback first, and ends without any (openpmix/prrte pull request 2788).
/// - mpirun and its daemons listen at every address: *_if_include chooses what others are told.
///   Ranks of one host need not: without btl tcp and ofi they listen nowhere.
/// - hydra's daemons connect to mpirun by the name of the first local host, be it "localhost":
///   `local_address` is needed where there are other hosts. -launcher ssh would put -x before the
///   remote shell's own arguments, -launcher rsh does not.
/// - Open MPI 5's remote daemon may miss the end of a rank that ends at once: a guard lives for a
///   second, or the supervisor ends mpirun.
/// - Hosts that are one machine, with its host name and its /dev/shm, crash in Open MPI's btl
///   vader, hang in UCX, and have wrong local sizes in Open MPI 5. Such emulated hosts need a UTS
///   and a mount namespace each (and UCX_TLS=tcp,self), or `--mca btl self,tcp`.
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

/// Where to look for mpirun, in this order; the first that is there is taken.
struct MpiSearch {
  std::string explicit_path;  ///< --mpirun: a path or a name on PATH, and nothing else; empty: none
  std::string built_with;     ///< that of the MPI for which this hora was compiled
  std::string search_path;    ///< PATH: mpirun, mpiexec, mpirun.openmpi, mpirun.mpich
};

/// This hora's own: --mpirun's value, what it was built with, and PATH.
MpiSearch mpi_search(std::string explicit_path);

/// Runs `mpirun --version`. The error says where was looked, or what the program found has said,
/// and what to do.
tl::expected<MpiInstallation, std::string> find_mpi(const MpiSearch& search);

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
