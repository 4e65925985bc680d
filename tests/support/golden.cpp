#include "tests/support/golden.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "tests/support/read_file.h"

namespace hora::internal::test {
namespace {

constexpr std::string_view heading = "=== ";

std::filesystem::path path_of(const std::string& file) {
  return std::filesystem::path(HORA_TESTS_FOLDER) / file;
}

bool is_update() {
  return std::getenv("TEST_UPDATE_GOLDEN") != nullptr;
}

std::string with_line_end(const std::string& text) {
  return text.ends_with('\n') ? text : text + "\n";
}

/// The sections of a golden file, each with its line ends.
std::map<std::string, std::string> read_sections(const std::filesystem::path& path) {
  std::map<std::string, std::string> sections;
  std::string name;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(heading)) {
      name = line.substr(heading.size());
      sections[name];
    } else {
      sections[name] += line + "\n";
    }
  }
  return sections;
}

}  // namespace

void expect_golden(const std::string& file, const std::string& name, const std::string& text) {
  const std::filesystem::path path = path_of(file);
  const std::string lines = with_line_end(text);
  std::map<std::string, std::string> sections = read_sections(path);
  if (!is_update()) {
    ASSERT_TRUE(sections.contains(name)) << path << " has no section " << name << " for:\n"
                                         << lines;
    EXPECT_EQ(lines, sections.at(name)) << path << ", section " << name;
    return;
  }
  sections[name] = lines;
  std::ofstream written(path);
  for (const auto& [each, its_lines] : sections) written << heading << each << "\n" << its_lines;
}

int expect_golden_outcomes(const std::string& file,
                           const std::function<std::string(const std::string&)>& outcome_of) {
  const std::string golden = read_file(path_of(file));
  std::string actual;
  int count = 0;
  std::istringstream lines(golden);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("//")) actual += line + "\n";
    if (!line.starts_with("$ ")) continue;
    actual += line + "\n" + with_line_end(outcome_of(line.substr(2)));
    ++count;
  }
  if (is_update()) std::ofstream(path_of(file)) << actual;
  EXPECT_EQ(actual, golden) << path_of(file);
  return count;
}

}  // namespace hora::internal::test
