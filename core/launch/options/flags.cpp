#include "core/launch/options/flags.h"

#include <hora/error.h>
#include <hora/printable.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "core/base/text.h"
#include "core/launch/command/command.h"
#include "core/launch/control/secret.h"
#include "core/launch/guard/guard.h"
#include "core/launch/text.h"

namespace hora::launch {
namespace {

constexpr char kHostsTwice[] = "-H and --hostfile exclude each other";

/// "-H", "-np" or "--hosts": one dash before one or two letters.
std::string with_dashes(std::string_view spelling) {
  return fmt::format("{}{}", spelling.size() <= 2 ? "-" : "--", spelling);
}

/// All spellings without dashes but --no-NAME, short ones first.
std::vector<std::string> spellings_of(const CLI::Option& flag) {
  std::vector<std::string> result = flag.get_snames();
  for (const std::string& name : flag.get_lnames()) {
    if (!name.starts_with("no-")) result.push_back(name);
  }
  return result;
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
    std::string heading;
    for (const std::string& name : spellings_of(*flag)) {
      heading += (heading.empty() ? "" : ", ") + with_dashes(name);
    }
    const std::string& value = flag->get_type_name();
    const bool on_off = Flags::taken_by(*flag) == Takes::on_off;
    if (!value.empty()) heading += (on_off ? "" : " ") + value;
    if (on_off) heading += ", --no-" + flag->get_lnames().front();
    return wrapped(heading, 2) + wrapped(flag->get_description(), 6);
  }
};

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

/// "HORA_FUSION_THRESHOLD" -> "fusion-threshold".
std::string flag_of(std::string_view variable) {
  std::string flag = lower(std::string(variable.substr(sizeof "HORA_" - 1)));
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
  const std::string name = lower(text);
  if (name == "trace") return "debug";
  return name == "fatal" || name == "critical" ? "error" : name;
}

/// Adds "0,3,8-11" to ascending ranks. Ranges that overlap are joined before they become ranks:
/// their number, not their lengths, is what a text can make large.
void add_ranks(std::vector<int>& ranks, std::string_view list) {
  std::vector<std::pair<int, int>> ranges;
  for (const int rank : ranks) ranges.emplace_back(rank, rank);
  for (const std::string_view item : split(list, ',')) {
    const std::string_view range = trimmed(item);
    const std::size_t dash = range.find('-');
    const auto first = parse_integer(range.substr(0, dash), 0, kMostRanks - 1);
    const auto last =
        dash == range.npos ? first : parse_integer(range.substr(dash + 1), 0, kMostRanks - 1);
    if (!first || !last || *last < *first) {
      throw Refused{"expected ranks with commas between them, such as 0,3 or 0-3,8"};
    }
    ranges.emplace_back(*first, *last);
  }
  std::ranges::sort(ranges);
  ranks.clear();
  int next = 0;
  for (const auto& [first, last] : ranges) {
    for (next = std::max(next, first); next <= last; ++next) ranks.push_back(next);
  }
}

void add_interfaces(std::vector<std::string>& names, std::string_view list) {
  constexpr std::size_t kLongest = 15;  // IFNAMSIZ - 1
  constexpr std::size_t kMost = 64;
  for (const std::string_view item : split(list, ',')) {
    const std::string name(trimmed(item));
    const bool is_name = name.size() <= kLongest && std::ranges::all_of(name, [](char c) {
                           return is_host_name({&c, 1}) || c == '-' || c == '@';
                         });
    if (name.empty() || name.starts_with('-') || !is_name) {
      throw Refused{in_quotes(name) + " is no name of a network interface"};
    }
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    if (names.size() > kMost) throw Refused{"more than 64 interfaces are named"};
  }
}

}  // namespace

void refuse(std::string_view place, std::string_view value, std::string_view problem,
            std::string_view advice) {
  std::string text = printable(place);
  if (!value.empty()) text += (text.empty() ? "" : " ") + in_quotes(value);
  if (!text.empty()) text += ": ";
  text += printable(problem);
  if (!advice.empty()) text += "; " + printable(advice);
  throw UsageError{std::move(text)};
}

