#include "core/launch/options/command_line.h"

#include <algorithm>
#include <set>

#include "core/launch/options/arguments.h"
#include "core/launch/options/complete.h"
#include "core/launch/options/config_file.h"
#include "core/launch/options/read_file.h"

namespace hora::launch {
namespace {

using Unexpected = tl::unexpected<UsageError>;

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
  return Unexpected({occurrence.place, shown_value(occurrence), applied.error()});
}

tl::expected<std::vector<Occurrence>, UsageError> read_config(const std::string& path) {
  const auto text = read_input_file(path, kLargestConfigFile);
  if (!text) return Unexpected({"--config-file", path, text.error()});
  return parse_config(*text, path);
}

}  // namespace

tl::expected<LaunchOptions, UsageError> parse_command_line(
    std::span<const std::string> arguments, std::span<const char* const> environment) {
  auto parsed = parse_arguments(arguments);
  if (!parsed) return Unexpected(parsed.error());
  std::vector<Occurrence>& given = parsed->options;

  LaunchOptions options;
  const auto about =
      std::ranges::find(given, OptionGroup::about, [](const auto& o) { return o.row->group; });
  if (about != given.end()) {
    const auto applied = apply(*about, options);
    if (!applied) return Unexpected(applied.error());
    for (const Occurrence& occurrence : given) {  // --check-build looks at it, too
      if (occurrence.row->name != "mpirun") continue;
      if (const auto set = apply(occurrence, options); !set) return Unexpected(set.error());
    }
    return options;
  }

  std::vector<Occurrence> all;
  const auto config = std::find_if(given.rbegin(), given.rend(), [](const Occurrence& occurrence) {
    return occurrence.row->name == "config-file";
  });
  if (config != given.rend()) {
    auto of_file = read_config(config->value);
    if (!of_file) return Unexpected(of_file.error());
    all = without_overridden(std::move(*of_file), given);
  }
  all.insert(all.end(), given.begin(), given.end());
  for (const Occurrence& occurrence : all) {
    const auto applied = apply(occurrence, options);
    if (!applied) return Unexpected(applied.error());
  }
  options.program = std::move(parsed->program);
  if (std::ranges::find(options.program, ":") != options.program.end()) {
    options.notices.emplace_back(
        "the argument \":\" and what follows go to the program: a job has one program");
  }
  if (const auto completed = complete(options, environment); !completed) {
    return Unexpected(completed.error());
  }
  return options;
}

}  // namespace hora::launch
