#include "core/launch/options/options.h"

#include <hora/error.h>
#include <hora/printable.h>
#include <spdlog/fmt/fmt.h>
#include <yaml-cpp/yaml.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "core/launch/guard/guard.h"
#include "core/launch/text.h"

namespace hora::launch {
namespace {

using Environment = std::span<const char* const>;
using Values = std::vector<std::string>;

/// Throws Refused: place "value": problem; advice. Parts that are empty are left out.
[[noreturn]] void refuse(std::string_view place, std::string_view value, std::string_view problem,
                         std::string_view advice = {}) {
  std::string text = printable(place);
  if (!value.empty()) text += (text.empty() ? "" : " ") + in_quotes(value);
  if (!text.empty()) text += ": ";
  text += printable(problem);
  if (!advice.empty()) text += "; " + printable(advice);
  throw Refused{std::move(text)};
}

[[noreturn]] void refuse(std::string_view place, int value, std::string_view problem,
                         std::string_view advice = {}) {
  refuse(place, std::to_string(value), problem, advice);
}

/// The values after a flag: nothing; optionally one of on, off and auto, after `=` or as the next
/// argument (--NAME alone is on, --no-NAME off); a value; a name and a value as two arguments.
enum class Takes { nothing, on_off, value, pair };

/// By its values' text in --help: "", "[=on|off]", "N", "NAME VALUE".
Takes takes_of(const CLI::Option& flag) {
  const std::string value = flag.get_type_name();
  if (value.empty()) return Takes::nothing;
  if (value.starts_with('[')) return Takes::on_off;
  return value.find(' ') == value.npos ? Takes::value : Takes::pair;
}

/// "-H", "-np" or "--hosts": one dash before one or two letters.
std::string with_dashes(std::string_view spelling) {
  return fmt::format("{}{}", spelling.size() <= 2 ? "-" : "--", spelling);
}

/// Lines of at most kHelpWidth columns, each with `indent` spaces before it.
std::string wrapped(std::string_view text, std::size_t indent) {
  std::string result;
  std::size_t column = 0;
  for (const std::string_view word : split_at_spaces(text)) {
    if (column == 0 || column + 1 + word.size() > kHelpWidth) {
      result += (column == 0 ? "" : "\n") + std::string(indent, ' ');
      column = indent;
    } else {
      result += ' ';
      ++column;
    }
    result += word;
    column += word.size();
  }
  return result + "\n";
}

class HelpFormat : public CLI::Formatter {
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: horarun [FLAGS] PROGRAM [ITS ARGUMENTS]\n";
  }
  std::string make_option(const CLI::Option* flag, bool) const override {
    std::vector<std::string> names;
    for (const std::string& name : flag->get_snames()) names.push_back(with_dashes(name));
    for (const std::string& name : flag->get_lnames()) {
      if (!name.starts_with("no-")) names.push_back(with_dashes(name));
    }
    const std::string& value = flag->get_type_name();
    const bool on_off = value.starts_with('[');
    const std::string heading =
        fmt::format("{}{}{}", fmt::join(names, ", "), value.empty() || on_off ? "" : " ", value);
    return wrapped(on_off ? heading + ", --no-" + flag->get_lnames().front() : heading, 2) +
           wrapped(flag->get_description(), 6);
  }
};

/// "HORA_FUSION_THRESHOLD" -> "fusion-threshold".
std::string flag_of(std::string_view variable) {
  std::string flag = CLI::detail::to_lower(std::string(variable.substr(sizeof "HORA_" - 1)));
  std::ranges::replace(flag, '_', '-');
  return flag;
}

/// The setting's value in --help: its choices, or the first word of what is allowed.
std::string value_name(const SettingDescription& setting) {
  if (!setting.choices.empty()) return fmt::format("{}", fmt::join(setting.choices, "|"));
  if (setting.allowed.starts_with("bytes")) return "BYTES";
  if (setting.allowed.starts_with("seconds")) return "SECONDS";
  if (setting.allowed.starts_with("microseconds")) return "MICROSECONDS";
  if (setting.allowed.starts_with("a whole number")) return "N";
  return "TEXT";
}

/// Horovod's names of levels: TRACE, DEBUG, INFO, WARNING, ERROR, FATAL.
std::string level(const std::string& text) {
  const std::string name = CLI::detail::to_lower(text);
  if (name == "trace") return "debug";
  return name == "fatal" || name == "critical" ? "error" : name;
}

/// "30" or "30s".
std::chrono::seconds seconds_of(std::string_view text) {
  if (text.ends_with('s')) text.remove_suffix(1);
  const auto seconds = parse_integer(text, 1, 86400);
  if (!seconds) throw Refused{seconds.error() + " (seconds)"};
  return std::chrono::seconds(*seconds);
}

/// Adds "0,3,8-11".
void add_ranks(std::set<int>& ranks, std::string_view list) {
  for (const std::string_view item : split(list, ',')) {
    const std::string_view range = trimmed(item);
    const std::size_t dash = range.find('-');
    const auto first = parse_integer(range.substr(0, dash), 0, kMostRanks - 1);
    const auto last =
        dash == range.npos ? first : parse_integer(range.substr(dash + 1), 0, kMostRanks - 1);
    if (!first || !last || *last < *first) {
      throw Refused{"expected ranks with commas between them, such as 0,3 or 0-3,8"};
    }
    for (int rank = *first; rank <= *last; ++rank) ranks.insert(rank);
  }
}

/// Adds names of interfaces; that hosts have them is seen later.
void add_interfaces(std::vector<std::string>& names, std::string_view list) {
  constexpr std::size_t kLongest = 15;  // IFNAMSIZ - 1
  constexpr std::size_t kMost = 64;
  for (const std::string_view item : split(list, ',')) {
    const std::string name(trimmed(item));
    if (name.empty() || name.size() > kLongest || name.find_first_of(" ;/") != name.npos) {
      throw Refused{in_quotes(name) + " is no name of a network interface"};
    }
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    if (names.size() > kMost) throw Refused{"more than 64 interfaces are named"};
  }
}

struct Foreign {
  const char* names;   ///< each a flag
  const char* value;   ///< that follows it; empty: nothing; "[]": on or off
  const char* advice;  ///< empty: none
};

constexpr int kMasterPort = 29500;  ///< torchrun's --master-port
constexpr char kNone[] = "hora has nothing of the kind";
constexpr char kBinding[] = "cores are shared out by --binding";
constexpr char kOutputFiles[] = "one file a rank is written by --output-filename FOLDER";

/// Flags of horovodrun (0.28), mpirun (Open MPI 4.1 and 5, MPICH) and torchrun (2.x) without which
/// the job is the same.
constexpr Foreign kIgnored[] = {
    {"disable-cache mpi log-without-timestamp byslot bycore nooversubscribe genvall envall "
     "standalone no-python use-env report-bindings display-bindings quiet q",
     "", ""},
    {"log-with-timestamp log-hide-timestamp", "[]", ""},
    {"role monitor-interval start-method", "VALUE", ""},
    {"gloo jsrun", "", "all jobs run on MPI, started by mpirun"},
    {"prefix-timestamp prefix-output-with-timestamp timestamp-output", "", kNone},
    {"autotune timeline-mark-cycles mpi-threads-disable", "[]", kNone},
    {"cycle-time-ms num-nccl-streams autotune-log-file autotune-warmup-samples "
     "autotune-steps-per-sample autotune-bayes-opt-max-samples autotune-gaussian-process-noise",
     "VALUE", kNone},
    {"hierarchical-allreduce hierarchical-allgather", "[]",
     "both are always hierarchical; see --cross-algorithm"},
    {"gloo-timeout-seconds", "SECONDS", "the limit of a collective is --timeout"},
    {"merge-stderr-to-stdout", "",
     "each stream of a rank is one of horarun's: redirect them there, by 2>&1"},
    {"use-hwthread-cpus", "", kBinding},
    {"cpus-per-proc cpus-per-rank numa-binding thread-affinity ccl-bgt-affinity mlsl-bgt-affinity",
     "VALUE", kBinding},
    {"rdzv-conf", "CONF", "the time limit of the start is --start-timeout"},
    {"local-addr", "ADDRESS", "addresses are chosen by --network-interfaces"},
    {"redirects r tee t log-dir", "VALUE", kOutputFiles},
    {"local-ranks-filter", "RANKS", "the output of ranks is chosen by --ranks"},
};

/// Flags of theirs that horarun has not, with what to use instead.
constexpr std::pair<const char*, const char*> kInstead[] = {
    {"tcp",
     "say it to the MPI, for example --mpi-args \"--mca pml ob1 --mca btl self,vader,tcp\" to Open "
     "MPI 4"},
    {"c", "the number of ranks is -np"},
    {"bynode", "ranks are put host by host: -H a:2,b:2 says how many on each"},
    {"npersocket", "the number of ranks on a host is --nproc-per-node"},
    {"rankfile rf launcher bootstrap rmk launcher-exec bootstrap-exec",
     "write it into --mpi-args, with --binding none"},
    {"module m", "name the interpreter: horarun ... python -m MODULE"},
};

void set_map_by(LaunchOptions& options, std::string_view text) {
  const auto parts = split(text, ':');
  std::size_t used = 1;
  if (parts.front() == "ppr" && parts.size() >= 3 && parts[2] == "node") {
    const auto number = parse_integer(parts[1], 1, kMostRanks);
    if (!number) throw Refused{"ppr: " + number.error()};
    options.ranks_per_host = *number;
    used = 3;
  } else if (!parts.front().empty() && parts.front() != "slot" && parts.front() != "core") {
    throw Refused{"ranks are put host by host: expected slot or ppr:N:node"};
  }
  for (const std::string_view modifier : std::span(parts).subspan(used)) {
    if (modifier == "OVERSUBSCRIBE" || modifier == "oversubscribe") {
      options.oversubscribe = true;
    } else if (modifier != "NOOVERSUBSCRIBE" && modifier != "nooversubscribe") {
      throw Refused{
          "expected OVERSUBSCRIBE or nothing after it: cores are shared out by --binding"};
    }
  }
}

/// horarun's flags as CLI11's options: names, help, groups, and what a value does. Where
/// horovodrun, mpirun or torchrun has a flag of the same meaning, it has that spelling, so that
/// their users' lines run.
class Flags {
 public:
  /// Sets what the values after the flag say; throws Refused.
  using Set = std::function<void(const Values&)>;
  struct Flag {
    std::string target;  ///< equal for flags of which one replaces the other
    Set set;
  };