Flags::Flags(LaunchOptions& options) : options_(options) {
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
  standing_ = 1;
  add_ignored();
  standing_ = 2;
  add_refused();
  app_.description(
      wrapped("Starts the ranks of a data-parallel job on one or several hosts, watches them, and "
              "says what "
              "happened when the job ends. What follows PROGRAM belongs to it.",
              0));
  app_.footer(
      wrapped(
          "Each setting is a variable, too, over which the flag wins: --fusion-threshold is "
          "HORA_FUSION_THRESHOLD. Sizes may end in KiB, MiB or GiB, times in us, ms or s. Of those "
          "that are on or off, --report is --report=on, and --no-report is --report=off. Long "
          "flags "
          "are taken after one dash, too, and with \"_\" for \"-\". Of a flag with one value that "
          "is "
          "given several times the last holds.",
          0) +
      "\nFlags of horovodrun, mpirun and torchrun that work:\n" + wrapped(compatible_[0], 6) +
      "that are accepted, and change nothing:\n" + wrapped(compatible_[1], 6) +
      "that are refused, with what to use instead:\n" + wrapped(compatible_[2], 6) +
      "\nExamples:\n"
      "  horarun -np 4 ./train\n"
      "  horarun -np 4 -H a:2,b:2 ./train --epochs 10\n"
      "  horarun --rendezvous tcp://a:29400 --nnodes 2 --node-rank 0 --nproc-per-node 4 ./train");
}

CLI::Option* Flags::add(Takes takes, const std::string& names, std::string value, std::string help,
                        Set set) {
  std::string dashed;
  std::string target = names.substr(0, names.find(' '));
  for (const std::string_view name : split_at_spaces(names)) {
    if (name.starts_with('=')) {
      target = name.substr(1);
      continue;
    }
    dashed += fmt::format("{}{}{}", dashed.empty() ? "" : ",", name.size() == 1 ? "-" : "--", name);
    if (takes == Takes::on_off) dashed += fmt::format(",--no-{}", name);
    if (group_.empty()) compatible_.at(standing_) += with_dashes(name) + " ";
  }
  const auto call = [takes, set = std::move(set)](const CLI::results_t& values) {
    if (set) set(takes == Takes::nothing ? Values() : values);
    return true;
  };
  CLI::Option* const flag = app_.add_option(dashed, call, std::move(help));
  flag->type_name(std::move(value))->group(group_);
  if (takes == Takes::nothing) flag->expected(0);
  if (takes == Takes::on_off) flag->expected(0, 1);
  if (takes == Takes::pair) flag->type_size(2);
  targets_[flag] = std::move(target);
  return flag;
}

CLI::Option* Flags::add_number(const std::string& names, std::string value,
                               std::optional<int>& field, int least, int most, std::string help) {
  return add(Takes::value, names, std::move(value), std::move(help),
             [=, &field](const Values& values) {
               field = or_refuse(parse_integer(values[0], least, most));
             });
}

CLI::Option* Flags::add_text(const std::string& names, std::string value, std::string& field,
                             std::string help) {
  return add(Takes::value, names, std::move(value), std::move(help),
             [&field](const Values& values) {
               if (values[0].empty()) throw Refused{"the value is empty"};
               if (values[0].find('\0') != std::string::npos) throw Refused{"it holds a NUL byte"};
               field = values[0];
             });
}

CLI::Option* Flags::add_switch(const std::string& names, bool& field, std::string help) {
  return add(Takes::nothing, names, "", std::move(help), [&field](const Values&) { field = true; });
}

CLI::Option* Flags::add_action(const std::string& names, Action action, std::string help) {
  return add(Takes::nothing, names, "", std::move(help),
             [this, action](const Values&) { options_.action = action; })
      ->configurable(false);
}

void Flags::set_setting(const std::string& variable, const std::string& value) {
  const SettingAssignment assignment{variable, value};
  try {
    parse_settings({&assignment, 1});
  } catch (const Error& error) {
    const std::string text = error.what();
    const std::string begin = variable + "=" + in_quotes(value) + ": ";
    const std::size_t place = text.find(begin);
    throw Refused{place == text.npos ? text : text.substr(place + begin.size())};
  }
  std::erase_if(options_.settings,
                [&](const SettingAssignment& s) { return s.variable == variable; });
  options_.settings.push_back(assignment);
}

