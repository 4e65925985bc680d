#include "core/base/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>
#include <hora/settings.h>

#include <set>

#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/read_file.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using Assignments = std::vector<SettingAssignment>;

/// The message with which `assignments` are refused, else a failure.
std::string refusal(const Assignments& assignments) {
  SCOPED_TRACE(assignments.front().variable + "=" + assignments.front().value);
  return test::expect_error(ErrorCode::invalid_setting, [&] { parse_settings(assignments); })
      .what();
}

/// Reads an environment that holds these alone.
Settings settings_of(const std::vector<const char*>& variables) {
  return parse_settings(setting_assignments(variables));
}

TEST(Settings, EachVariableSetsItsField) {
  Settings expected;
  expected.ranks_per_node = 2;
  expected.ranks_per_memory_node = 4;
  expected.fusion_threshold = 123;
  expected.bucket_size = 25 << 20;
  expected.chunk_size = 4096;
  expected.small_message = 64000;
  expected.cross_algorithm = CrossAlgorithm::ring;
  expected.gpu_network = GpuNetwork::nccl;
  expected.nccl_ctas = 8;
  expected.nccl_windows = true;
  expected.cuda_aware_mpi = CudaAwareMpi::off;
  expected.id_capacity = 16;
  expected.spin = 3ms;
  expected.stall_warning = 250ms;
  expected.timeout = 90s;
  expected.tuning = "/tmp/a.json";
  expected.malloc_tuning = false;
  expected.tensor_arena = TensorArenaUse::on;
  expected.tensor_arena_limit = 2000000000;
  expected.report = true;
  expected.timeline = "/tmp/a.%r.json";
  expected.record_directory = "/tmp/a";
  expected.log_level = LogLevel::debug;
  expected.allow_unknown = "HORA_A,HORA_b_2";
  EXPECT_EQ(settings_of({"HORA_RANKS_PER_NODE=2",
                         "HORA_RANKS_PER_MEMORY_NODE=4",
                         "HORA_FUSION_THRESHOLD=123",
                         "HORA_BUCKET_SIZE=25MiB",
                         "HORA_CHUNK_SIZE=4K",
                         "HORA_SMALL_MESSAGE=64KB",
                         "HORA_CROSS_ALGORITHM=ring",
                         "HORA_GPU_NETWORK=nccl",
                         "HORA_NCCL_CTAS=8",
                         "HORA_NCCL_WINDOWS=on",
                         "HORA_CUDA_AWARE_MPI=off",
                         "HORA_ID_CAPACITY=16",
                         "HORA_SPIN=3ms",
                         "HORA_STALL_WARNING=250ms",
                         "HORA_TIMEOUT=90",
                         "HORA_TUNING=/tmp/a.json",
                         "HORA_MALLOC_TUNING=off",
                         "HORA_TENSOR_ARENA=on",
                         "HORA_TENSOR_ARENA_LIMIT=2GB",
                         "HORA_REPORT=on",
                         "HORA_TIMELINE=/tmp/a.%r.json",
                         "HORA_RECORD_DIRECTORY=/tmp/a",
                         "HORA_LOG_LEVEL=debug",
                         "HORA_ALLOW_UNKNOWN=HORA_A,HORA_b_2"}),
            expected);
  EXPECT_EQ(parse_settings(to_assignments(expected)), expected);
  EXPECT_EQ(parse_settings({}), Settings{});
}