  explicit Flags(LaunchOptions& options) : options_(options) {
    app_.set_help_flag();
    app_.formatter(std::make_shared<HelpFormat>());
    add_job();
    add_hosts();
    add_output();
    add_settings();
    group_.clear();
    add_horovods();
    add_mpiruns();
    add_torchruns();
    listed_ = &ignored_;
    add_ignored();
    app_.description(wrapped(
        "Starts the ranks of a data-parallel job on one or several hosts, watches them, and "
        "says what happened when the job ends. What follows PROGRAM belongs to it.",
        0));
    const std::string settings = wrapped(
        "Each setting is a variable, too, over which the flag wins: --fusion-threshold is "
        "HORA_FUSION_THRESHOLD. Sizes may end in KiB, MiB or GiB, times in us, ms or s. Of those "
        "that are on or off, --report is --report=on, and --no-report is --report=off. Long flags "
        "are taken after one dash, too, and with \"_\" for \"-\". Of a flag with one value that is "
        "given several times the last holds.",
        0);
    app_.footer(fmt::format(
        "{}\nFlags of horovodrun, mpirun and torchrun that work:\n{}"
        "that are accepted, and change nothing:\n{}\nExamples:\n"
        "  horarun -np 4 ./train\n"
        "  horarun -np 4 -H a:2,b:2 ./train --epochs 10\n"
        "  horarun --rendezvous tcp://a:29400 --nnodes 2 --node-rank 0 --nproc-per-node 4 ./train",
        settings, wrapped(compatible_, 6), wrapped(ignored_, 6)));
  }
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  const Flag& of(const CLI::Option& flag) const { return flags_.at(&flag); }

