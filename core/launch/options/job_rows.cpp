// Rows of the option table: which program, how many ranks, on which hosts, how they are started.
#include <hora/printable.h>

#include <algorithm>

#include "core/launch/options/option_table.h"
#include "core/launch/options/text.h"

namespace hora::launch {
namespace {

using Unexpected = tl::unexpected<std::string>;

Applied set_hosts(LaunchOptions& options, std::string_view list) {
  if (!options.hostfile.empty()) return Unexpected("-H and --hostfile exclude each other");
  auto hosts = parse_host_list(list);
  if (!hosts) return Unexpected(hosts.error());
  options.hosts = std::move(*hosts);
  return {};
}

Applied set_hostfile(LaunchOptions& options, std::string_view path) {
  if (options.hostfile.empty() && !options.hosts.empty()) {
    return Unexpected("-H and --hostfile exclude each other");
  }
  if (path.empty()) return Unexpected("the path is empty");
  const auto text = read_input_file(std::string(path));
  if (!text) return Unexpected("the hostfile " + text.error());
  auto hosts = parse_hostfile(*text, path);
  if (!hosts) return Unexpected(hosts.error());
  options.hosts = std::move(*hosts);
  options.hostfile = path;
  return {};
}

Applied set_ranks_per_host(LaunchOptions& options, std::string_view value) {
  const auto number = parse_integer(value, 1, kMostRanks);
  if (!number) {
    const bool automatic = value == "auto" || value == "gpu" || value == "cpu";
    return Unexpected(number.error() +
                      (automatic ? "; horarun does not count devices: write the number" : ""));
  }
  options.ranks_per_host = *number;
  return {};
}

Applied add_interfaces(LaunchOptions& options, std::string_view list) {
  constexpr std::size_t kLongest = 15;  // IFNAMSIZ - 1
  constexpr std::size_t kMost = 64;
  const auto belongs = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == ':' || c == '-' || c == '@';
  };
  for (const std::string_view item : split(list, ',')) {
    const std::string name(trimmed(item));
    if (name.empty() || name.size() > kLongest || name.starts_with('-') ||
        !std::ranges::all_of(name, belongs)) {
      return Unexpected(in_quotes(name) + " is no name of a network interface");
    }
    auto& names = options.network_interfaces;
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    if (names.size() > kMost) return Unexpected("more than 64 interfaces are named");
  }
  return {};
}

Applied set_binding(LaunchOptions& options, std::string_view value) {
  constexpr std::pair<std::string_view, Binding> kBindings[] = {{"auto", Binding::automatic},
                                                                {"none", Binding::none},
                                                                {"core", Binding::cores},
                                                                {"numa", Binding::numa}};
  for (const auto& [name, binding] : kBindings) {
    if (value != name) continue;
    options.binding = binding;
    return {};
  }
  return Unexpected("expected auto, none, core or numa");
}

Applied add_mpi_args(LaunchOptions& options, std::string_view text) {
  auto words = split_words(text);
  if (!words) return Unexpected(words.error());
  options.mpi_args.insert(options.mpi_args.end(), words->begin(), words->end());
  return {};
}

Applied set_start_timeout(LaunchOptions& options, std::string_view value) {
  constexpr int kMost = 86400;
  if (value.ends_with('s')) value.remove_suffix(1);
  const auto seconds = parse_integer(value, 1, kMost);
  if (!seconds) return Unexpected(seconds.error() + " (seconds)");
  options.start_timeout = std::chrono::seconds(*seconds);
  return {};
}

Applied set_rendezvous(LaunchOptions& options, std::string_view url) {
  auto rendezvous = parse_rendezvous(url);
  if (!rendezvous) return Unexpected(rendezvous.error());
  options.rendezvous = std::move(*rendezvous);
  return {};
}

Applied set_rendezvous_id(LaunchOptions& options, std::string_view value) {
  if (!is_rendezvous_id(value)) {
    return Unexpected("expected up to 64 letters, digits and ._- , the first a letter or digit");
  }
  options.rendezvous_id = value;
  return {};
}

Applied set_nnodes(LaunchOptions& options, std::string_view value) {
  const std::size_t colon = value.find(':');
  const std::string_view least = value.substr(0, colon);
  if (colon != value.npos && value.substr(colon + 1) != least) {
    return Unexpected("expected one number: a job of hora does not grow or shrink");
  }
  const auto number = parse_integer(least, 1, kMostRanks);
  if (!number) return Unexpected(number.error());
  options.nnodes = *number;
  return {};
}

}  // namespace

