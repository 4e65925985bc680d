#include "core/launch/options/launch_options.h"

#include <hora/error.h>
#include <hora/printable.h>

#include <algorithm>
#include <set>

#include "core/launch/options/arguments.h"
#include "core/launch/options/config_file.h"
#include "core/launch/options/text.h"

namespace hora::launch {

std::string to_text(const UsageError& error) {
  std::string text = printable(error.place);
  if (!error.value.empty()) text += (text.empty() ? "" : " ") + in_quotes(error.value);
  if (!text.empty()) text += ": ";
  text += printable(error.problem);
  if (!error.advice.empty()) text += "; " + printable(error.advice);
  return text;
}

namespace {

using Checked = tl::expected<void, UsageError>;

tl::unexpected<UsageError> wrong(std::string place, std::string value, std::string problem,
                                 std::string advice = {}) {
  return tl::unexpected(
      UsageError{std::move(place), std::move(value), std::move(problem), std::move(advice)});
}

Checked check_program(const LaunchOptions& options) {
  if (options.action != Action::run || !options.program.empty()) return {};
  return wrong("", "", "no program is given: horarun [flags] PROGRAM [its arguments]",
               "see --help");
}

/// Its hosts are known at the start only.
bool is_in_allocation(std::span<const char* const> environment) {
  return std::ranges::any_of(environment, [](const char* entry) {
    const std::string_view text(entry == nullptr ? "" : entry);
    const bool is_list =
        text.starts_with("SLURM_JOB_NODELIST=") || text.starts_with("PBS_NODEFILE=");
    return is_list && !text.ends_with('=');
  });
}

/// Where nodes meet, and which nodes there are, where the environment says so and the options do
/// not.
Checked take_environment(LaunchOptions& options, std::span<const char* const> environment) {
  if (!options.hosts.empty() || options.rendezvous) return {};
  const auto master = master_in_environment(environment);
  if (!master) return wrong("environment", "", master.error());
  if (options.nnodes > 1) options.rendezvous = *master;
  if (options.nnodes > 1 || !*master) return {};
  const auto node = rendezvous_from_environment(environment);
  if (!node) return wrong("environment", "", node.error());
  if (!*node || (options.np && (*node)->nnodes > 1)) {
    if (is_in_allocation(environment)) return {};
    options.notices.emplace_back(
        "MASTER_ADDR is not used, the job has this host alone: for nodes that meet there give "
        "--nnodes and --node-rank");
    return {};
  }
  options.rendezvous = (*node)->rendezvous;
  options.nnodes = (*node)->nnodes;
  if (!options.node_rank) options.node_rank = (*node)->node_rank;
  return {};
}

Checked check_nodes(LaunchOptions& options) {
  if (options.node_rank && *options.node_rank >= options.nnodes) {
    return wrong(
        "--node-rank", std::to_string(*options.node_rank),
        "there are " + std::to_string(options.nnodes) + " nodes, numbered from 0 (--nnodes)");
  }
  if (options.nnodes == 1) {
    options.rendezvous.reset();
    return {};
  }
  const std::string nodes = std::to_string(options.nnodes);
  if (!options.hosts.empty()) {
    return wrong("--nnodes", nodes,
                 "-H and --hostfile name the hosts that are started from here; with --nnodes "
                 "horarun is started on each node",
                 "give one of them");
  }
  if (!options.rendezvous ||
      (options.rendezvous->host.empty() && options.rendezvous->folder.empty())) {
    return wrong("--nnodes", nodes, "the nodes need a place to meet",
                 "add --rendezvous tcp://HOST:PORT or file:///FOLDER, the same on each node");
  }
  if (options.rendezvous->folder.empty() && options.rendezvous->port == 0) {
    return wrong("--rendezvous", to_url(*options.rendezvous),
                 "several nodes need a port from 1 to 65535");
  }
  return {};
}

/// With several nodes: np = nnodes * ranks_per_host.
Checked complete_ranks_of_nodes(LaunchOptions& options) {
  if (!options.ranks_per_host) {
    if (options.np && *options.np % options.nnodes != 0) {
      return wrong("-np", std::to_string(*options.np),
                   "cannot be shared evenly by " + std::to_string(options.nnodes) + " nodes",
                   "give --nproc-per-node");
    }
    options.ranks_per_host = options.np ? *options.np / options.nnodes : 1;
  }
  const long long ranks = static_cast<long long>(*options.ranks_per_host) * options.nnodes;
  if (ranks > kMostRanks || (options.np && *options.np != ranks)) {
    return wrong(options.np ? "-np" : "--nproc-per-node",
                 std::to_string(options.np.value_or(*options.ranks_per_host)),
                 std::to_string(options.nnodes) + " nodes of " +
                     std::to_string(*options.ranks_per_host) + " ranks are " +
                     std::to_string(ranks) + " ranks",
                 options.np ? "leave out -np" : "at most 65536 are possible");
  }
  options.np = static_cast<int>(ranks);
  return {};
}

/// --nproc-per-node with -H: the slots of each host.
Checked limit_hosts(LaunchOptions& options) {
  const int each = *options.ranks_per_host;
  for (HostSlots& host : options.hosts) {
    if (host.counted && host.slots < each && !options.oversubscribe) {
      return wrong("--nproc-per-node", std::to_string(each),
                   "host " + host.name + " has " + std::to_string(host.slots) +
                       " slots (-H host:slots, slots= in a hostfile)",
                   "or add --oversubscribe");
    }
  }
  if (static_cast<long long>(each) * static_cast<long long>(options.hosts.size()) > kMostRanks) {
    return wrong("--nproc-per-node", std::to_string(each),
                 "on " + std::to_string(options.hosts.size()) + " hosts these are more than " +
                     std::to_string(kMostRanks) + " ranks");
  }
  for (HostSlots& host : options.hosts) {
    host.slots = std::min(each, host.limit);
    host.limit = host.slots;
    host.counted = true;
  }
  return {};
}

Checked complete_ranks(LaunchOptions& options, std::span<const char* const> environment) {
  if (options.nnodes > 1) return complete_ranks_of_nodes(options);
  if (options.hosts.empty()) {
    if (!options.ranks_per_host || is_in_allocation(environment)) return {};
    if (options.np && *options.np > *options.ranks_per_host) {
      return wrong("-np", std::to_string(*options.np),
                   "--nproc-per-node allows " + std::to_string(*options.ranks_per_host) +
                       " on this host, and no other is given",
                   "name the hosts by -H");
    }
    if (!options.np) options.np = options.ranks_per_host;
    return {};
  }
  if (options.ranks_per_host) {
    if (const Checked limited = limit_hosts(options); !limited) return limited;
  }
  if (!options.np) options.np = total_slots(options.hosts);
  const auto layout = lay_out_ranks(options.hosts, *options.np, options.oversubscribe);
  if (!layout) return wrong("-np", std::to_string(*options.np), layout.error());
  return {};
}

Checked check_shown_ranks(const LaunchOptions& options) {
  if (!options.np || options.shown_ranks.empty() || options.shown_ranks.back() < *options.np) {
    return {};
  }
  return wrong("--ranks", std::to_string(options.shown_ranks.back()),
               "the ranks of this job are 0 to " + std::to_string(*options.np - 1));
}

Checked check_settings(const LaunchOptions& options, std::span<const char* const> environment) {
  std::vector<SettingAssignment> all = options.settings;
  for (SettingAssignment& of_environment : setting_assignments(environment)) {
    if (std::ranges::find(options.settings, of_environment.variable,
                          &SettingAssignment::variable) == options.settings.end()) {
      all.push_back(std::move(of_environment));
    }
  }
  try {
    parse_settings(all);
  } catch (const Error& error) {
    return wrong("environment", "", error.what());
  }
  return {};
}

}  // namespace

Checked complete(LaunchOptions& options, std::span<const char* const> environment) {
  if (const Checked checked = check_program(options); !checked) return checked;
  if (options.action != Action::run) return {};
  if (const Checked checked = take_environment(options, environment); !checked) return checked;
  if (const Checked checked = check_nodes(options); !checked) return checked;
  if (const Checked checked = complete_ranks(options, environment); !checked) return checked;
  if (const Checked checked = check_shown_ranks(options); !checked) return checked;
  return check_settings(options, environment);
}

namespace {

using WrongUsage = tl::unexpected<UsageError>;

/// The config file's options of which the command line says nothing.
std::vector<Occurrence> without_overridden(std::vector<Occurrence> of_file,
                                           std::span<const Occurrence> of_command_line) {
  std::set<std::string_view> overridden;
  for (const Occurrence& occurrence : of_command_line) {
    if (!occurrence.row->merges) overridden.insert(target_of(*occurrence.row));
  }
  std::erase_if(of_file, [&](const Occurrence& occurrence) {
    return overridden.contains(target_of(*occurrence.row));
  });
  return of_file;
}

/// What may be printed of a value.
std::string shown_value(const Occurrence& occurrence) {
  if (!occurrence.row->is_secret) return occurrence.value;
  return occurrence.value.substr(0, occurrence.value.find_first_of("= "));
}

tl::expected<void, UsageError> apply(const Occurrence& occurrence, LaunchOptions& options) {
  const OptionRow& row = *occurrence.row;
  if (row.standing == Standing::ignored && !row.help.empty()) {
    options.notices.push_back(occurrence.place + " changes nothing: " + row.help);
  }
  if (!row.apply) return {};
  const auto applied = row.apply(options, occurrence.value);
  if (applied) return {};
  return WrongUsage({occurrence.place, shown_value(occurrence), applied.error()});
}

tl::expected<std::vector<Occurrence>, UsageError> read_config(const std::string& path) {
  const auto text = read_input_file(path, kLargestConfigFile);
  if (!text) return WrongUsage({"--config-file", path, text.error()});
  return parse_config(*text, path);
}

}  // namespace

tl::expected<LaunchOptions, UsageError> parse_command_line(
    std::span<const std::string> arguments, std::span<const char* const> environment) {
  // As horovodrun; before a program it is mpirun's --verbose.
  const std::vector<std::string> version{"--version"};
  if (arguments.size() == 1 && arguments.front() == "-v") arguments = version;
  auto parsed = parse_arguments(arguments);
  if (!parsed) return WrongUsage(parsed.error());
  std::vector<Occurrence>& given = parsed->options;

  LaunchOptions options;
  const auto about =
      std::ranges::find(given, OptionGroup::about, [](const auto& o) { return o.row->group; });
  if (about != given.end()) {
    const auto applied = apply(*about, options);
    if (!applied) return WrongUsage(applied.error());
    for (const Occurrence& occurrence : given) {  // --check-build looks at it, too
      if (occurrence.row->name != "mpirun") continue;
      if (const auto set = apply(occurrence, options); !set) return WrongUsage(set.error());
    }
    return options;
  }

  std::vector<Occurrence> all;
  const auto config = std::find_if(given.rbegin(), given.rend(), [](const Occurrence& occurrence) {
    return occurrence.row->name == "config-file";
  });
  if (config != given.rend()) {
    auto of_file = read_config(config->value);
    if (!of_file) return WrongUsage(of_file.error());
    all = without_overridden(std::move(*of_file), given);
  }
  all.insert(all.end(), given.begin(), given.end());
  for (const Occurrence& occurrence : all) {
    const auto applied = apply(occurrence, options);
    if (!applied) return WrongUsage(applied.error());
  }
  options.program = std::move(parsed->program);
  if (std::ranges::find(options.program, ":") != options.program.end()) {
    return wrong("", ":", "a job has one program, and its arguments have no \":\" alone",
                 "let the program choose by its rank what it does");
  }
  if (const auto completed = complete(options, environment); !completed) {
    return WrongUsage(completed.error());
  }
  return options;
}

}  // namespace hora::launch