  /// The flag of a spelling without dashes (`_` counts as `-`). Refuses what is none.
  CLI::Option* find(std::string_view spelling, const std::string& place) {
    std::string name(spelling);
    std::ranges::replace(name, '_', '-');
    CLI::Option* const flag =
        name.empty() ? nullptr : app_.get_option_no_throw((name.size() == 1 ? "-" : "--") + name);
    if (flag != nullptr) return flag;
    for (const auto& [names, advice] : kInstead) {
      if (lists(names, name)) refuse(place, "", "not supported", advice);
    }
    refuse(place, "", "horarun has no flag of this name",
           "see --help. Flags for mpirun alone go into --mpi-args, those of the program behind its "
           "name");
  }

  /// Puts values into the options. `place`, for messages: "-np", "job.yaml:3: np".
  void apply(const CLI::Option& option, const Values& values, const std::string& place) {
    const Flag& flag = of(option);
    place_ = place;
    try {
      if (flag.set) flag.set(values);
    } catch (const Error& error) {  // it names the variable and the value
      refuse(place, "", error.what());
    } catch (const Refused& refused) {
      std::string shown = fmt::format("{}", fmt::join(values, " "));
      // Values of -x and its like, after a `=` or a name, must not be printed.
      if (flag.target == "x") shown = values.front().substr(0, values.front().find('='));
      refuse(place, shown, refused.why);
    }
  }

  std::string help() const {
    std::string text = app_.help();
    while (text.find("\n\n\n") != text.npos) text.erase(text.find("\n\n\n"), 1);
    return text;
  }

 private:
  /// `names` without dashes, between spaces; one letter: a short option; `=NAME`: see Flag::target,
  /// else the first name.
  CLI::Option* add(const std::string& names, const std::string& value, std::string help, Set set) {
    std::string dashed;
    std::string target = names.substr(0, names.find(' '));
    for (const std::string_view name : split_at_spaces(names)) {
      if (name.starts_with('=')) {
        target = name.substr(1);
        continue;
      }
      dashed +=
          fmt::format("{}{}{}", dashed.empty() ? "" : ",", name.size() == 1 ? "-" : "--", name);
      if (value.starts_with('[')) dashed += fmt::format(",--no-{}", name);
      if (group_.empty()) *listed_ += with_dashes(name) + " ";
    }
    CLI::Option* const flag = app_.add_option(dashed, CLI::callback_t(), std::move(help));
    flag->type_name(value)->group(group_);
    flags_[flag] = {std::move(target), std::move(set)};
    return flag;
  }

  void add_number(const std::string& names, const char* value, std::optional<int>& field, int least,
                  int most, std::string help) {
    add(names, value, std::move(help), [=, &field](const Values& values) {
      field = or_refuse(parse_integer(values[0], least, most));
    });
  }

  void add_text(const std::string& names, const char* value, std::string& field, std::string help) {
    add(names, value, std::move(help), [&field](const Values& values) {
      if (values[0].empty()) throw Refused{"the value is empty"};
      if (values[0].find('\0') != std::string::npos) throw Refused{"it holds a NUL byte"};
      field = values[0];
    });
  }

  void add_switch(const std::string& names, bool& field, std::string help) {
    add(names, "", std::move(help), [&field](const Values&) { field = true; });
  }

  /// A flag that takes one of these words, each with what it does.
  void add_words(const std::string& names, const char* value, std::string help,
                 std::map<std::string, std::function<void()>> words, const char* problem) {
    add(names, value, std::move(help), [words = std::move(words), problem](const Values& values) {
      const auto found = words.find(values[0]);
      if (found == words.end()) throw Refused{problem};
      found->second();
    });
  }

  void add_action(const std::string& names, Action action, std::string help) {
    add(names, "", std::move(help), [this, action](const Values&) {
      options_.action = action;
    })->configurable(false);
  }

  void set_setting(const std::string& variable, const std::string& value) {
    const SettingAssignment assignment{variable, value};
    parse_settings({&assignment, 1});
    std::erase_if(options_.settings,
                  [&](const SettingAssignment& s) { return s.variable == variable; });
    options_.settings.push_back(assignment);
  }

  void forward_variable(const std::string& assignment) {
    const std::size_t equals = assignment.find('=');
    const std::string name = assignment.substr(0, equals);
    if (!is_variable_name(name)) {
      throw Refused{"expected the name of a variable: letters, digits and underscores"};
    }
    if (name.starts_with("HORARUN_")) {
      throw Refused{"HORARUN_* is horarun's own, which ranks get from it"};
    }
    std::optional<std::string> value;
    if (equals != assignment.npos) value = assignment.substr(equals + 1);
    if (value && value->find('\0') != value->npos) throw Refused{"the value holds a NUL byte"};
    std::erase_if(options_.variables, [&](const ForwardedVariable& v) { return v.name == name; });
    options_.variables.push_back({name, std::move(value)});
  }

  void note(std::string line) { options_.notices.push_back(std::move(line)); }

  ElasticOptions& elastic() {
    if (!options_.elastic) options_.elastic.emplace();
    return *options_.elastic;
  }

