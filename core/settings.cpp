#include "core/base/settings.h"

#include <hora/error.h>
#include <hora/printable.h>
#include <hora/settings.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <set>

#include "core/base/text.h"

namespace hora {
using namespace internal;
namespace {

using setting_table::kRows;
using setting_table::Row;
using setting_table::Suffix;

std::string format_number(std::int64_t value, std::span<const Suffix> suffixes) {
  if (value == 0) return "0";
  for (const Suffix& suffix : suffixes) {
    if (value % suffix.factor == 0) {
      return std::to_string(value / suffix.factor) + std::string(suffix.name);
    }
  }
  return std::to_string(value);
}

std::string format(const Row& row, const Settings& settings) {
  if (const auto text = row.text.field) {
    return (settings.*text).empty() ? "off" : settings.*text;
  }
  const std::int64_t value = row.field.get(settings);
  if (row.choices.empty()) return format_number(value, row.unit->suffixes);
  if (value < 0 || static_cast<std::size_t>(value) >= row.choices.size()) {
    throw Error(ErrorCode::invalid_setting,
                std::string(row.variable) + ": there is no choice " + std::to_string(value));
  }
  return std::string(row.choices[static_cast<std::size_t>(value)]);
}

std::string allowed(const Row& row) {
  if (row.text.field) return "off, or " + std::string(row.text.allowed);
  if (row.choices.empty()) {
    const auto bound = [&](std::int64_t value) { return format_number(value, row.unit->suffixes); };
    return std::string(row.unit->name) + (row.or_zero ? ", 0 or" : "") + " from " +
           bound(row.least) + " to " + bound(row.most) + std::string(row.unit->note);
  }
  std::string text(row.choices.front());
  for (std::size_t i = 1; i < row.choices.size(); ++i) {
    text.append(i + 1 == row.choices.size() ? " or " : ", ").append(row.choices[i]);
  }
  return text;
}

[[noreturn]] void refuse(const Row& row, std::string_view value, const std::string& reason) {
  throw Error(ErrorCode::invalid_setting, std::string(row.variable) + "=" + in_quotes(value) +
                                              ": " + reason + "; allowed: " + allowed(row));
}

std::int64_t parse_number(const Row& row, std::string_view text) {
  if (text.starts_with('-')) refuse(row, text, "the value is negative");
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::invalid_argument) refuse(row, text, "the value is not a number");
  const std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (rest.starts_with('.')) refuse(row, text, "the value is not a whole number");
  const auto suffix = std::ranges::find(row.unit->suffixes, rest, &Suffix::name);
  if (suffix == row.unit->suffixes.end()) {
    refuse(row, text, "unknown suffix " + in_quotes(rest));
  }
  if (error == std::errc::result_out_of_range || number > row.most / suffix->factor) {
    refuse(row, text, "the value is too large");
  }
  number *= suffix->factor;
  const bool is_zero = row.or_zero && number == 0;
  if (number < row.least && !is_zero) refuse(row, text, "the value is too small");
  return number;
}

std::int64_t parse_value(const Row& row, std::string_view text) {
  if (row.choices.empty()) return parse_number(row, text);
  const auto choice = std::ranges::find(row.choices, text);
  if (choice == row.choices.end()) refuse(row, text, "unknown choice");
  return choice - row.choices.begin();
}

std::string parse_text(const Row& row, std::string_view text) {
  if (text == "off") return {};
  const std::string reason = row.text.wrong(text);
  if (!reason.empty()) refuse(row, text, reason);
  return std::string(text);
}

void set(const Row& row, std::string_view text, Settings& settings) {
  if (text.empty()) refuse(row, text, "the value is empty (unset the variable for the default)");
  if (row.text.field) {
    settings.*row.text.field = parse_text(row, text);
  } else {
    row.field.set(settings, parse_value(row, text));
  }
}

[[noreturn]] void refuse_unknown(const SettingAssignment& assignment) {
  const auto distance = [&](const Row& row) {
    return edit_distance(assignment.variable, row.variable);
  };
  const Row& nearest = *std::ranges::min_element(kRows, {}, distance);
  std::string known;
  for (const Row& row : kRows) known.append(" ").append(row.variable);
  throw Error(ErrorCode::invalid_setting,
              assignment.variable + "=" + in_quotes(assignment.value) +
                  ": hora has no setting of this name; did you mean " +
                  std::string(nearest.variable) +
                  "? If it is not meant for hora, HORA_ALLOW_UNKNOWN=" + assignment.variable +
                  " lets it pass. Allowed:" + known);
}

}  // namespace

std::span<const SettingDescription> setting_descriptions() {
  struct Table {
    std::vector<std::string> allowed_texts;
    std::vector<SettingDescription> descriptions;
  };
  static const Table table = [] {
    Table result;
    for (const Row& row : kRows) result.allowed_texts.push_back(allowed(row));
    for (std::size_t i = 0; i < std::size(kRows); ++i) {
      result.descriptions.push_back({kRows[i].variable, result.allowed_texts[i],
                                     kRows[i].documentation, format(kRows[i], Settings{}),
                                     kRows[i].choices});
    }
    return result;
  }();
  return table.descriptions;
}

std::vector<SettingAssignment> setting_assignments(std::span<const char* const> environment) {
  std::vector<SettingAssignment> assignments;
  for (const char* const entry : environment) {
    const std::string_view text(entry == nullptr ? "" : entry);
    if (!text.starts_with("HORA_")) continue;
    const std::size_t equals = std::min(text.find('='), text.size());
    const std::size_t value = std::min(equals + 1, text.size());
    assignments.push_back({std::string(text.substr(0, equals)), std::string(text.substr(value))});
  }
  return assignments;
}

Settings parse_settings(std::span<const SettingAssignment> assignments) {
  Settings settings;
  std::set<std::string_view> seen;
  for (const SettingAssignment& assignment : assignments) {
    const auto row = std::ranges::find(kRows, assignment.variable, &Row::variable);
    if (row == std::end(kRows)) {
      if (is_foreign(assignment.variable, allowed_unknown(assignments))) continue;
      refuse_unknown(assignment);
    }
    if (!seen.insert(assignment.variable).second) {
      refuse(*row, assignment.value, "the variable is set more than once");
    }
    set(*row, assignment.value, settings);
  }
  return settings;
}

std::vector<SettingAssignment> to_assignments(const Settings& settings) {
  std::vector<SettingAssignment> assignments;
  for (const Row& row : kRows) {
    assignments.push_back({std::string(row.variable), format(row, settings)});
  }
  return assignments;
}

std::vector<SettingAssignment> changed_assignments(const Settings& settings) {
  const std::vector<SettingAssignment> defaults = to_assignments(Settings{});
  std::vector<SettingAssignment> changed = to_assignments(settings);
  std::erase_if(changed, [&](const SettingAssignment& assignment) {
    return std::ranges::find(defaults, assignment) != defaults.end();
  });
  return changed;
}

}  // namespace hora
