/// Everything that the command line, the config file and the environment say about a job, checked:
/// each field is set by rows of option_table.h.
#pragma once

#include <hora/settings.h>

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/command/cores.h"
#include "core/launch/control/secret.h"
#include "core/launch/options/hosts.h"
#include "core/launch/options/rendezvous.h"

namespace hora::launch {

/// What horarun does: start a job, or print something and end.
enum class Action { run, help, man, completion, version, check_build, diagnose };

enum class Switch { automatic, off, on };

/// One -x. Ranks get it by its name: a value is put into the environment that is passed on, and
/// never printed or put on a command line.
struct ForwardedVariable {
  std::string name;
  std::optional<std::string> value;  ///< none: the value that it has in horarun's environment
  bool operator==(const ForwardedVariable&) const = default;
};

/// Made by parse_command_line().
struct LaunchOptions {
  Action action = Action::run;
  std::vector<std::string> program;  ///< with its arguments; not empty where action is `run`

  std::optional<int> np;
  std::vector<HostSlots> hosts;  ///< from -H or a hostfile; empty: this host, or an allocation's
  std::string hostfile;          ///< that `hosts` are from; empty: none
  std::optional<int> ranks_per_host;  ///< --nproc-per-node: this many on every host or node
  bool oversubscribe = false;
  std::string folder;  ///< in which the ranks start, on every host; empty: horarun's
  std::string mpirun;  ///< a path or a name on PATH; empty: that with which hora was built

  std::optional<RendezvousPlace> rendezvous;
  int nnodes = 1;
  std::optional<int> node_rank;       ///< below nnodes; none where the command does not say it
  std::string token_file;             ///< empty: the variable kTokenVariable
  std::string rendezvous_id = "job";  ///< tells jobs apart that meet in one folder

  std::vector<std::string> network_interfaces;  ///< empty: found by trying
  std::optional<int> ssh_port;
  std::string ssh_identity_file;
  std::chrono::seconds start_timeout{30};
  bool allow_run_as_root = false;

  Binding binding = Binding::automatic;
  std::vector<std::string> mpi_args;  ///< arguments of mpirun, in order, as they are
  std::vector<ForwardedVariable> variables;
  /// Of the library, from flags and config file, each checked; they win over the environment.
  std::vector<SettingAssignment> settings;

  std::string output_folder;  ///< --output-filename: one file a rank in exactly this folder
  Switch prefix_output = Switch::automatic;
  std::vector<int> shown_ranks;  ///< ascending; empty: the output of all ranks is shown
  bool verbose = false;
  bool dry_run = false;
  bool watch = false;                 ///< live table while the job runs
  std::optional<int> watch_interval;  ///< seconds
  std::string diagnose_folder;
  std::string config_file;

  /// One line for each flag that was accepted and changes nothing, or means something else here.
  std::vector<std::string> notices;
};

/// What is wrong with a command line, a config file, or a variable, as far as it concerns options.
struct UsageError {
  std::string place;     ///< "--np", "job.yaml:3: np", "HORA_TIMEOUT in the environment"; or empty
  std::string value;     ///< as the user wrote it; empty: none, or one that is not to be printed
  std::string problem;   ///< "expected a whole number from 1 to 65536"
  std::string advice{};  ///< "did you mean --np?"; or empty
};

/// In one line: place "value": problem; advice.
std::string to_text(const UsageError& error);

/// From horarun's arguments, config file and environment to checked options. `arguments` without
/// the program's own name; `environment` has entries "NAME=VALUE", as `environ`.
///
/// The command line wins over the config file, that over the environment. An option of one value
/// that is given several times has the last one. Reads the hostfile and the config file, nothing
/// else; has no side effects. With --help, --version, --man, --completion or --check-build the rest
/// but --mpirun is not looked at.
tl::expected<LaunchOptions, UsageError> parse_command_line(
    std::span<const std::string> arguments, std::span<const char* const> environment);

/// What options say together: checks them against each other, and fills in what follows from
/// several: np from hosts, nodes and ranks per host; the rendezvous from the environment. Pure.
/// Afterwards:
/// - with hosts, np is set and lay_out_ranks() succeeds;
/// - nnodes is above 1 exactly where a rendezvous is set, then np and ranks_per_host are, too, and
///   there are no hosts;
/// - settings of the options together with the environment's are valid.
tl::expected<void, UsageError> complete(LaunchOptions& options,
                                        std::span<const char* const> environment);

}  // namespace hora::launch