  void add_job() {
    group_ = "Job";
    add_number("np n num-proc", "N", options_.np, 1, kMostRanks,
               "Number of ranks of the job (default: all slots of the hosts).");
    add("x", "NAME",
        "Gives all ranks the variable NAME as it is in horarun's environment. NAME=VALUE works, "
        "too, but other users of this machine can see it in the list of processes.",
        [this](const Values& values) { forward_variable(values[0]); })
        ->take_all();
    add("start-timeout", "SECONDS",
        "All checks and the start of all ranks take no longer than this (default: 30).",
        [this](const Values& values) { options_.start_timeout = seconds_of(values[0]); });
    add_text("wdir wd", "FOLDER", options_.folder,
             "Folder in which the ranks start, on each host (default: the one in which horarun is "
             "started).");
    add_switch("allow-run-as-root", options_.allow_run_as_root, "Lets root start a job.");
    add_switch("dry-run", options_.dry_run, "Prints the exact command, and changes nothing.");
    add("config-file", "FILE",
        "Options from a YAML or JSON file: one map from names of flags without dashes to values "
        "(np: 4). What the command line says wins, wherever it says it.",
        nullptr)
        ->configurable(false);
  }

  void add_hosts() {
    group_ = "Hosts";
    add("hosts H host", "HOST:SLOTS,...",
        "Hosts, and how many ranks each may take: a:2,b:2. Filled in this order (default: this "
        "host).",
        [this](const Values& values) { options_.hosts = or_refuse(parse_host_list(values[0])); });
    add("hostfile machinefile default-hostfile f =hosts", "FILE",
        "Hosts from a file, one a line: \"a slots=2\" or \"a:2\".", [this](const Values& values) {
          if (values[0].empty()) throw Refused{"the path is empty"};
          const auto text = read_input_file(values[0]);
          if (!text) throw Refused{"the hostfile " + text.error()};
          options_.hosts = or_refuse(parse_hostfile(*text, values[0]));
        });
    add_switch("oversubscribe", options_.oversubscribe,
               "Lets hosts take more ranks than they have slots.");
    add("network-interfaces network-interface iface", "NAME,...",
        "Network interfaces that the ranks use; their names may differ between hosts (default: "
        "found by trying which addresses reach each other).",
        [this](const Values& values) { add_interfaces(options_.network_interfaces, values[0]); });
    add_number("ssh-port p", "PORT", options_.ssh_port, 1, 65535,
               "Port of ssh on all hosts (default: ssh's own).");
    add_text("ssh-identity-file i", "FILE", options_.ssh_identity_file,
             "Private key for ssh (default: ssh's own).");
    add_text(
        "mpirun", "PATH", options_.mpirun,
        "The mpirun that starts the ranks, by a path or a name on PATH. It belongs to the MPI "
        "with which the program is linked (default: that of the MPI with which hora was built, "
        "else of PATH).");
    add("mpi-args", "\"ARGS\"",
        "More arguments for mpirun, split as a shell does; nothing in them is expanded.",
        [this](const Values& values) {
          for (std::string& word : or_refuse(split_words(values[0]))) {
            options_.mpi_args.push_back(std::move(word));
          }
        })
        ->take_all();

    group_ = "Elastic jobs";
    add("elastic", "",
        "Goes on without the ranks and hosts that the job loses, from its last checkpoint, on "
        "other hosts or with fewer ranks; the following flags do so, too.",
        [this](const Values&) { elastic(); });
    add("min-np min-num-proc", "N",
        "Fewest ranks with which it goes on; else it waits for hosts (default: -np).",
        [this](const Values& values) {
          elastic().min_np = or_refuse(parse_integer(values[0], 1, kMostRanks));
        });
    add("max-np max-num-proc", "N",
        "Most ranks (default: -np; with --host-discovery-script all slots).",
        [this](const Values& values) {
          elastic().max_np = or_refuse(parse_integer(values[0], 1, kMostRanks));
        });
    add("host-discovery-script", "FILE",
        "A program that prints the hosts there are, one a line (\"a:2\"); run once a second.",
        [this](const Values& values) {
          if (values[0].empty()) throw Refused{"the path is empty"};
          elastic().discovery_script = values[0];
        });
    add_number("slots-per-host", "N", options_.ranks_per_host, 1, kMostRanks,
               "Slots of each host that it prints (default: 1).");
    add("elastic-timeout", "SECONDS", "How long it waits for hosts (default: 600).",
        [this](const Values& values) { elastic().timeout = seconds_of(values[0]); });
    add("reset-limit", "N", "How often it begins anew (default: no limit).",
        [this](const Values& values) {
          elastic().reset_limit = or_refuse(parse_integer(values[0], 0, kMostRanks));
        });
    add("blacklist-cooldown-range", "SECONDS SECONDS",
        "How long a lost host is set aside: the first time, and at most, for it is doubled each "
        "time (default: 10 600).",
        [this](const Values& values) {
          elastic().shortest_pause = seconds_of(values[0]);
          elastic().longest_pause = std::max(seconds_of(values[0]), seconds_of(values[1]));
        });

    group_ = "Nodes that are started one by one";
    add("rendezvous rdzv rdzv-endpoint", "URL",
        "Without ssh: horarun is started on each node, and they meet at tcp://HOST:PORT (an "
        "address of node 0) or in file:///FOLDER (shared by all nodes; default: MASTER_ADDR and "
        "MASTER_PORT, where they are set).",
        [this](const Values& values) {
          options_.rendezvous = or_refuse(parse_rendezvous(values[0]));
        });
    add("rendezvous-id rdzv-id", "ID",
        "Tells jobs apart that meet in one folder: the same on each node of a job (default: job).",
        [this](const Values& values) {
          const std::string& id = values[0];  // it becomes the name of a file
          if (id.size() > 64 || !is_made_of(id, "._-") || !is_made_of(id.substr(0, 1), "")) {
            throw Refused{
                "expected up to 64 letters, digits and ._- , the first a letter or digit"};
          }
          options_.rendezvous_id = id;
        });
    add("nnodes", "N", "Number of nodes that meet there (default: 1).",
        [this](const Values& values) {
          const std::size_t colon = values[0].find(':');
          const std::string least = values[0].substr(0, colon);
          if (colon != std::string::npos && values[0].substr(colon + 1) != least) {
            throw Refused{
                "expected one number: elastic jobs start their hosts from here (-H, --elastic)"};
          }
          options_.nnodes = or_refuse(parse_integer(least, 1, kMostRanks));
        });
    add_number("node-rank", "N", options_.node_rank, 0, kMostRanks - 1,
               "Which of them this is, from 0.");
    add_number("nproc-per-node npernode N ppn perhost", "N", options_.ranks_per_host, 1, kMostRanks,
               "Number of ranks on each node, or on each host of -H (default: 1 with --nnodes).");
    add_text("token-file", "FILE", options_.token_file,
             fmt::format("File with the token that all nodes of the rendezvous share (default: the "
                         "variable {}).",
                         kTokenVariable));

    group_ = "Cores";
    add("binding", "auto|none|core|numa",
        "Cores of a rank: auto (an equal share of those that the job was granted; the default), "
        "core "
        "(that share, also where others use it), numa (a NUMA domain), none (all of them).",
        [this](const Values& values) {
          const auto binding = parse_binding(values[0]);
          if (!binding) throw Refused{"expected auto, none, core or numa"};
          options_.binding = *binding;
        });
  }

