/// Command lines, parsed; and files for them.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "core/launch/options/options.h"
#include "tests/support/temporary_folder.h"

namespace hora::launch::test {

using Line = std::vector<std::string>;

inline tl::expected<LaunchOptions, std::string> parse(const Line& line, const Line& environment) {
  std::vector<const char*> entries;
  for (const std::string& entry : environment) entries.push_back(entry.c_str());
  return parse_command_line(line, entries);
}

/// The options, else a failure.
inline LaunchOptions parsed(const Line& line, const Line& environment = {}) {
  const auto options = parse(line, environment);
  if (options) return *options;
  ADD_FAILURE() << options.error() << "\nin " << testing::PrintToString(line);
  return {};
}

/// The message of the error, else a failure.
inline std::string refusal(const Line& line, const Line& environment = {}) {
  const auto options = parse(line, environment);
  if (!options) return options.error();
  ADD_FAILURE() << "accepted: " << testing::PrintToString(line);
  return {};
}

/// The path of a new file with this text.
inline std::string written(const internal::test::TemporaryFolder& folder, const std::string& name,
                           std::string_view text) {
  std::ofstream(folder.file(name)) << text;
  return folder.file(name);
}

}  // namespace hora::launch::test
