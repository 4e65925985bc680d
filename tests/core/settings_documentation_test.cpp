#include <gtest/gtest.h>
#include <hora/settings.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <sstream>
#include <string>

#include "tests/support/read_file.h"

namespace hora::internal {
namespace {

/// Without the suffixes of numbers, which stand once above the list.
std::string line_of(const SettingDescription& setting) {
  const std::string allowed(setting.allowed);
  return "- `" + std::string(setting.variable) + "` (`" + setting.default_value + "`; " +
         allowed.substr(0, allowed.find(", optionally with a suffix")) +
         "): " + std::string(setting.documentation) + "\n";
}

TEST(SettingsDocument, ListsEverySettingAsTheTableHasIt) {
  const std::string text = test::read_file(HORA_SETTINGS_DOCUMENT);
  ASSERT_GT(text.size(), 1000u) << HORA_SETTINGS_DOCUMENT;
  for (const SettingDescription& setting : setting_descriptions()) {
    EXPECT_NE(text.find(line_of(setting)), std::string::npos)
        << HORA_SETTINGS_DOCUMENT << " needs this line:\n"
        << line_of(setting);
  }
}

/// The variable of a field that is declared as "type name = default;" or "type name{default};".
std::string variable_of(const std::string& declaration) {
  const std::size_t end = declaration.find_last_not_of(' ', declaration.find_first_of("={") - 1);
  const std::size_t begin = declaration.find_last_of(' ', end) + 1;
  std::string variable = "HORA_" + declaration.substr(begin, end + 1 - begin);
  std::transform(variable.begin(), variable.end(), variable.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return variable;
}

/// By variable, the first paragraph of the comment above each field of `Settings`, in one line.
std::map<std::string, std::string> field_comments(const std::string& header) {
  const std::string head = "\nstruct Settings {\n";
  std::stringstream lines(header.substr(header.find(head) + head.size()));
  std::map<std::string, std::string> comments;
  std::string comment;
  bool ended = false;
  for (std::string line; std::getline(lines, line) && line.find("operator==") == line.npos;) {
    if (line.starts_with("  /// ")) {
      if (!ended) comment += (comment.empty() ? "" : " ") + line.substr(6);
    } else if (line == "  ///") {
      ended = true;
    } else if (!line.empty()) {
      comments[variable_of(line)] = comment;
      comment.clear();
      ended = false;
    }
  }
  return comments;
}

TEST(SettingsHeader, SaysOfEveryFieldWhatTheTableSays) {
  const auto comments = field_comments(test::read_file(HORA_SETTINGS_HEADER));
  EXPECT_EQ(comments.size(), setting_descriptions().size()) << HORA_SETTINGS_HEADER;
  for (const SettingDescription& setting : setting_descriptions()) {
    const auto comment = comments.find(std::string(setting.variable));
    ASSERT_NE(comment, comments.end()) << "settings.h has no field for " << setting.variable;
    EXPECT_EQ(comment->second, setting.documentation)
        << "the comment of this field in settings.h must be its row's in core/setting_table.h: "
        << setting.variable;
  }
}

TEST(SettingsHeader, AFieldWithoutACommentHasAnEmptyOne) {
  const auto comments = field_comments(
      "\nstruct Settings {\n  /// One,\n  /// two.\n  ///\n  /// Three.\n  int a_b = 0;\n"
      "  std::chrono::milliseconds c{300};\n\n  bool operator==(const Settings&) const;\n};\n");
  EXPECT_EQ(comments,
            (std::map<std::string, std::string>{{"HORA_A_B", "One, two."}, {"HORA_C", ""}}));
}

}  // namespace
}  // namespace hora::internal
