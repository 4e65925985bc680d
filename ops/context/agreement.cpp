#include "ops/context/agreement.h"

#include <algorithm>
#include <utility>

#include "core/base/settings.h"

namespace hora::internal {
namespace {

/// The value that parse_settings has read for one variable, in canonical form.
std::string canonical(const Settings& settings, const std::string& variable) {
  for (const SettingAssignment& assignment : to_assignments(settings)) {
    if (assignment.variable == variable) return assignment.value;
  }
  return {};
}

/// One assignment's value in canonical form; empty where it is invalid.
std::string understood(const SettingAssignment& assignment) {
  try {
    return canonical(parse_settings(std::span(&assignment, 1)), assignment.variable);
  } catch (const Error&) {
    return {};
  }
}

std::string to_lines(std::span<const SettingAssignment> assignments) {
  std::string lines;
  for (const auto& a : assignments) lines += a.variable + "=" + a.value + "\n";
  return lines;
}

std::vector<SettingAssignment> from_lines(const std::string& lines) {
  std::vector<SettingAssignment> assignments;
  for (std::size_t begin = 0; begin < lines.size();) {
    const std::size_t end = lines.find('\n', begin);
    const std::string line = lines.substr(begin, end - begin);
    const std::size_t equals = line.find('=');
    assignments.push_back({line.substr(0, equals), line.substr(equals + 1)});
    begin = end == std::string::npos ? lines.size() : end + 1;
  }
  return assignments;
}

/// "[0 2] [1]", in the order given; "none".
std::string sets_text(const std::vector<std::vector<int>>& sets) {
  if (sets.empty()) return "none";
  std::string text;
  for (const auto& ranks : sets) {
    text += text.empty() ? "[" : " [";
    for (const int rank : ranks) text += (text.back() == '[' ? "" : " ") + std::to_string(rank);
    text += "]";
  }
  return text;
}

}  // namespace

std::string disagreement(std::span<const SettingAssignment> own, int rank,
                         std::span<const SettingAssignment> of_rank_0) {
  const Settings in_force = parse_settings(of_rank_0);
  const Settings wanted = parse_settings(own);
  for (const SettingAssignment& assignment : own) {
    const std::string here = canonical(wanted, assignment.variable);
    const std::string there = canonical(in_force, assignment.variable);
    if (here != there) {
      return assignment.variable + " is " + here + " on rank " + std::to_string(rank) + " but " +
             there +
             " on rank 0, whose settings hold for all: set it on rank 0, or alike everywhere";
    }
  }
  return {};
}

void throw_together(Bootstrap& world, const std::string& text, ErrorCode code) {
  const auto texts = gather_texts(world, text);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (!texts[rank].empty()) throw Error(code, texts[rank], static_cast<int>(rank));
  }
}

ProcessSettings settings_of_process(std::vector<SettingAssignment> of_environment,
                                    const Settings& given) {
  ProcessSettings result{.assignments = std::move(of_environment)};
  std::vector<SettingAssignment> changed;
  try {
    changed = changed_assignments(given);
    parse_settings(changed);
  } catch (const Error& error) {
    result.wrong = std::string("InitOptions::settings: ") + error.what();
    return result;
  }
  for (SettingAssignment& own : changed) {
    const auto same = [&](const SettingAssignment& other) {
      return other.variable == own.variable;
    };
    const auto set = std::ranges::find_if(result.assignments, same);
    if (set == result.assignments.end()) {
      result.assignments.push_back(std::move(own));
      continue;
    }
    const std::string theirs = understood(*set);
    if (theirs == own.value || theirs.empty() || !result.conflict.empty()) continue;
    result.conflict = own.variable + " is " + theirs + " in the environment, but " + own.value +
                      " in InitOptions::settings: set it in one of them, or alike in both";
  }
  return result;
}

Settings agree_on_settings(Bootstrap& world, const ProcessSettings& of_process) {
  const std::string allowed = broadcast_text(world, allowed_unknown(of_process.assignments), 0);
  const auto own = without_foreign(of_process.assignments, allowed);
  const std::string on_rank = "rank " + std::to_string(world.rank()) + ": ";
  std::string problem = of_process.wrong.empty() ? "" : on_rank + of_process.wrong;
  try {
    parse_settings(own);
  } catch (const Error& error) {
    if (problem.empty()) problem = on_rank + error.what();
  }
  throw_together(world, problem, ErrorCode::invalid_setting);
  throw_together(world, of_process.conflict.empty() ? "" : on_rank + of_process.conflict,
                 ErrorCode::invalid_argument);
  const auto of_rank_0 = from_lines(broadcast_text(world, to_lines(own), 0));
  throw_together(world, disagreement(own, world.rank(), of_rank_0), ErrorCode::invalid_setting);
  return parse_settings(of_rank_0);
}

std::string sets_disagreement(const std::vector<std::string>& by_rank) {
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
    if (by_rank[rank] == by_rank.front()) continue;
    return "hora::init: InitOptions::process_sets differ: rank 0 has " + by_rank.front() +
           ", rank " + std::to_string(rank) + " has " + by_rank[rank] +
           ": give every rank the same lists, in one order";
  }
  return {};
}

void agree_on_sets(Bootstrap& world, const std::vector<std::vector<int>>& sets) {
  const std::string problem = sets_disagreement(gather_texts(world, sets_text(sets)));
  if (!problem.empty()) throw Error(ErrorCode::mismatch, problem);
}

}  // namespace hora::internal