TEST(Settings, RefusesWhatCannotBeMeant) {
  std::string texts;
  for (const char* variable : {"HORA_CHUNK_SIZE=",
                               "HORA_CHUNK_SIZE= 1",
                               "HORA_CHUNK_SIZE=+1",
                               "HORA_CHUNK_SIZE=-1",
                               "HORA_CHUNK_SIZE=64m",
                               "HORA_CHUNK_SIZE=64 MiB",
                               "HORA_CHUNK_SIZE=1.5M",
                               "HORA_CHUNK_SIZE=4095",
                               "HORA_CHUNK_SIZE=2GiB",
                               "HORA_FUSION_THRESHOLD=17179869184G",
                               "HORA_FUSION_THRESHOLD=99999999999999999999999999",
                               "HORA_ID_CAPACITY=15",
                               "HORA_ID_CAPACITY=1K",
                               "HORA_SPIN=1000001",
                               "HORA_STALL_WARNING=10us",
                               "HORA_TIMEOUT=86401",
                               "HORA_CROSS_ALGORITHM=Ring",
                               "HORA_MALLOC_TUNING=yes",
                               "HORA_TIMELINE=a%",
                               "HORA_TIMELINE=%p.json",
                               "HORA_TIMELINE=a\nb",
                               "HORA_RECORD_DIRECTORY=%r",
                               "HORA_TUNING=a%r.json",
                               "HORA_TUNING=/tmp/",
                               "HORA_ALLOW_UNKNOWN=HORA_A,",
                               "HORA_ALLOW_UNKNOWN=HORA_A, HORA_B",
                               "HORA_FUSSION_TRESHOLD=64M",
                               "HORA_LOGLEVEL=info"}) {
    texts += refusal(setting_assignments({&variable, 1})) + "\n";
  }
  texts += refusal({{"HORA_SPIN", "1"}, {"HORA_SPIN", "1"}});
  test::expect_golden("core/base/texts.txt", "refused settings", texts);
}

TEST(Settings, FindsItsVariablesInAnEnvironment) {
  const char* const environment[] = {"PATH=/bin",   "HORA_SPIN=7",   "XHORA_SPIN=8", "HORARUN=1",
                                     "HORA_EMPTY=", "HORA_NO_VALUE", "HORA_A=b=c",   nullptr};
  const Assignments expected = {
      {"HORA_SPIN", "7"}, {"HORA_EMPTY", ""}, {"HORA_NO_VALUE", ""}, {"HORA_A", "b=c"}};
  EXPECT_EQ(setting_assignments(environment), expected);
}

TEST(Settings, DescriptionsCoverEachVariableOnce) {
  const auto assignments = to_assignments(Settings{});
  const auto descriptions = setting_descriptions();
  std::set<std::string_view> variables;
  for (const SettingDescription& description : descriptions) variables.insert(description.variable);
  EXPECT_EQ(variables.size(), descriptions.size());
  ASSERT_EQ(assignments.size(), descriptions.size());
  for (std::size_t i = 0; i < descriptions.size(); ++i) {
    const SettingDescription& description = descriptions[i];
    EXPECT_EQ(description.variable, assignments[i].variable);
    EXPECT_EQ(description.default_value, assignments[i].value);
    EXPECT_TRUE(description.variable.starts_with("HORA_")) << description.variable;
    EXPECT_TRUE(description.documentation.ends_with(".")) << description.variable;
    EXPECT_FALSE(description.allowed.empty()) << description.variable;
    EXPECT_THAT(refusal({{std::string(description.variable), "%"}}),
                HasSubstr(std::string(description.allowed)));
  }
}

TEST(Settings, ChangedAreThoseThatAreNotTheDefaults) {
  EXPECT_TRUE(changed_assignments(Settings{}).empty());
  const Assignments changed = {{"HORA_SPIN", "7us"}, {"HORA_TIMELINE", "trace.json"}};
  EXPECT_EQ(changed_assignments(settings_of({"HORA_SPIN=7", "HORA_TIMELINE=trace.json"})), changed);
}

// A setting of each type.
TEST(Settings, SurviveTheRoundTripThroughText) {
  EXPECT_EQ(parse_settings(to_assignments(Settings{})), Settings{});
  std::mt19937_64 random = test::generator();
  const auto below = [&](std::uint64_t bound) { return random() % bound; };
  for (int round = 0; round < 2000; ++round) {
    // Shifts make values that a suffix fits.
    Settings settings;
    settings.fusion_threshold = below(2) == 0 ? below(64) << below(31) : 1000 * below(65);
    settings.stall_warning = std::chrono::milliseconds(below(86400001));
    settings.report = below(2) == 1;
    settings.ranks_per_node = static_cast<int>(below(65537));
    settings.cross_algorithm = static_cast<CrossAlgorithm>(below(3));
    settings.spin = std::chrono::microseconds(below(2) == 0 ? below(1000001) : below(11) * 100000);
    settings.tensor_arena = static_cast<TensorArenaUse>(below(3));
    settings.cuda_aware_mpi = static_cast<CudaAwareMpi>(below(3));
    settings.gpu_network = static_cast<GpuNetwork>(below(3));
    settings.log_level = static_cast<LogLevel>(below(5));
    EXPECT_EQ(parse_settings(to_assignments(settings)), settings);
  }
}