  void add_output() {
    group_ = "Output";
    add_text("output-filename", "FOLDER", options_.output_folder,
             "Writes each rank's output into a file of its own in exactly this folder.");
    add_words("prefix-output", "[=on|off|auto]",
              "Puts host:rank before each line of output (default: on for more than one rank with "
              "a terminal).",
              {{"on", [this] { options_.prefix_output = Switch::on; }},
               {"off", [this] { options_.prefix_output = Switch::off; }},
               {"auto", [this] { options_.prefix_output = Switch::automatic; }}},
              "expected on, off or auto");
    add("ranks", "RANKS", "Shows the output of these ranks only: 0,3 or 0-3 (default: all).",
        [this](const Values& values) { add_ranks(options_.shown_ranks, values[0]); });
    add_switch("verbose v", options_.verbose,
               "Says what is checked and started, and passes on all that mpirun prints.");

    group_ = "Watch";
    add_switch(
        "watch", options_.watch,
        "Shows what each rank is doing, and which rank comes last to collectives, by how much "
        "and in which phase: a table on standard error.");
    add_number("watch-interval", "SECONDS", options_.watch_interval, 1, kMostWatchInterval,
               "How often --watch does so (default: 10).");
    add("diagnose", "FOLDER", "Reads the flight records in a folder, and says what happened.",
        [this](const Values& values) {
          if (values[0].empty()) throw Refused{"the value is empty"};
          options_.action = Action::diagnose;
          options_.diagnose_folder = values[0];
        })
        ->configurable(false);

    group_ = "About horarun";
    add_action("help h", Action::help, "Prints this.");
    add_action("version V", Action::version, "Prints the version, as -v alone does.");
    add_action("check-build cb", Action::check_build,
               "Says which MPI, CUDA, NCCL and LibTorch there are, and what is missing.");
  }

  void add_settings() {
    group_ = "Settings of the library";
    for (const SettingDescription& setting : setting_descriptions()) {
      const std::string variable(setting.variable);
      const bool on_off = std::ranges::count(setting.choices, "on") > 0;
      std::string names = flag_of(variable);
      if (variable == "HORA_ID_CAPACITY") names += " cache-capacity";
      if (variable == "HORA_TIMELINE") names += " timeline-filename";
      const std::string value = value_name(setting);
      add(names + " =" + variable, on_off ? "[=" + value + "]" : value,
          fmt::format("{} (default: {})", setting.documentation, setting.default_value),
          [this, variable](const Values& values) {
            set_setting(variable, variable == "HORA_LOG_LEVEL" ? level(values[0]) : values[0]);
          });
    }
  }

  void add_horovods() {
    const auto in_unit = [this](const char* names, const char* help, std::string variable,
                                std::string unit) {
      add(names, "N", help, [=, this](const Values& values) {
        set_setting(variable, std::to_string(or_refuse(parse_integer(values[0], 0, 65536))) + unit);
      });
    };
    in_unit("fusion-threshold-mb =HORA_FUSION_THRESHOLD", "As --fusion-threshold, in MiB.",
            "HORA_FUSION_THRESHOLD", "MiB");
    in_unit("stall-check-warning-time-seconds =HORA_STALL_WARNING", "As --stall-warning.",
            "HORA_STALL_WARNING", "s");
    in_unit("stall-check-shutdown-time-seconds =HORA_TIMEOUT", "As --timeout.", "HORA_TIMEOUT",
            "s");
    add_words("stall-check =HORA_STALL_WARNING", "[]", "As --stall-warning 0, where it is off.",
              {{"on", [] {}}, {"off", [this] { set_setting("HORA_STALL_WARNING", "0"); }}},
              "expected on or off");
    add("binding-args =binding", "\"ARGS\"",
        "Arguments of mpirun that bind ranks to cores, in place of --binding.",
        [this](const Values& values) {
          const auto words = or_refuse(split_words(values[0]));
          options_.binding = Binding::none;
          options_.mpi_args.insert(options_.mpi_args.end(), words.begin(), words.end());
        });
  }

