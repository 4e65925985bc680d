#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/context/agreement.h"

namespace hora {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Assignments = std::vector<SettingAssignment>;

TEST(Disagreement, NoneWhereAllIsSetAlikeOrOnRank0Only) {
  const Assignments some = {{"HORA_FUSION_THRESHOLD", "1MiB"}, {"HORA_SPIN", "10us"}};
  EXPECT_EQ(disagreement({}, 1, {}), "");
  EXPECT_EQ(disagreement(some, 1, some), "");
  EXPECT_EQ(disagreement({}, 1, some), "") << "mpirun forwards no variables to other hosts";
}

TEST(Disagreement, TheSameValueMayBeWrittenInAnotherWay) {
  EXPECT_EQ(disagreement(Assignments{{"HORA_FUSION_THRESHOLD", "1048576"}}, 1,
                         Assignments{{"HORA_FUSION_THRESHOLD", "1MiB"}}),
            "");
}

TEST(Disagreement, SettingTheDefaultElsewhereIsNone) {
  std::string default_value;
  for (const auto& setting : setting_descriptions()) {
    if (setting.variable == "HORA_SPIN") default_value = setting.default_value;
  }
  ASSERT_FALSE(default_value.empty());
  EXPECT_EQ(disagreement(Assignments{{"HORA_SPIN", default_value}}, 2, {}), "");
}

TEST(Disagreement, NamesVariableRankAndBothValues) {
  const std::string text = disagreement(Assignments{{"HORA_FUSION_THRESHOLD", "2097152"}}, 3,
                                        Assignments{{"HORA_FUSION_THRESHOLD", "1MiB"}});
  EXPECT_THAT(text, AllOf(HasSubstr("HORA_FUSION_THRESHOLD is 2M"), HasSubstr("on rank 3 but 1M"),
                          HasSubstr("on rank 0")));
  EXPECT_THAT(disagreement(Assignments{{"HORA_CROSS_ALGORITHM", "ring"}}, 1, {}),
              HasSubstr("HORA_CROSS_ALGORITHM is ring on rank 1 but automatic on rank 0"));
}

TEST(Disagreement, IsFoundBehindSettingsThatAgree) {
  const Assignments mine = {{"HORA_SPIN", "10us"}, {"HORA_LOG_LEVEL", "debug"}};
  const Assignments of_rank_0 = {{"HORA_SPIN", "10us"}};
  EXPECT_THAT(disagreement(mine, 1, of_rank_0), HasSubstr("HORA_LOG_LEVEL is debug on rank 1"));
}

}  // namespace
}  // namespace hora