TEST(ForeignSettings, WhatModuleSystemsSetForEveryPackageIsForeign) {
  for (const char* name :
       {"HORA_ROOT", "HORA_HOME", "HORA_DIR", "HORA_VERSION", "HORA_LIB", "HORA_INC",
        "HORA_INCLUDE", "HORA_BIN", "HORA_PREFIX", "HORA_BASE", "HORA_PATH", "HORA_LIB_DIR",
        "HORA_LIB_modshare", "HORA_PKG_CONFIG_PATH", "HORA_B"}) {
    EXPECT_TRUE(is_foreign(name, "HORA_A,HORA_B,HORA_SPIN")) << name;
  }
  for (const char* name : {"HORA_FUSSION_THRESHOLD", "HORA_", "ROOT", "HORA_ROOTS", "hora_ROOT",
                           "HORA__modshare", "HORA_root", "HORA_C", "HORA_SPIN"}) {
    EXPECT_FALSE(is_foreign(name, "HORA_A,HORA_B,HORA_SPIN")) << name;
  }
}

TEST(ForeignSettings, SettingsAreReadAsIfTheyWereNotThere) {
  EXPECT_EQ(parse_settings(Assignments{{"HORA_ROOT", "/opt/hora"}, {"HORA_ROOT", ""}}), Settings{});
  const Settings settings =
      settings_of({"HORA_OURS=1", "HORA_SPIN=7us", "HORA_ALLOW_UNKNOWN=HORA_MINE,HORA_OURS"});
  EXPECT_EQ(settings.spin, 7us);
  EXPECT_EQ(settings.allow_unknown, "HORA_MINE,HORA_OURS");
  EXPECT_THAT(refusal({{"HORA_THEIRS", "1"}, {"HORA_ALLOW_UNKNOWN", "HORA_OURS"}}),
              HasSubstr("HORA_ALLOW_UNKNOWN=HORA_THEIRS lets it pass"));
}

TEST(ForeignSettings, Rank0sListHoldsForAll) {
  const Assignments own = {{"HORA_SPIN", "1"}, {"HORA_ROOT", "a\nHORA_SPIN=9"}, {"HORA_X", "1"}};
  EXPECT_EQ(without_foreign(own, "HORA_X"), (Assignments{{"HORA_SPIN", "1"}}));
  EXPECT_EQ(without_foreign(own, ""), (Assignments{{"HORA_SPIN", "1"}, {"HORA_X", "1"}}));
  const Assignments allowed = {{"HORA_X", "1"}, {"HORA_ALLOW_UNKNOWN", "HORA_X"}};
  EXPECT_EQ(without_foreign(allowed, ""), (Assignments{{"HORA_ALLOW_UNKNOWN", "HORA_X"}}));
}

// Without the suffixes of numbers, which stand once above the list.
TEST(SettingsDocument, ListsEverySettingAsTheTableHasIt) {
  const std::string text = test::read_file(HORA_SETTINGS_DOCUMENT);
  ASSERT_GT(text.size(), 1000u) << HORA_SETTINGS_DOCUMENT;
  for (const SettingDescription& setting : setting_descriptions()) {
    const std::string allowed(setting.allowed);
    EXPECT_THAT(text,
                HasSubstr("- `" + std::string(setting.variable) + "` (`" + setting.default_value +
                          "`; " + allowed.substr(0, allowed.find(", optionally with a suffix")) +
                          "): " + std::string(setting.documentation) + "\n"));
  }
}

}  // namespace
}  // namespace hora::internal
