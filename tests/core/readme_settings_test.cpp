#include <gtest/gtest.h>
#include <hora/settings.h>

#include <fstream>
#include <sstream>
#include <string>

namespace hora {
namespace {

std::string row_of(const SettingDescription& setting) {
  return "| `" + std::string(setting.variable) + "` | `" + setting.default_value + "` | " +
         std::string(setting.documentation) + " Allowed: " + std::string(setting.allowed) + ". |";
}

/// The README prints the same texts as the program does.
TEST(Readme, ListsEverySettingAsTheTableHasIt) {
  std::ifstream file(HORA_README);
  std::stringstream text;
  text << file.rdbuf();
  ASSERT_GT(text.str().size(), 1000u) << HORA_README;
  for (const SettingDescription& setting : setting_descriptions()) {
    EXPECT_NE(text.str().find(row_of(setting)), std::string::npos) << "README.md needs this row:\n"
                                                                   << row_of(setting);
  }
}

}  // namespace
}  // namespace hora