void Flags::forward_variable(const std::string& assignment) {
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
  const auto& settings = setting_descriptions();
  if (value && std::ranges::find(settings, name, &SettingDescription::variable) != settings.end()) {
    try {
      return set_setting(name, *value);
    } catch (const Refused&) {
      throw Refused{"the value is not allowed; see --help for " + name};
    }
  }
  if (value && value->find('\0') != value->npos) throw Refused{"the value holds a NUL byte"};
  std::erase_if(options_.variables, [&](const ForwardedVariable& v) { return v.name == name; });
  options_.variables.push_back({name, std::move(value)});
}

void Flags::add_job() {
  group_ = "Job";
  add_number("np n num-proc", "N", options_.np, 1, kMostRanks,
             "Number of ranks of the job (default: all slots of the hosts).");
  add(Takes::value, "x", "NAME",
      "Gives all ranks the variable NAME as it is in horarun's environment. NAME=VALUE works, too, "
      "but other users of this machine can see it in the list of processes.",
      [this](const Values& values) { forward_variable(values[0]); })
      ->take_all();
  add(Takes::value, "start-timeout", "SECONDS",
      "All checks and the start of all ranks take no longer than this (default: 30).",
      [this](const Values& values) {
        std::string_view text = values[0];
        if (text.ends_with('s')) text.remove_suffix(1);
        const auto seconds = parse_integer(text, 1, 86400);
        if (!seconds) throw Refused{seconds.error() + " (seconds)"};
        options_.start_timeout = std::chrono::seconds(*seconds);
      });
  add_text("wdir wd", "FOLDER", options_.folder,
           "Folder in which the ranks start, on each host (default: the one in which horarun is "
           "started).");
  add_switch("allow-run-as-root", options_.allow_run_as_root, "Lets root start a job.");
  add_switch("dry-run", options_.dry_run, "Prints the exact command, and changes nothing.");
  add(Takes::value, "config-file", "FILE",
      "Options from a YAML or JSON file: one map from names of flags without dashes to values "
      "(np: 4). What the command line says wins, wherever it says it.",
      nullptr)
      ->configurable(false);
}