std::vector<OptionRow> job_rows() {
  using enum OptionGroup;
  using enum OptionKind;
  return {
      {.name = "np",
       .spellings = {"n", "num-proc"},
       .value = "N",
       .help = "Number of ranks of the job.",
       .kind = value,
       .group = job,
       .apply = into_integer(&LaunchOptions::np, 1, kMostRanks),
       .default_value = "all slots of the hosts"},
      {.name = "x",
       .value = "NAME",
       .help = "Gives all ranks the variable NAME as it is in horarun's environment. NAME=VALUE "
               "works, too, but other users of this machine can see it in the list of processes.",
       .kind = value,
       .group = job,
       .apply = forward_variable,
       .listing = Listing::repeated,
       .merges = true,
       .is_secret = true},
      {.name = "start-timeout",
       .value = "SECONDS",
       .help = "All checks and the start of all ranks take no longer than this.",
       .kind = value,
       .group = job,
       .apply = set_start_timeout,
       .default_value = "30"},
      {.name = "wdir",
       .spellings = {"wd"},
       .value = "FOLDER",
       .help = "Folder in which the ranks start, on each host.",
       .kind = value,
       .group = job,
       .apply = into_text(&LaunchOptions::folder),
       .default_value = "the one in which horarun is started",
       .completes = Completes::folders},
      {.name = "allow-run-as-root",
       .help = "Lets root start a job.",
       .kind = flag,
       .group = job,
       .apply = into_bool(&LaunchOptions::allow_run_as_root)},
      {.name = "dry-run",
       .help = "Prints the exact command, and changes nothing.",
       .kind = flag,
       .group = job,
       .apply = into_bool(&LaunchOptions::dry_run)},
      {.name = "config-file",
       .value = "FILE",
       .help =
           "Options from a YAML or JSON file, whose keys are names of flags without dashes. What "
           "the command line says wins, wherever it says it.",
       .kind = value,
       .group = job,
       .apply = into_text(&LaunchOptions::config_file),
       .completes = Completes::files,
       .on_command_line_only = true},
      {.name = "hosts",
       .spellings = {"H", "host"},
       .value = "HOST:SLOTS,...",
       .help = "Hosts, and how many ranks each may take: a:2,b:2. Filled in this order.",
       .kind = value,
       .group = hosts,
       .apply = set_hosts,
       .default_value = "this host",
       .listing = Listing::commas,
       .sets = "hosts"},
      {.name = "hostfile",
       .spellings = {"machinefile", "default-hostfile", "f"},
       .value = "FILE",
       .help = "Hosts from a file, one a line: \"a slots=2\" or \"a:2\".",
       .kind = value,
       .group = hosts,
       .apply = set_hostfile,
       .completes = Completes::files,
       .sets = "hosts"},
      {.name = "oversubscribe",
       .help = "Lets hosts take more ranks than they have slots.",
       .kind = flag,
       .group = hosts,
       .apply = into_bool(&LaunchOptions::oversubscribe)},
      {.name = "network-interfaces",
       .spellings = {"network-interface", "iface"},
       .value = "NAME,...",
       .help = "Network interfaces that the ranks use; their names may differ between hosts.",
       .kind = value,
       .group = hosts,
       .apply = add_interfaces,
       .default_value = "found by trying which addresses reach each other",
       .listing = Listing::commas},
      {.name = "ssh-port",
       .spellings = {"p"},
       .value = "PORT",
       .help = "Port of ssh on all hosts.",
       .kind = value,
       .group = hosts,
       .apply = into_integer(&LaunchOptions::ssh_port, 1, 65535),
       .default_value = "ssh's own"},
      {.name = "ssh-identity-file",
       .spellings = {"i"},
       .value = "FILE",
       .help = "Private key for ssh.",
       .kind = value,
       .group = hosts,
       .apply = into_text(&LaunchOptions::ssh_identity_file),
       .default_value = "ssh's own",
       .completes = Completes::files},
      {.name = "mpirun",
       .value = "PATH",
       .help =
           "The mpirun that starts the ranks, by a path or a name on PATH. It belongs to the MPI "
           "with which the program is linked.",
       .kind = value,
       .group = hosts,
       .apply = into_text(&LaunchOptions::mpirun),
       .default_value = "that of the MPI with which hora was built, else of PATH",
       .completes = Completes::files},
      {.name = "mpi-args",
       .value = "\"ARGS\"",
       .help = "More arguments for mpirun, split as a shell does; nothing in them is expanded.",
       .kind = value,
       .group = hosts,
       .apply = add_mpi_args,
       .listing = Listing::repeated},
      {.name = "rendezvous",
       .spellings = {"rdzv"},
       .value = "URL",
       .help = "Without ssh: horarun is started on each node, and they meet at tcp://HOST:PORT (an "
               "address of node 0) or in file:///FOLDER (shared by all nodes).",
       .kind = value,
       .group = nodes,
       .apply = set_rendezvous,
       .default_value = "MASTER_ADDR and MASTER_PORT, where they are set",
       .sets = "rendezvous"},
      {.name = "rendezvous-id",
       .spellings = {"rdzv-id"},
       .value = "ID",
       .help = "Tells jobs apart that meet in one folder: the same on each node of a job.",
       .kind = value,
       .group = nodes,
       .apply = set_rendezvous_id,
       .default_value = "job"},
      {.name = "nnodes",
       .value = "N",
       .help = "Number of nodes that meet there.",
       .kind = value,
       .group = nodes,
       .apply = set_nnodes,
       .default_value = "1"},
      {.name = "node-rank",
       .value = "N",
       .help = "Which of them this is, from 0.",
       .kind = value,
       .group = nodes,
       .apply = into_integer(&LaunchOptions::node_rank, 0, kMostRanks - 1)},
      {.name = "nproc-per-node",
       .spellings = {"npernode", "N", "ppn", "perhost"},
       .value = "N",
       .help = "Number of ranks on each node, or on each host of -H.",
       .kind = value,
       .group = nodes,
       .apply = set_ranks_per_host,
       .default_value = "1 with --nnodes",
       .sets = "nproc-per-node"},
      {.name = "token-file",
       .value = "FILE",
       .help = "File with the token that all nodes of the rendezvous share.",
       .kind = value,
       .group = nodes,
       .apply = into_text(&LaunchOptions::token_file),
       .default_value = std::string("the variable ") + kTokenVariable,
       .completes = Completes::files},
      {.name = "binding",
       .value = "KIND",
       .help = "Cores of a rank: auto (an equal share of those that the job was granted), core "
               "(that share, also where others use it), numa (a NUMA domain), none (all of them).",
       .kind = value,
       .group = binding,
       .apply = set_binding,
       .default_value = "auto",
       .choices = {"auto", "none", "core", "numa"},
       .sets = "binding"},
  };
}

}  // namespace hora::launch
