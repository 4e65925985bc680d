#include "core/launch/program/wait_limits.h"

#include <hora/error.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

namespace hora::launch {
namespace {

const SettingAssignment* find(std::span<const SettingAssignment> assignments,
                              std::string_view variable) {
  const auto found = std::ranges::find(assignments, variable, &SettingAssignment::variable);
  return found == assignments.end() ? nullptr : &*found;
}

}  // namespace

WaitLimits wait_limits(std::span<const SettingAssignment> flags,
                       std::span<const SettingAssignment> environment) {
  constexpr std::array<std::string_view, 3> kNeeded = {"HORA_STALL_WARNING", "HORA_INIT_TIMEOUT",
                                                       "HORA_TIMEOUT"};
  Settings settings;
  for (const std::string_view variable : kNeeded) {
    const SettingAssignment* assignment = find(flags, variable);
    if (assignment == nullptr) assignment = find(environment, variable);
    if (assignment == nullptr) continue;
    try {
      const Settings read = parse_settings(std::span(assignment, 1));
      if (variable == kNeeded[0]) settings.stall_warning = read.stall_warning;
      if (variable == kNeeded[1]) settings.init_timeout = read.init_timeout;
      if (variable == kNeeded[2]) settings.timeout = read.timeout;
    } catch (const Error&) {  // hora::init says what is wrong
    }
  }
  return {settings.stall_warning, settings.init_timeout, settings.timeout};
}

}  // namespace hora::launch
