// Rows of the option table: output, what is said of a job, and what horarun prints of itself. And
// one row for each setting of the library.
#include <algorithm>

#include "core/launch/guard/guard.h"
#include "core/launch/options/option_table.h"
#include "core/launch/options/text.h"

namespace hora::launch {
namespace {

using Unexpected = tl::unexpected<std::string>;

/// "0,3,8-11". Ranges that overlap are joined before they become ranks: their number, not their
/// lengths, is what a text can make large.
Applied add_shown_ranks(LaunchOptions& options, std::string_view list) {
  std::vector<std::pair<int, int>> ranges;
  for (const int rank : options.shown_ranks) ranges.emplace_back(rank, rank);
  for (const std::string_view item : split(list, ',')) {
    const std::string_view range = trimmed(item);
    const std::size_t dash = range.find('-');
    const auto first = parse_integer(range.substr(0, dash), 0, kMostRanks - 1);
    const auto last =
        dash == range.npos ? first : parse_integer(range.substr(dash + 1), 0, kMostRanks - 1);
    if (!first || !last || *last < *first) {
      return Unexpected("expected ranks with commas between them, such as 0,3 or 0-3,8");
    }
    ranges.emplace_back(*first, *last);
  }
  std::ranges::sort(ranges);
  options.shown_ranks.clear();
  int next = 0;
  for (const auto& [first, last] : ranges) {
    for (next = std::max(next, first); next <= last; ++next) options.shown_ranks.push_back(next);
  }
  return {};
}

Applied set_completion(LaunchOptions& options, std::string_view shell) {
  if (shell != "bash") return Unexpected("expected bash");
  options.action = Action::completion;
  return {};
}

Applied set_diagnose(LaunchOptions& options, std::string_view folder) {
  options.action = Action::diagnose;
  return into_text(&LaunchOptions::diagnose_folder)(options, folder);
}

/// "HORA_FUSION_THRESHOLD" -> "fusion-threshold".
std::string flag_of(std::string_view variable) {
  std::string flag(variable.substr(std::string_view("HORA_").size()));
  for (char& c : flag) {
    if (c == '_') {
      c = '-';
    } else if (c >= 'A' && c <= 'Z') {
      c = static_cast<char>(c - 'A' + 'a');
    }
  }
  return flag;
}

/// The first word of what is allowed, in capitals, for --help: "BYTES", "SECONDS".
std::string value_name(const SettingDescription& setting) {
  if (!setting.choices.empty()) return "CHOICE";
  if (setting.allowed.starts_with("bytes")) return "BYTES";
  if (setting.allowed.starts_with("seconds")) return "SECONDS";
  if (setting.allowed.starts_with("microseconds")) return "MICROSECONDS";
  if (setting.allowed.starts_with("a whole number")) return "N";
  return "TEXT";
}

/// Horovod's names of levels: TRACE, DEBUG, INFO, WARNING, ERROR, FATAL.
tl::expected<std::string, std::string> level(std::string_view text) {
  std::string name(text);
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (name == "trace") return "debug";
  if (name == "fatal" || name == "critical") return "error";
  return name;
}

std::vector<std::string> spellings_elsewhere(std::string_view variable) {
  if (variable == "HORA_ID_CAPACITY") return {"cache-capacity"};
  if (variable == "HORA_TIMELINE") return {"timeline-filename"};
  return {};
}

}  // namespace

std::vector<OptionRow> output_rows() {
  using enum OptionGroup;
  using enum OptionKind;
  return {
      {.name = "output-filename",
       .value = "FOLDER",
       .help = "Writes each rank's output into a file of its own in exactly this folder.",
       .kind = value,
       .group = output,
       .apply = into_text(&LaunchOptions::output_folder),
       .completes = Completes::folders},
      {.name = "prefix-output",
       .help = "Puts host:rank before each line of output.",
       .kind = toggle,
       .group = output,
       .apply = into_switch(&LaunchOptions::prefix_output),
       .default_value = "on for more than one rank with a terminal",
       .choices = {"on", "off", "auto"},
       .sets = "prefix-output"},
      {.name = "ranks",
       .value = "RANKS",
       .help = "Shows the output of these ranks only: 0,3 or 0-3.",
       .kind = value,
       .group = output,
       .apply = add_shown_ranks,
       .default_value = "all",
       .listing = Listing::commas},
      {.name = "verbose",
       .spellings = {"v"},
       .help = "Says what is checked and started, and passes on all that mpirun prints.",
       .kind = flag,
       .group = output,
       .apply = into_bool(&LaunchOptions::verbose)},
      {.name = "watch",
       .help =
           "Shows what each rank is doing, and which rank comes last to collectives, by how much "
           "and in which phase: a table on a terminal, else lines on standard error.",
       .kind = flag,
       .group = watch,
       .apply = into_bool(&LaunchOptions::watch)},
      {.name = "watch-interval",
       .value = "SECONDS",
       .help = "How often --watch does so.",
       .kind = value,
       .group = watch,
       .apply = into_integer(&LaunchOptions::watch_interval, 1, kMostWatchInterval),
       .default_value = "1 on a terminal, else 10"},
      {.name = "diagnose",
       .value = "FOLDER",
       .help = "Reads the flight records in a folder, and says what happened.",
       .kind = value,
       .group = watch,
       .apply = set_diagnose,
       .completes = Completes::folders,
       .on_command_line_only = true},
      {.name = "help",
       .spellings = {"h"},
       .help = "Prints this.",
       .kind = flag,
       .group = about,
       .apply = as_action(Action::help),
       .on_command_line_only = true},
      {.name = "version",
       .spellings = {"V"},
       .help = "Prints the version, as -v alone does.",
       .kind = flag,
       .group = about,
       .apply = as_action(Action::version),
       .on_command_line_only = true},
      {.name = "check-build",
       .spellings = {"cb"},
       .help = "Says which MPI, CUDA, NCCL and LibTorch there are, and what is missing.",
       .kind = flag,
       .group = about,
       .apply = as_action(Action::check_build),
       .on_command_line_only = true},
      {.name = "man",
       .help = "Prints the man page: horarun --man | man -l -",
       .kind = flag,
       .group = about,
       .apply = as_action(Action::man),
       .on_command_line_only = true},
      {.name = "completion",
       .value = "SHELL",
       .help = "Prints the shell's completion: source <(horarun --completion bash)",
       .kind = value,
       .group = about,
       .apply = set_completion,
       .choices = {"bash"},
       .on_command_line_only = true},
  };
}

std::vector<OptionRow> setting_rows() {
  std::vector<OptionRow> rows;
  for (const SettingDescription& setting : setting_descriptions()) {
    const std::string variable(setting.variable);
    const bool is_switch = std::ranges::count(setting.choices, "on") > 0;
    OptionRow row{.name = flag_of(variable),
                  .kind = is_switch ? OptionKind::toggle : OptionKind::value};
    row.spellings = spellings_elsewhere(variable);
    if (!is_switch) row.value = value_name(setting);
    row.help = setting.documentation;
    row.group = OptionGroup::settings;
    row.apply = into_setting(variable, variable == "HORA_LOG_LEVEL" ? Convert(level) : Convert());
    row.default_value = setting.default_value;
    row.choices.assign(setting.choices.begin(), setting.choices.end());
    row.completes = variable == "HORA_TIMELINE" ? Completes::files : Completes::nothing;
    row.sets = variable;
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace hora::launch
