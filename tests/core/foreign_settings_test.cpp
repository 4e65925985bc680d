#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include "core/base/settings.h"
#include "tests/support/expect_error.h"

namespace hora::internal {
namespace {

using testing::HasSubstr;
using Assignments = std::vector<SettingAssignment>;

TEST(ForeignSettings, WhatModuleSystemsSetForEveryPackageIsForeign) {
  for (const char* name :
       {"HORA_ROOT", "HORA_HOME", "HORA_DIR", "HORA_VERSION", "HORA_LIB", "HORA_INC",
        "HORA_INCLUDE", "HORA_BIN", "HORA_PREFIX", "HORA_BASE", "HORA_PATH", "HORA_LIB_DIR",
        "HORA_LIB_modshare", "HORA_PKG_CONFIG_PATH"}) {
    EXPECT_TRUE(is_foreign(name, "")) << name;
  }
  for (const char* name : {"HORA_FUSSION_THRESHOLD", "HORA_", "ROOT", "HORA_ROOTS", "hora_ROOT",
                           "HORA__modshare", "HORA_root"}) {
    EXPECT_FALSE(is_foreign(name, "")) << name;
  }
}

TEST(ForeignSettings, NoSettingOfHoraIs) {
  for (const SettingDescription& setting : setting_descriptions()) {
    EXPECT_FALSE(is_foreign(setting.variable, setting.variable)) << setting.variable;
  }
}

TEST(ForeignSettings, OthersAreAllowedByName) {
  EXPECT_TRUE(is_foreign("HORA_A", "HORA_A"));
  EXPECT_TRUE(is_foreign("HORA_B", "HORA_A,HORA_B"));
  EXPECT_FALSE(is_foreign("HORA_", "HORA_A,HORA_B"));
  EXPECT_FALSE(is_foreign("HORA_C", "HORA_A,HORA_B"));
}

TEST(ForeignSettings, AListHoldsNames) {
  EXPECT_EQ(wrong_with_foreign_names("HORA_A"), "");
  EXPECT_EQ(wrong_with_foreign_names("HORA_A,HORA_b_2"), "");
  for (const char* list : {"", "HORA_", "ROOT", "HORA_A,", ",HORA_A", "HORA_A HORA_B",
                           "HORA_A, HORA_B", "HORA_A\nHORA_SPIN=1", "*"}) {
    EXPECT_THAT(wrong_with_foreign_names(list), HasSubstr("begins with HORA_")) << list;
  }
}

TEST(ForeignSettings, SettingsAreReadAsIfTheyWereNotThere) {
  EXPECT_EQ(parse_settings(Assignments{{"HORA_ROOT", "/opt/hora"}, {"HORA_ROOT", ""}}), Settings{});
  const auto settings = parse_settings(Assignments{
      {"HORA_OURS", "1"}, {"HORA_SPIN", "7us"}, {"HORA_ALLOW_UNKNOWN", "HORA_MINE,HORA_OURS"}});
  EXPECT_EQ(settings.spin, std::chrono::microseconds(7));
  EXPECT_EQ(settings.allow_unknown, "HORA_MINE,HORA_OURS");
  test::expect_error(
      ErrorCode::invalid_setting, HasSubstr("HORA_ALLOW_UNKNOWN=HORA_THEIRS lets it pass"), [] {
        parse_settings(Assignments{{"HORA_THEIRS", "1"}, {"HORA_ALLOW_UNKNOWN", "HORA_OURS"}});
      });
}

TEST(ForeignSettings, Rank0sListHoldsForAll) {
  const Assignments own = {{"HORA_SPIN", "1"}, {"HORA_ROOT", "a\nHORA_SPIN=9"}, {"HORA_X", "1"}};
  EXPECT_EQ(without_foreign(own, "HORA_X"), (Assignments{{"HORA_SPIN", "1"}}));
  EXPECT_EQ(without_foreign(own, ""), (Assignments{{"HORA_SPIN", "1"}, {"HORA_X", "1"}}));
  const Assignments allowed = {{"HORA_X", "1"}, {"HORA_ALLOW_UNKNOWN", "HORA_X"}};
  EXPECT_EQ(without_foreign(allowed, ""), (Assignments{{"HORA_ALLOW_UNKNOWN", "HORA_X"}}));
}

}  // namespace
}  // namespace hora::internal
