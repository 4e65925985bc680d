#include "core/launch/program/init_limits.h"

#include <gtest/gtest.h>

#include <vector>

namespace hora::launch {
namespace {

using Assignments = std::vector<SettingAssignment>;

TEST(InitLimits, AreTheSettingsDefaults) {
  const InitLimits limits = init_limits({}, {});
  EXPECT_EQ(limits.warning, Settings().stall_warning);
  EXPECT_EQ(limits.timeout, Settings().init_timeout);
}

TEST(InitLimits, FlagsComeBeforeTheEnvironment) {
  const Assignments flags{{"HORA_INIT_TIMEOUT", "7s"}, {"HORA_SPIN", "1us"}};
  const Assignments environment{{"HORA_INIT_TIMEOUT", "9s"}, {"HORA_STALL_WARNING", "300ms"}};
  const InitLimits limits = init_limits(flags, environment);
  EXPECT_EQ(limits.warning, Moment(300));
  EXPECT_EQ(limits.timeout, Moment(7000));
}

TEST(InitLimits, WhatIsWrongIsTheRanksError) {
  const Assignments environment{{"HORA_INIT_TIMEOUT", "soon"}, {"HORA_STALL_WARNING", "2s"}};
  const InitLimits limits = init_limits({}, environment);
  EXPECT_EQ(limits.warning, Moment(2000));
  EXPECT_EQ(limits.timeout, Settings().init_timeout);
}

}  // namespace
}  // namespace hora::launch
