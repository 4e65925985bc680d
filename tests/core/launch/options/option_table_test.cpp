#include "core/launch/options/option_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/core/launch/options/parsed.h"

namespace hora::launch {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

TEST(OptionTable, NoSpellingIsUsedTwice) {
  std::set<std::string> spellings;
  for (const OptionRow& row : option_table()) {
    EXPECT_TRUE(spellings.insert(row.name).second) << row.name;
    for (const std::string& spelling : row.spellings) {
      EXPECT_TRUE(spellings.insert(spelling).second) << spelling;
    }
    if (row.kind == OptionKind::toggle) {
      EXPECT_TRUE(spellings.insert("no-" + row.name).second) << row.name;
    }
  }
}

TEST(OptionTable, SpellingsHaveNoDashesBeforeThemAndNoUnderscores) {
  for (const OptionRow& row : option_table()) {
    std::vector<std::string> all = row.spellings;
    all.push_back(row.name);
    for (const std::string& spelling : all) {
      EXPECT_FALSE(spelling.empty() || spelling.starts_with('-')) << row.name;
      EXPECT_EQ(spelling.find_first_of("_= "), spelling.npos) << spelling;
      EXPECT_EQ(find_option(spelling), &row);
    }
  }
}

TEST(OptionTable, EachRowSaysWhatItDoes) {
  for (const OptionRow& row : option_table()) {
    SCOPED_TRACE(row.name);
    const bool has_value = row.kind == OptionKind::value || row.kind == OptionKind::pair;
    EXPECT_EQ(has_value, !row.value.empty());
    if (row.group != OptionGroup::compatibility || row.standing == Standing::refused) {
      EXPECT_FALSE(row.help.empty());
    }
    if (row.standing == Standing::supported) {
      EXPECT_TRUE(row.apply);
    } else {
      EXPECT_FALSE(row.apply);
    }
    EXPECT_TRUE(row.choices.empty() || row.kind != OptionKind::flag);
  }
}

TEST(OptionTable, EachSettingHasAFlagOfItsName) {
  for (const SettingDescription& setting : setting_descriptions()) {
    const OptionRow* const row = find_option(setting.variable.substr(5));
    std::string lower(setting.variable.substr(5));
    std::ranges::transform(lower, lower.begin(), [](char c) { return std::tolower(c); });
    const OptionRow* const of_flag = find_option(lower);
    ASSERT_NE(of_flag, nullptr) << setting.variable;
    EXPECT_EQ(row, nullptr);
    EXPECT_EQ(of_flag->help, setting.documentation);
    if (setting.default_value == "off" && setting.choices.empty()) continue;  // texts
    EXPECT_THAT(
        test::parsed({"--" + lower, setting.default_value, "t"}).settings,
        ElementsAre(SettingAssignment{std::string(setting.variable), setting.default_value}));
  }
}

TEST(OptionTable, SettingsThatCanBeOnAreToggles) {
  for (const SettingDescription& setting : setting_descriptions()) {
    const auto is_toggle = [](const OptionRow& row) { return row.kind == OptionKind::toggle; };
    const auto row = std::ranges::find(option_table(), setting.variable, &OptionRow::sets);
    ASSERT_NE(row, option_table().end()) << setting.variable;
    EXPECT_EQ(is_toggle(*row), std::ranges::count(setting.choices, "on") == 1) << setting.variable;
  }
  EXPECT_EQ(shown_value(*find_option("report")), "[=off|on]");
}

TEST(OptionTable, SettingsAreCheckedByTheLibrary) {
  EXPECT_EQ(test::refusal({"--fusion-threshold", "12XB", "t"}).substr(0, 46),
            "--fusion-threshold \"12XB\": unknown suffix \"XB\"");
  EXPECT_THAT(test::refusal({"--cross-algorithm", "star", "t"}),
              HasSubstr("allowed: automatic, direct"));
}

TEST(OptionTable, ChoicesAreAllAccepted) {
  for (const OptionRow& row : option_table()) {
    for (const std::string& choice : row.choices) {
      LaunchOptions options;
      EXPECT_TRUE(row.apply(options, choice)) << row.name << " " << choice;
    }
  }
}

TEST(OptionTable, NearestIsASpellingThatWorks) {
  EXPECT_EQ(nearest_option("hostsfile"), "hostfile");
  EXPECT_EQ(nearest_option("fusion_treshold"), "fusion-threshold");
  EXPECT_EQ(nearest_option("verbos"), "verbose");
  for (const char* other : {"export", "time", "port", "ntasks", ""}) {
    EXPECT_EQ(nearest_option(other), "") << "no typing error of another";
  }
  EXPECT_EQ(nearest_option("quite-something-else"), "");
  EXPECT_EQ(nearest_option(std::string(100000, 'x')), "");
}

TEST(OptionTable, EveryRowThatIsNotRefusedIsAcceptedAndNoticedOnce) {
  for (const OptionRow& row : option_table()) {
    if (row.standing != Standing::ignored) continue;
    test::Line line{"--" + row.name};
    if (row.kind == OptionKind::value) line.emplace_back("1");
    line.emplace_back("t");
    EXPECT_THAT(test::parsed(line).notices, SizeIs(row.help.empty() ? 0 : 1)) << row.name;
  }
}

}  // namespace
}  // namespace hora::launch
