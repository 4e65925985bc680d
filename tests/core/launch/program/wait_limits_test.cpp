#include "core/launch/program/wait_limits.h"

#include <gtest/gtest.h>

#include <vector>

namespace hora::launch {
namespace {

using Assignments = std::vector<SettingAssignment>;

TEST(WaitLimits, AreTheSettingsDefaults) {
  const WaitLimits limits = wait_limits({}, {});
  EXPECT_EQ(limits.init_warning, Settings().stall_warning);
  EXPECT_EQ(limits.init, Settings().init_timeout);
  EXPECT_EQ(limits.stopped, Settings().timeout);
}

TEST(WaitLimits, FlagsComeBeforeTheEnvironment) {
  const Assignments flags{{"HORA_INIT_TIMEOUT", "7s"}, {"HORA_SPIN", "1us"}, {"HORA_TIMEOUT", "0"}};
  const Assignments environment{{"HORA_INIT_TIMEOUT", "9s"}, {"HORA_STALL_WARNING", "300ms"}};
  const WaitLimits limits = wait_limits(flags, environment);
  EXPECT_EQ(limits.init_warning, Moment(300));
  EXPECT_EQ(limits.init, Moment(7000));
  EXPECT_EQ(limits.stopped, Moment(0));
}

TEST(WaitLimits, WhatIsWrongIsTheRanksError) {
  const Assignments environment{{"HORA_INIT_TIMEOUT", "soon"}, {"HORA_STALL_WARNING", "2s"}};
  const WaitLimits limits = wait_limits({}, environment);
  EXPECT_EQ(limits.init_warning, Moment(2000));
  EXPECT_EQ(limits.init, Settings().init_timeout);
}

}  // namespace
}  // namespace hora::launch
