#include "core/launch/control/process_tree.h"

#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <system_error>

namespace hora::launch {
namespace {

std::optional<pid_t> number(std::string_view text) {
  pid_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::vector<ProcessState> all_processes() {
  std::vector<ProcessState> result;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    if (!number(entry.path().filename().native())) continue;
    std::ifstream file(entry.path() / "stat");
    // An iterator over the file would throw where the process ends meanwhile.
    std::ostringstream text;
    text << file.rdbuf();
    if (auto state = parse_process_state(text.str())) result.push_back(std::move(*state));
  }
  return result;
}

}  // namespace

std::optional<ProcessState> parse_process_state(std::string_view text) {
  // The name stands in parentheses and may have any character, parentheses included.
  const auto open = text.find(" (");
  const auto close = text.rfind(") ");
  if (open == text.npos || close == text.npos || close < open + 2) return std::nullopt;
  const auto process = number(text.substr(0, open));
  const std::string_view rest = text.substr(close + 2);
  if (!process || rest.size() < 3 || rest[1] != ' ') return std::nullopt;
  const auto parent = number(rest.substr(2, rest.find(' ', 2) - 2));
  if (!parent) return std::nullopt;
  return ProcessState{*process, *parent, rest[0],
                      std::string(text.substr(open + 2, close - open - 2))};
}

std::vector<ProcessState> descendants_of(pid_t ancestor, const std::vector<ProcessState>& all) {
  std::multimap<pid_t, const ProcessState*> children;
  for (const ProcessState& process : all) children.emplace(process.parent, &process);
  std::vector<ProcessState> result;
  std::vector<pid_t> parents{ancestor};
  for (std::size_t i = 0; i < parents.size(); ++i) {
    const auto [first, last] = children.equal_range(parents[i]);
    for (auto child = first; child != last; ++child) {
      if (child->second->process == ancestor) continue;
      parents.push_back(child->second->process);
      if (child->second->state != 'Z') result.push_back(*child->second);
    }
  }
  return result;
}

std::vector<ProcessState> descendants_of(pid_t ancestor) {
  return descendants_of(ancestor, all_processes());
}

}  // namespace hora::launch
