/// Everything that the command line, the config file and the environment say about a job, checked;
/// and what horarun prints of its flags.
#pragma once

#include <hora/settings.h>

#include <chrono>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/command/cores.h"
#include "core/launch/options/hosts.h"

namespace hora::launch {

/// Starts a job, or prints something and ends.
enum class Action { run, help, version, check_build, diagnose };

enum class Switch { automatic, off, on };

/// One -x. Ranks get it by its name: a value is put into the environment that is passed on, and
/// never printed or put on a command line.
struct ForwardedVariable {
  std::string name;
  std::optional<std::string> value;  ///< none: the value that it has in horarun's environment
  bool operator==(const ForwardedVariable&) const = default;
};

/// How a job goes on without what it loses.
struct ElasticOptions {
  int min_np = 0, max_np = 0;                 ///< 1 <= min_np <= max_np
  bool oversubscribe = false;                 ///< as lay_out_ranks() has it
  std::optional<int> reset_limit = {};        ///< generations after the first one
  std::chrono::milliseconds timeout{600000};  ///< without hosts enough for min_np
  /// A host that was lost is set aside: for the first, twice as long after each further loss, for
  /// the second at most.
  std::chrono::milliseconds shortest_pause{10000}, longest_pause{600000};
  std::string discovery_script = {};  ///< a path, prints the hosts; empty: they stay the same
};

struct LaunchOptions {
  Action action = Action::run;
  std::vector<std::string> program;  ///< with its arguments; not empty where action is `run`

  std::optional<int> np;
  std::vector<HostSlots> hosts;  ///< from -H or a hostfile; empty: this host, or an allocation's
  std::optional<int> ranks_per_host;  ///< --nproc-per-node: this many on every host or node
  bool oversubscribe = false;
  std::string folder;  ///< in which the ranks start, on every host; empty: horarun's
  std::string mpirun;  ///< a path or a name on PATH; empty: that with which hora was built

  std::optional<ElasticOptions> elastic;

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
  /// The library's, from flags and config file, each checked; they win over the environment.
  std::vector<SettingAssignment> settings;
  Settings effective;  ///< of these and the environment together

  std::string output_folder;  ///< --output-filename: one file a rank in exactly this folder
  Switch prefix_output = Switch::automatic;
  std::set<int> shown_ranks;  ///< empty: the output of all ranks is shown
  bool verbose = false;
  bool dry_run = false;
  bool watch = false;                 ///< a table from time to time while the job runs
  std::optional<int> watch_interval;  ///< seconds
  std::string diagnose_folder;

  /// One line for each flag that was accepted and changes nothing, or means something else here.
  std::vector<std::string> notices;
};

/// Reads horarun's arguments (without its own name), config file, hostfile and environment (as
/// `environ`). The error is one line: place "value": problem; advice.
/// Afterwards, with hosts, np is set and lay_out_ranks() succeeds; nnodes is above 1 exactly where
/// a rendezvous is set, then np and ranks_per_host are, too, and there are no hosts; elastic jobs
/// have one node.
tl::expected<LaunchOptions, std::string> parse_command_line(
    std::span<const std::string> arguments, std::span<const char* const> environment);

inline constexpr std::size_t kHelpWidth = 100;

/// --help: at most kHelpWidth columns.
std::string help_text();

}  // namespace hora::launch