  /// Goes on to mpirun, but for the port of its ssh, in whose place horarun starts its agents.
  void pass_on(const std::string& names, const std::string& value) {
    const std::string flag = "--" + names.substr(0, names.find(' '));
    add(names + " =mpi-args", value, "Goes on to mpirun.", [this, flag](const Values& values) {
      if (values.size() == 2 && lists("plm_rsh_args plm_ssh_args", values[0]) &&
          values[1].starts_with("-p ")) {
        options_.ssh_port = or_refuse(parse_integer(values[1].substr(3), 1, 65535));
        return;
      }
      options_.mpi_args.push_back(flag);
      options_.mpi_args.insert(options_.mpi_args.end(), values.begin(), values.end());
    })->take_all();
  }

  void add_mpiruns() {
    for (const char* const name : {"mca", "gmca", "omca", "prtemca", "pmixmca"}) {
      pass_on(name, "KEY VALUE");
    }
    pass_on("prefix", "FOLDER");
    pass_on("tune am", "FILE");
    pass_on("stdin", "RANK");
    pass_on("display", "WHAT");
    pass_on("display-map display-allocation", "");

    add("bind-to =binding", "OBJECT", "As --binding.", [this](const Values& values) {
      const std::string object = values[0].substr(0, values[0].find(':'));
      const bool domain = object == "numa" || object == "socket" || object == "package";
      if (object != "none" && object != "core" && !domain) {
        throw Refused{
            "expected none, core, numa or socket; for others --binding none --mpi-args "
            "\"--bind-to ...\""};
      }
      options_.binding = domain ? Binding::numa : object == "none" ? Binding::none : Binding::cores;
    });
    for (const auto& [name, binding] :
         {std::pair("none", Binding::none), std::pair("core", Binding::cores)}) {
      add(fmt::format("bind-to-{} =binding", name), "", fmt::format("As --binding {}.", name),
          [this, binding = binding](const Values&) { options_.binding = binding; });
    }
    add("map-by", "slot|ppr:N:node", "As nothing, or as --nproc-per-node.",
        [this](const Values& values) { set_map_by(options_, values[0]); });
    add_words("rank-by", "slot", "", {{"slot", [] {}}, {"core", [] {}}},
              "ranks are numbered host by host: expected slot");
    add("pernode =nproc-per-node", "", "As --nproc-per-node 1.",
        [this](const Values&) { options_.ranks_per_host = 1; });
    add("tag-output l prepend-rank =prefix-output", "", "As --prefix-output.",
        [this](const Values&) { options_.prefix_output = Switch::on; });
    add("output =prefix-output", "tag", "As --prefix-output.", [this](const Values& values) {
      for (const std::string_view word : split(values[0], ',')) {
        if (word != "tag" && word != "rank") {
          throw Refused{"expected tag; files are written by --output-filename FOLDER"};
        }
      }
      options_.prefix_output = Switch::on;
    });
    add("genv env =x", "NAME VALUE", "As -x.", [this](const Values& values) {
      forward_variable(values[0] + "=" + values[1]);
    })->take_all();
    add("genvlist envlist =x", "NAME,...", "As -x.", [this](const Values& values) {
      for (const std::string_view name : split(values[0], ',')) {
        if (name.find('=') != name.npos) throw Refused{"expected names with commas between them"};
        forward_variable(std::string(trimmed(name)));
      }
    })->take_all();
  }

  void add_torchruns() {
    // Two halves of one endpoint.
    add("master-addr", "HOST", "The address of --rendezvous.", [this](const Values& values) {
      const std::uint16_t port = options_.rendezvous ? options_.rendezvous->port : kMasterPort;
      options_.rendezvous = or_refuse(parse_rendezvous(values[0]));
      options_.rendezvous->port = port;
    });
    add("master-port", "PORT", "The port of --rendezvous.", [this](const Values& values) {
      const int port = or_refuse(parse_integer(values[0], 0, 65535));
      if (!options_.rendezvous) options_.rendezvous.emplace();
      options_.rendezvous->port = static_cast<std::uint16_t>(port);
    });
    add_words("rdzv-backend", "c10d|static", "", {{"c10d", [] {}}, {"static", [] {}}},
              "nodes meet at an address or in a shared folder: --rendezvous tcp://HOST:PORT or "
              "file:///FOLDER");
    add("max-restarts", "N", "", [this](const Values& values) {
      const int limit = or_refuse(parse_integer(values[0], 0, kMostRanks));
      if (limit > 0) elastic().reset_limit = limit;
    });
  }

  void add_ignored() {
    for (const auto& [names, value, text] : kIgnored) {
      for (const std::string_view name : split_at_spaces(names)) {
        add(std::string(name), value, "", [this, advice = std::string_view(text)](const Values&) {
          if (!advice.empty()) note(fmt::format("{} changes nothing: {}", place_, advice));
        });
      }
    }
  }

