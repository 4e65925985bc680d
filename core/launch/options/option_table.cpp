#include "core/launch/options/option_table.h"

#include <hora/error.h>
#include <hora/printable.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>

#include "core/base/text.h"
#include "core/launch/command/command.h"
#include "core/launch/options/text.h"

namespace hora::launch {
namespace {

/// `_` counts as `-`.
std::string canonical(std::string_view spelling) {
  std::string name(spelling);
  std::ranges::replace(name, '_', '-');
  return name;
}

std::vector<OptionRow> all_rows() {
  std::vector<OptionRow> all;
  for (const auto rows :
       {job_rows, output_rows, setting_rows, horovod_rows, mpi_rows, torch_rows}) {
    auto part = rows();
    std::ranges::move(part, std::back_inserter(all));
  }
  return all;
}

const std::map<std::string, const OptionRow*, std::less<>>& rows_by_spelling() {
  static const auto rows = [] {
    std::map<std::string, const OptionRow*, std::less<>> result;
    for (const OptionRow& row : option_table()) {
      result.emplace(row.name, &row);
      for (const std::string& spelling : row.spellings) result.emplace(spelling, &row);
    }
    return result;
  }();
  return rows;
}

}  // namespace

std::span<const OptionRow> option_table() {
  static const std::vector<OptionRow> rows = all_rows();
  return rows;
}

std::string_view target_of(const OptionRow& row) {
  return row.sets.empty() ? row.name : row.sets;
}

const OptionRow* find_option(std::string_view spelling) {
  const auto place = rows_by_spelling().find(canonical(spelling));
  return place == rows_by_spelling().end() ? nullptr : place->second;
}

std::string nearest_option(std::string_view spelling) {
  const std::string name = canonical(spelling.substr(0, 64));
  std::string nearest;
  std::size_t least = std::max<std::size_t>(1, name.size() / 3) + 1;
  for (const auto& [known, row] : rows_by_spelling()) {
    if (row->standing != Standing::supported || known.size() == 1) continue;
    if (name.empty() || known.front() != name.front()) continue;  // few mistype the first letter
    const std::size_t distance = internal::edit_distance(name, known);
    if (distance < least && distance < known.size()) {
      least = distance;
      nearest = known;
    }
  }
  return nearest;
}

std::string with_dashes(std::string_view spelling) {
  return (spelling.size() <= 2 ? "-" : "--") + std::string(spelling);
}

std::string shown_spellings(const OptionRow& row) {
  std::string text = with_dashes(row.name);
  for (const std::string& spelling : row.spellings) text += ", " + with_dashes(spelling);
  return text;
}

std::string shown_value(const OptionRow& row) {
  std::string choices;
  for (const std::string& choice : row.choices) choices += (choices.empty() ? "" : "|") + choice;
  if (row.kind == OptionKind::toggle) return "[=" + (choices.empty() ? "on|off" : choices) + "]";
  return choices.empty() ? row.value : choices;
}

std::span<const GroupTitle> group_titles() {
  using enum OptionGroup;
  static constexpr GroupTitle kTitles[] = {
      {job, "Job"},
      {hosts, "Hosts"},
      {nodes, "Nodes that are started one by one"},
      {binding, "Cores"},
      {output, "Output"},
      {watch, "Watch"},
      {settings, "Settings of the library"},
      {about, "About horarun"},
  };
  return kTitles;
}

namespace {

using Unexpected = tl::unexpected<std::string>;

bool is_setting(std::string_view variable) {
  return std::ranges::find(setting_descriptions(), variable, &SettingDescription::variable) !=
         setting_descriptions().end();
}

}  // namespace

Apply into_integer(std::optional<int> LaunchOptions::*field, int least, int most) {
  return [=](LaunchOptions& options, std::string_view value) -> Applied {
    const auto number = parse_integer(value, least, most);
    if (!number) return Unexpected(number.error());
    options.*field = *number;
    return {};
  };
}

Apply into_text(std::string LaunchOptions::*field) {
  return [=](LaunchOptions& options, std::string_view value) -> Applied {
    if (value.empty()) return Unexpected("the value is empty");
    if (value.find('\0') != value.npos) return Unexpected("the value holds a NUL byte");
    options.*field = value;
    return {};
  };
}

Apply into_bool(bool LaunchOptions::*field) {
  return [=](LaunchOptions& options, std::string_view) -> Applied {
    options.*field = true;
    return {};
  };
}

Apply into_switch(Switch LaunchOptions::*field) {
  return [=](LaunchOptions& options, std::string_view value) -> Applied {
    if (value != "on" && value != "off" && value != "auto") {
      return Unexpected("expected on, off or auto");
    }
    options.*field = value == "on" ? Switch::on : value == "off" ? Switch::off : Switch::automatic;
    return {};
  };
}

Apply as_action(Action action) {
  return [=](LaunchOptions& options, std::string_view) -> Applied {
    options.action = action;
    return {};
  };
}

Applied set_setting(LaunchOptions& options, const std::string& variable, std::string_view value) {
  const SettingAssignment assignment{variable, std::string(value)};
  try {
    parse_settings({&assignment, 1});
  } catch (const Error& error) {
    const std::string text = error.what();
    const std::string begin = variable + "=" + in_quotes(value) + ": ";
    const std::size_t place = text.find(begin);
    return Unexpected(place == text.npos ? text : text.substr(place + begin.size()));
  }
  std::erase_if(options.settings,
                [&](const SettingAssignment& s) { return s.variable == variable; });
  options.settings.push_back(assignment);
  return {};
}

Apply into_setting(std::string variable, Convert convert) {
  return [=](LaunchOptions& options, std::string_view value) -> Applied {
    if (!convert) return set_setting(options, variable, value);
    const auto converted = convert(value);
    if (!converted) return Unexpected(converted.error());
    return set_setting(options, variable, *converted);
  };
}

Applied forward_variable(LaunchOptions& options, std::string_view assignment) {
  const std::size_t equals = assignment.find('=');
  const std::string name(assignment.substr(0, equals));
  if (!is_variable_name(name)) {
    return Unexpected("expected the name of a variable: letters, digits and underscores");
  }
  if (name.starts_with("HORARUN_")) {
    return Unexpected("HORARUN_* is horarun's own, which ranks get from it");
  }
  if (equals == assignment.npos) {
    std::erase_if(options.variables, [&](const ForwardedVariable& v) { return v.name == name; });
    options.variables.push_back({name, std::nullopt});
    return {};
  }
  const std::string_view value = assignment.substr(equals + 1);
  if (is_setting(name)) {
    const auto applied = set_setting(options, name, value);
    return applied ? applied : Unexpected("the value is not allowed; see --help for " + name);
  }
  if (value.find('\0') != value.npos) return Unexpected("the value holds a NUL byte");
  std::erase_if(options.variables, [&](const ForwardedVariable& v) { return v.name == name; });
  options.variables.push_back({name, std::string(value)});
  return {};
}

OptionRow ignored(std::string name, std::vector<std::string> spellings, std::string value,
                  std::string notice) {
  OptionRow row{std::move(name), std::move(spellings), std::move(value), std::move(notice)};
  row.kind = row.value.empty() ? OptionKind::flag : OptionKind::value;
  row.standing = Standing::ignored;
  return row;
}

OptionRow refused(std::string name, std::vector<std::string> spellings, std::string value,
                  std::string advice) {
  OptionRow row =
      ignored(std::move(name), std::move(spellings), std::move(value), std::move(advice));
  row.standing = Standing::refused;
  return row;
}

OptionRow translated(std::string name, std::vector<std::string> spellings, std::string value,
                     std::string help, std::string sets, Apply apply) {
  OptionRow row = ignored(std::move(name), std::move(spellings), std::move(value), std::move(help));
  row.standing = Standing::supported;
  row.sets = std::move(sets);
  row.apply = std::move(apply);
  return row;
}

}  // namespace hora::launch
