#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/context/agreement.h"
#include "tests/support/threads/thread_bootstrap.h"

namespace hora::internal {
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
  const Assignments own = {{"HORA_SPIN", "10us"}, {"HORA_LOG_LEVEL", "debug"}};
  const Assignments of_rank_0 = {{"HORA_SPIN", "10us"}};
  EXPECT_THAT(disagreement(own, 1, of_rank_0), HasSubstr("HORA_LOG_LEVEL is debug on rank 1"));
}

/// What each of these ranks, with assignments of its own, agrees on or throws.
std::vector<std::string> agreed(const std::vector<Assignments>& by_rank) {
  std::vector<std::string> results(by_rank.size());
  test::run_ranks(std::vector<int>(by_rank.size(), 0), [&](Bootstrap& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    try {
      const Settings settings = agree_on_settings(world, {.assignments = by_rank[rank]});
      results[rank] = std::to_string(settings.fusion_threshold);
    } catch (const Error& error) {
      results[rank] = std::to_string(error.rank()) + ": " + error.what();
      EXPECT_EQ(error.code(), ErrorCode::invalid_setting);
    }
  });
  return results;
}

TEST(AgreeOnSettings, Rank0sHoldForAll) {
  const Assignments some = {{"HORA_FUSION_THRESHOLD", "1MiB"}};
  EXPECT_THAT(agreed({some, {}, some, {}}), testing::Each("1048576"));
}

TEST(AgreeOnSettings, WhatDiffersOrIsWrongIsTheSameErrorOnEveryRank) {
  const Assignments some = {{"HORA_FUSION_THRESHOLD", "1MiB"}};
  const Assignments other = {{"HORA_FUSION_THRESHOLD", "2MiB"}};
  const auto differ = agreed({some, {}, other, other});
  EXPECT_THAT(differ, testing::Each(differ[0]));
  EXPECT_THAT(differ[0], AllOf(testing::StartsWith("2: "), HasSubstr("on rank 2 but 1M")));
  const auto wrong = agreed({{}, {{"HORA_FUSION_THRESHOLD", "much"}}, {}});
  EXPECT_THAT(wrong, testing::Each(wrong[0]));
  EXPECT_THAT(wrong[0],
              AllOf(testing::StartsWith("1: "), HasSubstr("rank 1: "), HasSubstr("much")));
}

TEST(SettingsOfProcess, WhatTheProgramGivesCountsAsTheEnvironmentDoes) {
  const Assignments environment = {{"HORA_SPIN", "10us"}};
  const auto nothing_given = settings_of_process(environment, {});
  EXPECT_EQ(nothing_given.assignments, environment);
  Settings given;
  given.fusion_threshold = std::size_t{1} << 20;
  const auto both = settings_of_process(environment, given);
  EXPECT_EQ(both.assignments,
            (Assignments{{"HORA_SPIN", "10us"}, {"HORA_FUSION_THRESHOLD", "1MiB"}}));
  EXPECT_EQ(both.wrong + both.conflict, "");
}

TEST(SettingsOfProcess, ADefaultIsNotSetAndWhatIsAlikeIsNoConflict) {
  Settings given;
  given.spin = std::chrono::microseconds(50);  // the default
  given.fusion_threshold = std::size_t{1} << 20;
  const Assignments environment = {{"HORA_SPIN", "10us"}, {"HORA_FUSION_THRESHOLD", "1048576"}};
  const auto settings = settings_of_process(environment, given);
  EXPECT_EQ(settings.assignments, environment);
  EXPECT_EQ(settings.wrong + settings.conflict, "");
}

TEST(SettingsOfProcess, AConflictNamesTheVariableAndBothValues) {
  Settings given;
  given.fusion_threshold = std::size_t{1} << 20;
  given.timeline = "/tmp/trace.json";
  const auto settings =
      settings_of_process({{"HORA_FUSION_THRESHOLD", "2097152"}, {"HORA_LOG_LEVEL", "off"}}, given);
  EXPECT_THAT(settings.conflict,
              AllOf(HasSubstr("HORA_FUSION_THRESHOLD is 2MiB in the environment"),
                    HasSubstr("but 1MiB in InitOptions::settings")));
}

TEST(SettingsOfProcess, AFieldOutOfItsBoundsIsNamed) {
  Settings given;
  given.ranks_per_node = -1;
  EXPECT_THAT(
      settings_of_process({}, given).wrong,
      AllOf(HasSubstr("InitOptions::settings: HORA_RANKS_PER_NODE"), HasSubstr("negative")));
  given = {};
  given.log_level = static_cast<LogLevel>(200);
  EXPECT_THAT(settings_of_process({}, given).wrong, HasSubstr("HORA_LOG_LEVEL"));
}

TEST(AgreeOnSettings, AConflictAndAWrongFieldOfOneRankAreTheSameErrorOnEveryRank) {
  const auto thrown = [](const ProcessSettings& of_rank_1) {
    std::vector<std::string> texts(3);
    test::run_ranks({0, 0, 0}, [&](Bootstrap& world) {
      try {
        agree_on_settings(world, world.rank() == 1 ? of_rank_1 : ProcessSettings{});
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        texts[static_cast<std::size_t>(world.rank())] =
            std::string(name_of(error.code())) + " " + error.what();
      }
    });
    EXPECT_THAT(texts, testing::Each(texts[0]));
    return texts[0];
  };
  Settings given;
  given.id_capacity = 64;
  EXPECT_THAT(thrown(settings_of_process({{"HORA_ID_CAPACITY", "32"}}, given)),
              AllOf(testing::StartsWith(std::string(name_of(ErrorCode::invalid_argument))),
                    HasSubstr("rank 1: HORA_ID_CAPACITY is 32"), HasSubstr("but 64")));
  given.id_capacity = 1;
  EXPECT_THAT(thrown(settings_of_process({}, given)),
              AllOf(testing::StartsWith(std::string(name_of(ErrorCode::invalid_setting))),
                    HasSubstr("rank 1: InitOptions::settings: HORA_ID_CAPACITY")));
}

TEST(AgreeOnSets, ListsThatDifferAreTheSameErrorOnEveryRank) {
  std::vector<std::string> texts(3);
  test::run_ranks({0, 0, 0}, [&](Bootstrap& world) {
    EXPECT_NO_THROW(agree_on_sets(world, {{0, 1}, {2}}));
    try {
      agree_on_sets(world, world.rank() == 2 ? std::vector<std::vector<int>>{}
                                             : std::vector<std::vector<int>>{{0, 1}});
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::mismatch);
      texts[static_cast<std::size_t>(world.rank())] = error.what();
    }
  });
  EXPECT_THAT(texts,
              testing::Each(AllOf(HasSubstr("rank 0 has [0 1]"), HasSubstr("rank 2 has none"))));
}

}  // namespace
}  // namespace hora::internal
