/// Everything that the command line, the config file and the environment say about a job, checked.
/// Made by parse_command_line() (command_line.h); each field is set by rows of option_table.h.
#pragma once

#include <hora/settings.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "core/launch/command/cores.h"
#include "core/launch/control/token.h"
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

}  // namespace hora::launch