void Flags::add_hosts() {
  group_ = "Hosts";
  add(Takes::value, "hosts H host", "HOST:SLOTS,...",
      "Hosts, and how many ranks each may take: a:2,b:2. Filled in this order (default: this "
      "host).",
      [this](const Values& values) {
        if (!options_.hostfile.empty()) throw Refused{kHostsTwice};
        options_.hosts = or_refuse(parse_host_list(values[0]));
      });
  add(Takes::value, "hostfile machinefile default-hostfile f =hosts", "FILE",
      "Hosts from a file, one a line: \"a slots=2\" or \"a:2\".", [this](const Values& values) {
        if (options_.hostfile.empty() && !options_.hosts.empty()) throw Refused{kHostsTwice};
        if (values[0].empty()) throw Refused{"the path is empty"};
        const auto text = read_input_file(values[0]);
        if (!text) throw Refused{"the hostfile " + text.error()};
        options_.hosts = or_refuse(parse_hostfile(*text, values[0]));
        options_.hostfile = values[0];
      });
  add_switch("oversubscribe", options_.oversubscribe,
             "Lets hosts take more ranks than they have slots.");
  add(Takes::value, "network-interfaces network-interface iface", "NAME,...",
      "Network interfaces that the ranks use; their names may differ between hosts (default: found "
      "by trying which addresses reach each other).",
      [this](const Values& values) { add_interfaces(options_.network_interfaces, values[0]); });
  add_number("ssh-port p", "PORT", options_.ssh_port, 1, 65535,
             "Port of ssh on all hosts (default: ssh's own).");
  add_text("ssh-identity-file i", "FILE", options_.ssh_identity_file,
           "Private key for ssh (default: ssh's own).");
  add_text("mpirun", "PATH", options_.mpirun,
           "The mpirun that starts the ranks, by a path or a name on PATH. It belongs to the MPI "
           "with which the program is linked (default: that of the MPI with which hora was built, "
           "else of PATH).");
  add(Takes::value, "mpi-args", "\"ARGS\"",
      "More arguments for mpirun, split as a shell does; nothing in them is expanded.",
      [this](const Values& values) {
        for (std::string& word : or_refuse(split_words(values[0]))) {
          options_.mpi_args.push_back(std::move(word));
        }
      })
      ->take_all();

  group_ = "Nodes that are started one by one";
  add(Takes::value, "rendezvous rdzv", "URL",
      "Without ssh: horarun is started on each node, and they meet at tcp://HOST:PORT (an address "
      "of node 0) or in file:///FOLDER (shared by all nodes; default: MASTER_ADDR and MASTER_PORT, "
      "where they are set).",
      [this](const Values& values) {
        options_.rendezvous = or_refuse(parse_rendezvous(values[0]));
      });
  add(Takes::value, "rendezvous-id rdzv-id", "ID",
      "Tells jobs apart that meet in one folder: the same on each node of a job (default: job).",
      [this](const Values& values) {
        if (!is_rendezvous_id(values[0])) {
          throw Refused{"expected up to 64 letters, digits and ._- , the first a letter or digit"};
        }
        options_.rendezvous_id = values[0];
      });
  add(Takes::value, "nnodes", "N", "Number of nodes that meet there (default: 1).",
      [this](const Values& values) {
        const std::size_t colon = values[0].find(':');
        const std::string least = values[0].substr(0, colon);
        if (colon != std::string::npos && values[0].substr(colon + 1) != least) {
          throw Refused{"expected one number: a job of hora does not grow or shrink"};
        }
        options_.nnodes = or_refuse(parse_integer(least, 1, kMostRanks));
      });
  add_number("node-rank", "N", options_.node_rank, 0, kMostRanks - 1,
             "Which of them this is, from 0.");
  add(Takes::value, "nproc-per-node npernode N ppn perhost", "N",
      "Number of ranks on each node, or on each host of -H (default: 1 with --nnodes).",
      [this](const Values& values) {
        const bool counts = values[0] == "auto" || values[0] == "gpu" || values[0] == "cpu";
        const auto number = parse_integer(values[0], 1, kMostRanks);
        const char* const advice = "; horarun does not count devices: write the number";
        if (!number) throw Refused{number.error() + (counts ? advice : "")};
        options_.ranks_per_host = *number;
      });
  add_text("token-file", "FILE", options_.token_file,
           fmt::format("File with the token that all nodes of the rendezvous share (default: the "
                       "variable {}).",
                       kTokenVariable));

  group_ = "Cores";
  add(Takes::value, "binding", "auto|none|core|numa",
      "Cores of a rank: auto (an equal share of those that the job was granted; the default), core "
      "(that share, also where others use it), numa (a NUMA domain), none (all of them).",
      [this](const Values& values) {
        const auto binding = parse_binding(values[0] == "core" ? "cores" : values[0]);
        if (!binding || values[0] == "cores") throw Refused{"expected auto, none, core or numa"};
        options_.binding = *binding;
      });
}

