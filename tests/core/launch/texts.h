/// For tests of the launcher: wording in texts.txt, files and scripts, command lines, parsed.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/launch/options/options.h"
#include "tests/support/golden.h"
#include "tests/support/temporary_folder.h"

namespace hora::launch::test {

/// Expects `text` to be section `name` of texts.txt.
inline void expect_texts(const std::string& name, const std::string& text) {
  internal::test::expect_golden("core/launch/texts.txt", name, text);
}

/// `text` with `word` in place of what differs from run to run.
inline std::string with(std::string text, const std::string& differs, std::string_view word) {
  for (std::size_t at = 0; (at = text.find(differs, at)) != text.npos; at += word.size()) {
    text.replace(at, differs.size(), word);
  }
  return text;
}

/// The error, which must be there.
template <class T>
std::string error_of(const tl::expected<T, std::string>& result) {
  EXPECT_FALSE(result);
  return result ? "no error" : result.error();
}

template <class T>
void set(T&) {}
template <class T, class Base, class Field, class Value, class... More>
void set(T& object, Field Base::*field, const Value& value, const More&... more) {
  object.*field = value;
  set(object, more...);
}
/// made<RankStopped>(&RankStopped::rank, 3): of all other fields the default.
template <class T, class... Fields>
T made(const Fields&... fields) {
  T object;
  set(object, fields...);
  return object;
}

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
  SCOPED_TRACE(testing::PrintToString(line));
  return error_of(parse(line, environment));
}

/// The path of a new file with this text.
inline std::string written(const internal::test::TemporaryFolder& folder, const std::string& name,
                           std::string_view text) {
  std::ofstream(folder.file(name)) << text;
  return folder.file(name);
}

/// The path of a new program of the shell.
inline std::string script(const internal::test::TemporaryFolder& folder, const std::string& name,
                          const std::string& text) {
  const std::string path = written(folder, name, "#!/bin/sh\n" + text + "\n");
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

}  // namespace hora::launch::test