  LaunchOptions& options_;
  CLI::App app_;
  std::map<const CLI::Option*, Flag> flags_;
  std::string group_;  ///< of flags that are added; empty: of another launcher's
  /// Names of other launchers' flags: that work, that change nothing.
  std::string compatible_, ignored_;
  std::string* listed_ = &compatible_;
  std::string place_;  ///< of the flag that is applied
};

/// A flag with its values, as the command line or the config file has it.
struct Given {
  CLI::Option* flag = nullptr;
  std::vector<std::string> values = {};
  std::string place = {};  ///< "-np", "job.yaml:3: np"
};

/// The flag at the front of `rest`, with its values: both are removed.
Given take_flag(Flags& flags, std::span<const std::string>& rest) {
  const std::string& argument = rest.front();
  const std::size_t dashes = argument.starts_with("--") ? 2 : 1;
  const std::size_t equals = argument.find('=');
  Given given{.place = argument.substr(0, equals)};
  const std::string name = given.place.substr(dashes);
  given.flag = flags.find(name, given.place);
  if (equals != argument.npos) given.values.push_back(argument.substr(equals + 1));
  rest = rest.subspan(1);
  const Takes takes = takes_of(*given.flag);
  const bool on_off = takes == Takes::on_off;
  const bool negated = on_off && (name.starts_with("no-") || name.starts_with("no_"));
  if (!given.values.empty() && (takes == Takes::nothing || negated)) {
    refuse(given.place, given.values[0], "this flag takes no value");
  }
  if (on_off && given.values.empty()) {
    const bool is_next = !negated && !rest.empty() && lists("on off auto", rest.front());
    given.values.push_back(negated ? "off" : is_next ? rest.front() : "on");
    if (is_next) rest = rest.subspan(1);
  }
  const std::size_t wanted = takes == Takes::nothing ? 0 : takes == Takes::pair ? 2 : 1;
  while (given.values.size() < wanted) {
    if (rest.empty()) refuse(given.place, "", "the value is missing", "see --help");
    given.values.push_back(rest.front());
    rest = rest.subspan(1);
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

/// Reads a config file: one map from names of flags, without dashes, to values or lists of them.
std::vector<Given> read_config(Flags& flags, const std::string& path) {
  constexpr std::size_t kLargest = std::size_t{64} << 10;
  const auto text = read_input_file(path, kLargest);
  if (!text) refuse("--config-file", path, text.error());
  std::vector<Given> given;
  const auto at = [&](const YAML::Mark& mark) { return fmt::format("{}:{}", path, mark.line + 1); };
  const auto read_entry = [&](const YAML::Node& key, const YAML::Node& value) {
    const std::string place = fmt::format("{}: {}", at(key.Mark()), key.Scalar());
    CLI::Option* const flag = flags.find(key.Scalar(), place);
    const Takes takes = takes_of(*flag);
    if (!flag->get_configurable() || takes == Takes::pair) {
      refuse(place, "", "belongs on the command line");
    }
    Values values;
    for (std::size_t i = 0; i < (value.IsSequence() ? value.size() : 1); ++i) {
      const YAML::Node item = value.IsSequence() ? value[i] : value;
      if (item.IsNull()) refuse(place, "", "the value is missing");
      if (!item.IsScalar()) refuse(place, "", "expected a value, or a list of values");
      values.push_back(item.Scalar());
    }
    bool truth = false;
    const bool is_truth = value.IsScalar() && YAML::convert<bool>::decode(value, truth);
    if (takes == Takes::nothing) {
      if (!is_truth) refuse(place, value.IsScalar() ? values[0] : "", "expected true or false");
      if (truth) given.push_back({flag, {}, place});
      return;
    }
    if (takes == Takes::on_off && is_truth) values = {truth ? "on" : "off"};
    if (flag->get_multi_option_policy() != CLI::MultiOptionPolicy::TakeAll) {
      values = {fmt::format("{}", fmt::join(values, ","))};
    }
    for (const std::string& each : values) given.push_back({flag, {each}, place});
  };
  try {
    const YAML::Node document = YAML::Load(*text);
    if (document.IsNull()) return given;
    if (!document.IsMap()) {
      refuse(at(document.Mark()), "", "expected a map of flags to values, such as \"np: 4\"");
    }
    for (const auto& entry : document) read_entry(entry.first, entry.second);
  } catch (const YAML::Exception& error) {
    refuse(at(error.mark), "", "neither YAML nor JSON: " + error.msg);
  }
  return given;
}

/// The value of the first entry "name=value" that is not empty.
std::optional<std::string_view> value_of(std::string_view name, Environment environment) {
  for (const char* const entry : environment) {
    const std::string_view text(entry == nullptr ? "" : entry);
    if (text.starts_with(name) && text.substr(name.size()).starts_with('=') &&
        text.size() > name.size() + 1) {
      return text.substr(name.size() + 1);
    }
  }
  return std::nullopt;
}

/// An allocation's hosts are known at the start only.
bool is_in_allocation(Environment environment) {
  return value_of("SLURM_JOB_NODELIST", environment) || value_of("PBS_NODEFILE", environment);
}

/// Where nodes meet, and which nodes there are, where the options do not say so: MASTER_ADDR and
/// MASTER_PORT, and NNODES with NODE_RANK, else WORLD_SIZE with RANK, one process a node, as for
/// torchrun.
void take_environment(LaunchOptions& options, Environment environment) {
  const auto host = value_of("MASTER_ADDR", environment);
  if (!host || !options.hosts.empty() || options.rendezvous) return;
  const auto place = parse_rendezvous(fmt::format(
      "{}:{}", *host, value_of("MASTER_PORT", environment).value_or(std::to_string(kMasterPort))));
  if (!place) refuse("MASTER_ADDR, MASTER_PORT", "", place.error());
  const auto number = [](const char* name, std::string_view value, int least, int most) {
    const auto read = parse_integer(value, least, most);
    if (!read) refuse(name, value, read.error());
    return *read;
  };
  int nnodes = 0, node_rank = 0;
  for (const auto& [of_all, own] :
       {std::pair("NNODES", "NODE_RANK"), std::pair("WORLD_SIZE", "RANK")}) {
    const auto count = value_of(of_all, environment), rank = value_of(own, environment);
    if (nnodes > 0 || !count || !rank) continue;
    nnodes = number(of_all, *count, 1, kMostRanks);
    node_rank = number(own, *rank, 0, nnodes - 1);
  }
  if (options.nnodes == 1) {
    if (nnodes == 0 || (options.np && nnodes > 1)) {
      if (is_in_allocation(environment)) return;
      options.notices.emplace_back(
          "MASTER_ADDR is not used, the job has this host alone: for nodes that meet there give "
          "--nnodes and --node-rank");
      return;
    }
    options.nnodes = nnodes;
    if (!options.node_rank) options.node_rank = node_rank;
  }
  options.rendezvous = *place;
}

void check_nodes(LaunchOptions& options) {
  const int nodes = options.nnodes;
  if (options.node_rank && *options.node_rank >= nodes) {
    refuse("--node-rank", *options.node_rank,
           fmt::format("there are {} nodes, numbered from 0 (--nnodes)", nodes));
  }
  if (nodes == 1) {
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
  if (!place || (place->host.empty() && !place->in_folder())) {
    refuse("--nnodes", nodes, "the nodes need a place to meet",
           "add --rendezvous tcp://HOST:PORT or file:///FOLDER, the same on each node");
  }
  if (place->in_folder() && !options.node_rank) {
    refuse("--rendezvous", to_url(*place), "nodes that meet in a folder need their numbers",
           "give each its --node-rank");
  }
  if (!place->in_folder() && place->port == 0) {
    refuse("--rendezvous", to_url(*place), "several nodes need a port from 1 to 65535");
  }
}

/// With several nodes: np = nnodes * ranks_per_host.
void complete_ranks_of_nodes(LaunchOptions& options) {
  const auto& np = options.np;
  if (!options.ranks_per_host) {
    if (np && *np % options.nnodes != 0) {
      refuse("-np", *np, fmt::format("cannot be shared evenly by {} nodes", options.nnodes),
             "give --nproc-per-node");
    }
    options.ranks_per_host = np ? *np / options.nnodes : 1;
  }
  const long long ranks = static_cast<long long>(*options.ranks_per_host) * options.nnodes;
  if (ranks > kMostRanks || (np && *np != ranks)) {
    refuse(np ? "-np" : "--nproc-per-node", np.value_or(*options.ranks_per_host),
           fmt::format("{} nodes of {} ranks are {} ranks", options.nnodes, *options.ranks_per_host,
                       ranks),
           np ? "leave out -np" : "at most 65536 are possible");
  }
  options.np = static_cast<int>(ranks);
}

/// --nproc-per-node with -H: the slots of each host.
void limit_hosts(LaunchOptions& options) {
  const int each = *options.ranks_per_host;
  for (HostSlots& host : options.hosts) {
    if (host.counted && host.slots < each && !options.oversubscribe) {
      refuse("--nproc-per-node", each,
             fmt::format("host {} has {} slots (-H host:slots, slots= in a hostfile)", host.name,
                         host.slots),
             "or add --oversubscribe");
    }
    host.slots = each;
    host.counted = true;
  }
  if (static_cast<std::size_t>(each) * options.hosts.size() > kMostRanks) {
    refuse(
        "--nproc-per-node", each,
        fmt::format("on {} hosts these are more than {} ranks", options.hosts.size(), kMostRanks));
  }
}

void complete_ranks(LaunchOptions& options, Environment environment) {
  if (options.nnodes > 1) return complete_ranks_of_nodes(options);
  if (options.hosts.empty()) {
    if (!options.np && !is_in_allocation(environment)) options.np = options.ranks_per_host;
    return;
  }
  if (options.ranks_per_host) limit_hosts(options);
  if (!options.np) options.np = total_slots(options.hosts);
  const auto layout = lay_out_ranks(options.hosts, *options.np, options.oversubscribe);
  if (!layout) refuse("-np", *options.np, layout.error());
}

/// Afterwards 1 <= min_np <= max_np.
void complete_elastic(LaunchOptions& options) {
  ElasticOptions& elastic = *options.elastic;
  if (!elastic.discovery_script.empty() && (!options.hosts.empty() || options.nnodes > 1)) {
    refuse("--host-discovery-script", elastic.discovery_script,
           "-H, --hostfile and --nnodes name the hosts, too", "give one of them");
  }
  elastic.oversubscribe = options.oversubscribe;
  if (elastic.min_np == 0) elastic.min_np = options.np.value_or(1);
  if (elastic.max_np == 0) {
    elastic.max_np =
        elastic.discovery_script.empty() ? options.np.value_or(kMostRanks) : kMostRanks;
  }
  if (elastic.min_np > elastic.max_np) {
    refuse("--min-np", elastic.min_np, fmt::format("is above --max-np, {}", elastic.max_np));
  }
}

/// Settings of the environment give way to the options'.
void complete_settings(LaunchOptions& options, Environment environment) {
  std::vector<SettingAssignment> all = options.settings;
  for (SettingAssignment& each : setting_assignments(environment)) {
    const auto same =
        std::ranges::find(options.settings, each.variable, &SettingAssignment::variable);
    if (same == options.settings.end()) all.push_back(std::move(each));
  }
  options.effective = parse_settings(all);
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
  if (options.elastic) complete_elastic(options);
  if (options.np && !options.shown_ranks.empty() && *options.shown_ranks.rbegin() >= *options.np) {
    refuse("--ranks", *options.shown_ranks.rbegin(),
           fmt::format("the ranks of this job are 0 to {}", *options.np - 1));
  }
  complete_settings(options, environment);
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
      if (each.flag->check_lname("mpirun")) flags.apply(*each.flag, each.values, each.place);
    }
    return options;
  }
  std::set<std::string> overridden;
  std::string config;
  for (const Given& each : given) {
    if (flags.of(*each.flag).target != "x") overridden.insert(flags.of(*each.flag).target);
    if (each.flag->check_lname("config-file")) config = each.values[0];
  }
  if (overridden.contains("config-file")) {
    for (const Given& each : read_config(flags, config)) {
      if (overridden.contains(flags.of(*each.flag).target)) continue;
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
  return expected_of([&] { return parse(arguments, environment); });
}

std::string help_text() {
  LaunchOptions options;
  return Flags(options).help();
}

}  // namespace hora::launch
