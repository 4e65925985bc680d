#include "core/launch/options/option_table.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>

#include "core/edit_distance.h"

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
  std::size_t least = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const auto& [known, row] : rows_by_spelling()) {
    if (row->standing != Standing::supported || known.size() == 1) continue;
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

}  // namespace hora::launch
