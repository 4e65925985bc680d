#include "core/launch/options/options.h"

#include <hora/error.h>
#include <hora/printable.h>
#include <spdlog/fmt/fmt.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>

#include "core/launch/options/flags.h"
#include "core/launch/text.h"

namespace hora::launch {
namespace {

using Environment = std::span<const char* const>;

/// A flag with its values, as the command line or the config file has it.
struct Given {
  CLI::Option* flag = nullptr;
  std::vector<std::string> values = {};
  std::string place = {};  ///< "-np", "job.yaml:3: np"
};

bool is_switch_value(const std::string& text) {
  return text == "on" || text == "off" || text == "auto";
}

/// The flag at the front of `rest`, with its values: both are removed.
Given take_flag(Flags& flags, std::span<const std::string>& rest) {
  const std::string& argument = rest.front();
  const std::size_t dashes = argument.starts_with("--") ? 2 : 1;
  const std::size_t equals = argument.find('=');
  Given given{.place = argument.substr(0, equals)};
  const std::string name = given.place.substr(dashes);
  given.flag = flags.find(name);
  if (equals != argument.npos) given.values.push_back(argument.substr(equals + 1));
  if (given.flag == nullptr && dashes == 1) {  // "-p22"
    CLI::Option* const attached = flags.find(name.substr(0, 1));
    if (attached != nullptr && Flags::taken_by(*attached) == Takes::value) {
      given = {attached, {argument.substr(2)}, argument.substr(0, 2)};
    }
  }
  if (given.flag == nullptr) {
    const std::string suggestion = flags.suggestion(name, true);
    refuse(given.place, "", "horarun has no flag of this name",
           (suggestion.empty() ? "" : suggestion + " ") +
               "Flags for mpirun alone go into --mpi-args, those of the program behind its name");
  }
  if (flags.target_of(*given.flag) == Flags::kRefused) flags.apply(*given.flag, {}, given.place);
  rest = rest.subspan(1);
  const Takes takes = Flags::taken_by(*given.flag);
  const bool on_off = takes == Takes::on_off;
  const bool negated = on_off && (name.starts_with("no-") || name.starts_with("no_"));
  if (!given.values.empty() && (takes == Takes::nothing || negated)) {
    refuse(given.place, given.values[0], "this flag takes no value");
  }
  if (on_off && given.values.empty()) {
    const bool is_next = !negated && !rest.empty() && is_switch_value(rest.front());
    given.values.push_back(negated ? "off" : is_next ? rest.front() : "on");
    if (is_next) rest = rest.subspan(1);
  }
  const std::size_t wanted = takes == Takes::nothing ? 0 : takes == Takes::pair ? 2 : 1;
  while (given.values.size() < wanted) {
    if (rest.empty()) refuse(given.place, "", "the value is missing", "see --help");
    given.values.push_back(rest.front());
    rest = rest.subspan(1);
  }
  if (takes == Takes::pair && given.values[0].find(' ') != std::string::npos) {
    refuse(given.place, "", "expected a name without spaces, and a value");
  }
  return given;
}

/// Leaves the program with its arguments in `arguments`.
std::vector<Given> take_flags(Flags& flags, std::span<const std::string>& arguments) {
  std::vector<Given> given;
  while (!arguments.empty() && arguments[0].size() > 1 && arguments[0][0] == '-') {
    if (arguments[0] == "--") {
      arguments = arguments.subspan(1);
      break;
    }
    given.push_back(take_flag(flags, arguments));
  }
  return given;
}

/// The flag's values in a config file; none of a flag that is false.
std::optional<std::vector<std::string>> config_values(const CLI::Option& flag,
                                                      const YAML::Node& value,
                                                      const std::string& place) {
  std::vector<std::string> values;
  for (std::size_t i = 0; i < (value.IsSequence() ? value.size() : 1); ++i) {
    const YAML::Node item = value.IsSequence() ? value[i] : value;
    if (item.IsNull()) refuse(place, "", "the value is missing");
    if (!item.IsScalar()) {
      refuse(place, "", "expected a value, or a list of values");
    }
    values.push_back(item.Scalar());
    if (values.back().find('\0') != std::string::npos) refuse(place, "", "it holds a NUL byte");
  }
  const Takes takes = Flags::taken_by(flag);
  bool truth = false;
  const bool is_truth = value.IsScalar() && YAML::convert<bool>::decode(value, truth);
  if (takes == Takes::nothing) {
    if (!is_truth) refuse(place, value.IsScalar() ? values[0] : "", "expected true or false");
    return truth ? std::optional(std::vector<std::string>()) : std::nullopt;
  }
  if (takes == Takes::on_off && is_truth) return std::vector<std::string>{truth ? "on" : "off"};
  return values;
}

/// A config file: one map from names of flags, without dashes, to values.
///
///     np: 4
///     hosts: [a:2, b:2]
///     fusion-threshold: 32MiB     # fusion_threshold, too
///     prefix-output: off
///
/// Throws for unknown keys, keys that are given twice (also in two spellings), flags that only a
/// command line can have, maps in the map.
std::vector<Given> read_config(Flags& flags, const std::string& path) {
  constexpr std::size_t kLargest = std::size_t{64} << 10;
  const auto text = read_input_file(path, kLargest);
  if (!text) refuse("--config-file", path, text.error());
  std::vector<Given> given;
  struct Seen {
    const CLI::Option* flag;
    int line;
    std::string key;
  };
  std::vector<Seen> seen;
  const auto at = [&](const YAML::Mark& mark) { return fmt::format("{}:{}", path, mark.line + 1); };
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(*text);
    if (documents.size() > 1) refuse(path, "", "a second document begins; expected one");
    if (documents.empty() || documents[0].IsNull()) return given;
    if (!documents[0].IsMap()) {
      refuse(at(documents[0].Mark()), "", "expected a map of flags to values, such as \"np: 4\"");
    }
    for (const auto& entry : documents[0]) {
      const std::string line = at(entry.first.Mark());
      if (!entry.first.IsScalar()) refuse(line, "", "expected the name of a flag");
      const std::string& key = entry.first.Scalar();
      const std::string place = line + ": " + key;
      if (entry.second.IsMap()) {
        refuse(place, "", "there are no sections: write the names of flags side by side");
      }
      CLI::Option* const flag = flags.find(key);
      if (flag == nullptr) {
        refuse(place, "", "there is no flag of this name", flags.suggestion(key, false));
      }
      if (flags.target_of(*flag) == Flags::kRefused) flags.apply(*flag, {}, place);
      if (!flag->get_configurable()) refuse(place, "", "belongs on the command line");
      const auto adds = [](const CLI::Option& one) {
        return one.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
      };
      for (const auto& [other, number, name] : seen) {
        const bool same = flags.target_of(*other) == flags.target_of(*flag);
        if (other == flag || (same && !adds(*other) && !adds(*flag))) {
          refuse(place, "", fmt::format("line {} sets the same by {}", number, name));
        }
      }
      seen.push_back({flag, entry.first.Mark().line + 1, key});
      const auto values = config_values(*flag, entry.second, place);
      if (!values) continue;
      if (!adds(*flag) && values->size() > 1) {
        given.push_back({flag, {fmt::format("{}", fmt::join(*values, ","))}, place});
        continue;
      }
      for (const std::string& value : *values) {
        given.push_back({flag, {value}, place});
        if (Flags::taken_by(*flag) != Takes::pair) continue;
        const std::size_t space = value.find(' ');
        if (space == value.npos) {
          refuse(place, "", "expected a name and a value with a space between them");
        }
        given.back().values = {value.substr(0, space), value.substr(space + 1)};
      }
      if (values->empty()) given.push_back({flag, {}, place});
    }
  } catch (const YAML::Exception& error) {
    refuse(at(error.mark), "", "neither YAML nor JSON: " + error.msg);
  }
  return given;
}

/// An allocation's hosts are known at the start only.
bool is_in_allocation(Environment environment) {
  return std::ranges::any_of(environment, [](const char* entry) {
    const std::string_view text(entry == nullptr ? "" : entry);
    const bool is_list =
        text.starts_with("SLURM_JOB_NODELIST=") || text.starts_with("PBS_NODEFILE=");
    return is_list && !text.ends_with('=');
  });
}

/// Where nodes meet, and which nodes there are, where the environment says so and the options do
/// not.
void take_environment(LaunchOptions& options, Environment environment) {
  if (!options.hosts.empty() || options.rendezvous) return;
  const auto master = master_in_environment(environment);
  if (!master) refuse("environment", "", master.error());
  if (options.nnodes > 1) options.rendezvous = *master;
  if (options.nnodes > 1 || !*master) return;
  const auto node = rendezvous_from_environment(environment);
  if (!node) refuse("environment", "", node.error());
  if (!*node || (options.np && (*node)->nnodes > 1)) {
    if (is_in_allocation(environment)) return;
    options.notices.emplace_back(
        "MASTER_ADDR is not used, the job has this host alone: for nodes that meet there give "
        "--nnodes and --node-rank");
    return;
  }
  options.rendezvous = (*node)->rendezvous;
  options.nnodes = (*node)->nnodes;
  if (!options.node_rank) options.node_rank = (*node)->node_rank;
}

void check_nodes(LaunchOptions& options) {
  const std::string nodes = std::to_string(options.nnodes);
  if (options.node_rank && *options.node_rank >= options.nnodes) {
    refuse("--node-rank", std::to_string(*options.node_rank),
           fmt::format("there are {} nodes, numbered from 0 (--nnodes)", nodes));
  }
  if (options.nnodes == 1) {
    options.rendezvous.reset();
    return;
  }
  if (!options.hosts.empty()) {
    refuse("--nnodes", nodes,
           "-H and --hostfile name the hosts that are started from here; with --nnodes horarun is "
           "started on each node",
           "give one of them");
  }
  const auto& place = options.rendezvous;
  if (!place || (place->host.empty() && place->folder.empty())) {
    refuse("--nnodes", nodes, "the nodes need a place to meet",
           "add --rendezvous tcp://HOST:PORT or file:///FOLDER, the same on each node");
  }
  if (place->folder.empty() && place->port == 0) {
    refuse("--rendezvous", to_url(*place), "several nodes need a port from 1 to 65535");
  }
}

/// With several nodes: np = nnodes * ranks_per_host.
void complete_ranks_of_nodes(LaunchOptions& options) {
  const auto& np = options.np;
  if (!options.ranks_per_host) {
    if (np && *np % options.nnodes != 0) {
      refuse("-np", std::to_string(*np),
             fmt::format("cannot be shared evenly by {} nodes", options.nnodes),
             "give --nproc-per-node");
    }
    options.ranks_per_host = np ? *np / options.nnodes : 1;
  }
  const long long ranks = static_cast<long long>(*options.ranks_per_host) * options.nnodes;
  if (ranks > kMostRanks || (np && *np != ranks)) {
    refuse(np ? "-np" : "--nproc-per-node", std::to_string(np.value_or(*options.ranks_per_host)),
           fmt::format("{} nodes of {} ranks are {} ranks", options.nnodes, *options.ranks_per_host,
                       ranks),
           np ? "leave out -np" : "at most 65536 are possible");
  }
  options.np = static_cast<int>(ranks);
}

/// --nproc-per-node with -H: the slots of each host.
void limit_hosts(LaunchOptions& options) {
  const int each = *options.ranks_per_host;
  for (const HostSlots& host : options.hosts) {
    if (host.counted && host.slots < each && !options.oversubscribe) {
      refuse("--nproc-per-node", std::to_string(each),
             fmt::format("host {} has {} slots (-H host:slots, slots= in a hostfile)", host.name,
                         host.slots),
             "or add --oversubscribe");
    }
  }
  if (static_cast<long long>(each) * static_cast<long long>(options.hosts.size()) > kMostRanks) {
    refuse(
        "--nproc-per-node", std::to_string(each),
        fmt::format("on {} hosts these are more than {} ranks", options.hosts.size(), kMostRanks));
  }
  for (HostSlots& host : options.hosts) {
    host.slots = std::min(each, host.limit);
    host.limit = host.slots;
    host.counted = true;
  }
}

void complete_ranks(LaunchOptions& options, Environment environment) {
  if (options.nnodes > 1) return complete_ranks_of_nodes(options);
  if (options.hosts.empty()) {
    if (!options.ranks_per_host || is_in_allocation(environment)) return;
    if (options.np && *options.np > *options.ranks_per_host) {
      refuse("-np", std::to_string(*options.np),
             fmt::format("--nproc-per-node allows {} on this host, and no other is given",
                         *options.ranks_per_host),
             "name the hosts by -H");
    }
    if (!options.np) options.np = options.ranks_per_host;
    return;
  }
  if (options.ranks_per_host) limit_hosts(options);
  if (!options.np) options.np = total_slots(options.hosts);
  const auto layout = lay_out_ranks(options.hosts, *options.np, options.oversubscribe);
  if (!layout) refuse("-np", std::to_string(*options.np), layout.error());
}

/// Settings of the environment give way to the options'.
void check_settings(const LaunchOptions& options, Environment environment) {
  std::vector<SettingAssignment> all = options.settings;
  for (SettingAssignment& each : setting_assignments(environment)) {
    const auto same =
        std::ranges::find(options.settings, each.variable, &SettingAssignment::variable);
    if (same == options.settings.end()) all.push_back(std::move(each));
  }
  try {
    parse_settings(all);
  } catch (const Error& error) {
    refuse("environment", "", error.what());
  }
}

/// Checks options against each other, and fills in what follows from several.
void complete(LaunchOptions& options, Environment environment) {
  if (std::ranges::find(options.program, ":") != options.program.end()) {
    refuse("", ":", "a job has one program, and its arguments have no \":\" alone",
           "let the program choose by its rank what it does");
  }
  if (options.action != Action::run) return;
  if (options.program.empty()) {
    refuse("", "", "no program is given: horarun [flags] PROGRAM [its arguments]", "see --help");
  }
  take_environment(options, environment);
  check_nodes(options);
  complete_ranks(options, environment);
  if (options.np && !options.shown_ranks.empty() && options.shown_ranks.back() >= *options.np) {
    refuse("--ranks", std::to_string(options.shown_ranks.back()),
           fmt::format("the ranks of this job are 0 to {}", *options.np - 1));
  }
  check_settings(options, environment);
}

LaunchOptions parse(std::span<const std::string> arguments, Environment environment) {
  LaunchOptions options;
  // As horovodrun; before a program it is mpirun's --verbose.
  if (arguments.size() == 1 && arguments.front() == "-v") {
    options.action = Action::version;
    return options;
  }
  Flags flags(options);
  std::vector<Given> given = take_flags(flags, arguments);
  const auto about = std::ranges::find(given, "About horarun",
                                       [](const Given& each) { return each.flag->get_group(); });
  if (about != given.end()) {
    flags.apply(*about->flag, about->values, about->place);
    for (const Given& each : given) {  // --check-build looks at it, too
      if (each.flag == flags.find("mpirun")) flags.apply(*each.flag, each.values, each.place);
    }
    return options;
  }
  std::set<std::string> overridden;
  std::string config;
  for (const Given& each : given) {
    if (flags.target_of(*each.flag) != "x") overridden.insert(flags.target_of(*each.flag));
    if (each.flag == flags.find("config-file")) config = each.values[0];
  }
  if (overridden.contains("config-file")) {
    for (const Given& each : read_config(flags, config)) {
      if (overridden.contains(flags.target_of(*each.flag))) continue;
      flags.apply(*each.flag, each.values, each.place);
    }
  }
  for (const Given& each : given) flags.apply(*each.flag, each.values, each.place);
  options.program.assign(arguments.begin(), arguments.end());
  complete(options, environment);
  return options;
}

}  // namespace

tl::expected<LaunchOptions, std::string> parse_command_line(
    std::span<const std::string> arguments, std::span<const char* const> environment) {
  try {
    return parse(arguments, environment);
  } catch (UsageError& error) {
    return tl::unexpected(std::move(error.message));
  }
}

std::string help_text() {
  LaunchOptions options;
  return Flags(options).help();
}

std::string man_page(std::string_view version) {
  std::string text = fmt::format(
      ".TH HORARUN 1 \"\" \"hora {}\" \"User Commands\"\n.SH NAME\nhorarun \\- start, watch and "
      "end data\\-parallel training jobs\n.SH DESCRIPTION\n.nf\n",
      version);
  for (const char c : help_text()) {
    if (c == '\\' || c == '-') text += '\\';
    text += c == '\\' ? 'e' : c;
  }
  return text +
         ".fi\n.SH EXIT STATUS\nThat of the rank that failed first; 128 and the signal's "
         "number where a signal ended it; 2 for wrong flags; 0 where all ranks have ended "
         "well.\n";
}

std::string bash_completion() {
  LaunchOptions options;
  return fmt::format("complete -o default -W '{}' horarun\n",
                     fmt::join(Flags(options).spellings(), " "));
}

}  // namespace hora::launch
