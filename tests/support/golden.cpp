#include "tests/support/golden.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

namespace hora::internal::test {
namespace {

constexpr std::string_view heading = "=== ";

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
  const std::filesystem::path path = std::filesystem::path(HORA_TESTS_FOLDER) / file;
  const std::string lines = text.ends_with('\n') ? text : text + "\n";
  std::map<std::string, std::string> sections = read_sections(path);
  if (std::getenv("TEST_UPDATE_GOLDEN") == nullptr) {
    ASSERT_TRUE(sections.contains(name)) << path << " has no section " << name << " for:\n"
                                         << lines;
    EXPECT_EQ(lines, sections.at(name)) << path << ", section " << name;
    return;
  }
  sections[name] = lines;
  std::ofstream written(path);
  for (const auto& [each, its_lines] : sections) written << heading << each << "\n" << its_lines;
}

}  // namespace hora::internal::test