void Flags::add_output() {
  group_ = "Output";
  add_text("output-filename", "FOLDER", options_.output_folder,
           "Writes each rank's output into a file of its own in exactly this folder.");
  add(Takes::on_off, "prefix-output", "[=on|off|auto]",
      "Puts host:rank before each line of output (default: on for more than one rank with a "
      "terminal).",
      [this](const Values& values) {
        const bool on = values[0] == "on";
        if (!on && values[0] != "off" && values[0] != "auto") {
          throw Refused{"expected on, off or auto"};
        }
        options_.prefix_output =
            on ? Switch::on : (values[0] == "off" ? Switch::off : Switch::automatic);
      });
  add(Takes::value, "ranks", "RANKS",
      "Shows the output of these ranks only: 0,3 or 0-3 (default: all).",
      [this](const Values& values) { add_ranks(options_.shown_ranks, values[0]); });
  add_switch("verbose v", options_.verbose,
             "Says what is checked and started, and passes on all that mpirun prints.");

  group_ = "Watch";
  add_switch("watch", options_.watch,
             "Shows what each rank is doing, and which rank comes last to collectives, by how much "
             "and in which phase: a table on a terminal, else lines on standard error.");
  add_number("watch-interval", "SECONDS", options_.watch_interval, 1, kMostWatchInterval,
             "How often --watch does so (default: 1 on a terminal, else 10).");
  add(Takes::value, "diagnose", "FOLDER",
      "Reads the flight records in a folder, and says what happened.",
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
  add_action("man", Action::man, "Prints this as a man page: horarun --man | man -l -");
  add(Takes::value, "completion", "bash",
      "Prints the shell's completion: source <(horarun --completion bash)",
      [this](const Values& values) {
        if (values[0] != "bash") throw Refused{"expected bash"};
        options_.action = Action::completion;
      })
      ->configurable(false);
}

void Flags::add_settings() {
  group_ = "Settings of the library";
  for (const SettingDescription& setting : setting_descriptions()) {
    const std::string variable(setting.variable);
    const bool on_off = std::ranges::count(setting.choices, "on") > 0;
    std::string names = flag_of(variable);
    if (variable == "HORA_ID_CAPACITY") names += " cache-capacity";
    if (variable == "HORA_TIMELINE") names += " timeline-filename";
    const std::string value = value_name(setting);
    add(on_off ? Takes::on_off : Takes::value, names + " =" + variable,
        on_off ? "[=" + value + "]" : value,
        fmt::format("{} (default: {})", setting.documentation, setting.default_value),
        [this, variable](const Values& values) {
          set_setting(variable, variable == "HORA_LOG_LEVEL" ? level(values[0]) : values[0]);
        });
  }
}

CLI::Option* Flags::find(std::string_view spelling) {
  if (spelling.empty()) return nullptr;
  std::string name(spelling);
  std::ranges::replace(name, '_', '-');
  return app_.get_option_no_throw((name.size() == 1 ? "-" : "--") + name);
}

std::vector<std::string> Flags::spellings() const {
  std::vector<std::string> result;
  for (const CLI::Option* flag : app_.get_options()) {
    if (flag->get_description().empty()) continue;
    for (const std::string& name : flag->get_snames()) result.push_back("-" + name);
    for (const std::string& name : flag->get_lnames()) result.push_back(with_dashes(name));
  }
  return result;
}

std::string Flags::suggestion(std::string_view spelling, bool dashed) const {
  std::string name(spelling.substr(0, 64));
  std::ranges::replace(name, '_', '-');
  std::string nearest;
  std::size_t least = std::max<std::size_t>(1, name.size() / 3) + 1;
  for (const std::string& with_dashes : spellings()) {
    const std::string known = with_dashes.substr(with_dashes.find_first_not_of('-'));
    if (name.empty() || known.size() == 1 || known.front() != name.front())
      continue;  // few mistype the first letter
    const std::size_t distance = internal::edit_distance(name, known);
    if (distance >= std::min(least, known.size())) continue;
    least = distance;
    nearest = dashed ? with_dashes : known;
  }
  return nearest.empty() ? "" : fmt::format("did you mean {}?", nearest);
}

Takes Flags::taken_by(const CLI::Option& flag) {
  if (flag.get_expected_max() == 0) return Takes::nothing;
  if (flag.get_expected_min() == 0) return Takes::on_off;
  return flag.get_type_size() == 2 ? Takes::pair : Takes::value;
}

void Flags::apply(CLI::Option& flag, const Values& values, const std::string& place) {
  place_ = place;
  flag.clear();
  flag.add_result(values.empty() ? Values{""} : values);  // CLI11 wants a result of each
  try {
    flag.run_callback();
  } catch (const Refused& refused) {
    std::string shown = fmt::format("{}", fmt::join(values, " "));
    // Values of -x and its like, after a `=` or a name, must not be printed.
    if (target_of(flag) == "x") shown = values.front().substr(0, values.front().find('='));
    refuse(place, shown, refused.why);
  }
}

std::string Flags::help() const {
  std::string text = app_.help();
  while (text.find("\n\n\n") != text.npos) text.erase(text.find("\n\n\n"), 1);
  return text;
}

}  // namespace hora::launch
