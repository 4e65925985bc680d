#include "core/base/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>
#include <hora/settings.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "tests/support/expect_error.h"
#include "tests/support/read_file.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Assignments = std::vector<SettingAssignment>;

Settings with(const std::string& variable, const std::string& value) {
  const SettingAssignment assignment{variable, value};
  return parse_settings({&assignment, 1});
}

/// The message with which `assignments` are refused, else a failure.
std::string refusal(const std::vector<SettingAssignment>& assignments) {
  SCOPED_TRACE(assignments.front().variable + "=" + assignments.front().value);
  return test::expect_error(ErrorCode::invalid_setting, [&] { parse_settings(assignments); })
      .what();
}

std::string refusal(const std::string& variable, const std::string& value) {
  return refusal({{variable, value}});
}

TEST(Settings, DefaultsWhereNothingIsSet) {
  EXPECT_EQ(parse_settings({}), Settings{});
}

TEST(Settings, EachVariableSetsItsField) {
  EXPECT_EQ(with("HORA_RANKS_PER_NODE", "2").ranks_per_node, 2);
  EXPECT_EQ(with("HORA_RANKS_PER_MEMORY_NODE", "4").ranks_per_memory_node, 4);
  EXPECT_EQ(with("HORA_FUSION_THRESHOLD", "123").fusion_threshold, 123u);
  EXPECT_EQ(with("HORA_BUCKET_SIZE", "25MiB").bucket_size, 25u << 20);
  EXPECT_EQ(with("HORA_CHUNK_SIZE", "4K").chunk_size, 4096u);
  EXPECT_EQ(with("HORA_CHUNK_SIZE", "0").chunk_size, 0u);
  EXPECT_EQ(with("HORA_SMALL_MESSAGE", "0").small_message, 0u);
  EXPECT_EQ(with("HORA_CROSS_ALGORITHM", "ring").cross_algorithm, CrossAlgorithm::ring);
  EXPECT_EQ(with("HORA_CROSS_ALGORITHM", "direct").cross_algorithm, CrossAlgorithm::direct);
  EXPECT_EQ(with("HORA_GPU_NETWORK", "mpi").gpu_network, GpuNetwork::mpi);
  EXPECT_EQ(with("HORA_GPU_NETWORK", "nccl").gpu_network, GpuNetwork::nccl);
  EXPECT_EQ(with("HORA_NCCL_CTAS", "8").nccl_ctas, 8);
  EXPECT_TRUE(with("HORA_NCCL_WINDOWS", "on").nccl_windows);
  EXPECT_EQ(with("HORA_CUDA_AWARE_MPI", "on").cuda_aware_mpi, CudaAwareMpi::on);
  EXPECT_EQ(with("HORA_CUDA_AWARE_MPI", "off").cuda_aware_mpi, CudaAwareMpi::off);
  EXPECT_EQ(with("HORA_ID_CAPACITY", "16").id_capacity, 16);
  EXPECT_EQ(with("HORA_SPIN", "0").spin, 0us);
  EXPECT_EQ(with("HORA_STALL_WARNING", "0").stall_warning, 0ms);
  EXPECT_EQ(with("HORA_TIMEOUT", "90").timeout, 90s);
  EXPECT_EQ(with("HORA_TIMEOUT", "0").timeout, 0ms);
  EXPECT_EQ(with("HORA_TUNING", "on").tuning, "on");
  EXPECT_EQ(with("HORA_TUNING", "/tmp/a.json").tuning, "/tmp/a.json");
  EXPECT_EQ(with("HORA_TUNING", "off").tuning, "");
  EXPECT_EQ(with("HORA_MALLOC_TUNING", "off").malloc_tuning, false);
  EXPECT_EQ(with("HORA_TENSOR_ARENA", "on").tensor_arena, TensorArenaUse::on);
  EXPECT_EQ(with("HORA_TENSOR_ARENA", "off").tensor_arena, TensorArenaUse::off);
  EXPECT_EQ(with("HORA_TENSOR_ARENA_LIMIT", "1G").tensor_arena_limit, std::size_t{1} << 30);
  EXPECT_EQ(with("HORA_REPORT", "on").report, true);
  EXPECT_EQ(with("HORA_TIMELINE", "/tmp/a.%r.json").timeline, "/tmp/a.%r.json");
  EXPECT_EQ(with("HORA_TIMELINE", "off").timeline, "");
  EXPECT_EQ(with("HORA_RECORD_DIRECTORY", "/tmp/a").record_directory, "/tmp/a");
  EXPECT_EQ(with("HORA_RECORD_DIRECTORY", "off").record_directory, "");
  EXPECT_EQ(with("HORA_LOG_LEVEL", "debug").log_level, LogLevel::debug);
  EXPECT_EQ(with("HORA_LOG_LEVEL", "off").log_level, LogLevel::off);
  EXPECT_EQ(with("HORA_ALLOW_UNKNOWN", "HORA_A,HORA_B").allow_unknown, "HORA_A,HORA_B");
}

TEST(Settings, SizesMeanWhatTheirSuffixSays) {
  const auto size = [](const std::string& text) {
    return with("HORA_FUSION_THRESHOLD", text).fusion_threshold;
  };
  EXPECT_EQ(size("65536"), 65536u);
  EXPECT_EQ(size("64K"), 65536u);
  EXPECT_EQ(size("64KiB"), 65536u);
  EXPECT_EQ(size("64KB"), 64000u);
  EXPECT_EQ(size("64M"), 64u << 20);
  EXPECT_EQ(size("64MiB"), 64u << 20);
  EXPECT_EQ(size("64MB"), 64000000u);
  EXPECT_EQ(size("2G"), std::size_t{2} << 30);
  EXPECT_EQ(size("2GiB"), std::size_t{2} << 30);
  EXPECT_EQ(size("2GB"), 2000000000u);
}

TEST(Settings, DurationsMeanWhatTheirSuffixSays) {
  EXPECT_EQ(with("HORA_SPIN", "70").spin, 70us);
  EXPECT_EQ(with("HORA_SPIN", "70us").spin, 70us);
  EXPECT_EQ(with("HORA_SPIN", "3ms").spin, 3ms);
  EXPECT_EQ(with("HORA_SPIN", "1s").spin, 1s);
  EXPECT_EQ(with("HORA_STALL_WARNING", "30").stall_warning, 30s);
  EXPECT_EQ(with("HORA_STALL_WARNING", "30s").stall_warning, 30s);
  EXPECT_EQ(with("HORA_STALL_WARNING", "250ms").stall_warning, 250ms);
}

TEST(Settings, RefusesWhatIsNotANumber) {
  for (const char* text : {"", " ", "x", "M", "+1", " 1", "0x", "nan", "-"}) {
    EXPECT_THAT(refusal("HORA_CHUNK_SIZE", text),
                AllOf(HasSubstr("HORA_CHUNK_SIZE=\"" + std::string(text) + "\""),
                      HasSubstr("4KiB to 1GiB")));
  }
}

TEST(Settings, RefusesUnknownSuffixes) {
  for (const char* suffix : {"m", "mb", "MIB", "T", "B", " MiB", "MiB ", "MiB1", "x10", "s"}) {
    EXPECT_THAT(refusal("HORA_CHUNK_SIZE", "64" + std::string(suffix)),
                AllOf(HasSubstr("unknown suffix \"" + std::string(suffix) + "\""),
                      HasSubstr("KiB, MiB, GiB (powers of 1024)")));
  }
  EXPECT_THAT(refusal("HORA_STALL_WARNING", "10us"), HasSubstr("unknown suffix \"us\""));
  EXPECT_THAT(refusal("HORA_SPIN", "10KiB"), HasSubstr("us, ms or s"));
  EXPECT_THAT(refusal("HORA_ID_CAPACITY", "1K"), HasSubstr("unknown suffix"));
  EXPECT_THAT(refusal("HORA_CHUNK_SIZE", "1.5M"), HasSubstr("not a whole number"));
}

TEST(Settings, RefusesNegativeNumbers) {
  EXPECT_THAT(refusal("HORA_RANKS_PER_NODE", "-1"),
              AllOf(HasSubstr("HORA_RANKS_PER_NODE=\"-1\""), HasSubstr("negative"),
                    HasSubstr("a whole number from 0 to 65536")));
}

TEST(Settings, RefusesWhatIsOutOfRange) {
  EXPECT_THAT(refusal("HORA_ID_CAPACITY", "15"), HasSubstr("too small"));
  EXPECT_THAT(refusal("HORA_ID_CAPACITY", "65537"), HasSubstr("from 16 to 65536"));
  EXPECT_THAT(refusal("HORA_CHUNK_SIZE", "4095"),
              AllOf(HasSubstr("too small"), HasSubstr("bytes, 0 or from 4KiB to 1GiB")));
  EXPECT_THAT(refusal("HORA_CHUNK_SIZE", "2GiB"), HasSubstr("too large"));
  EXPECT_THAT(refusal("HORA_SPIN", "1000001"), HasSubstr("from 0 to 1s"));
  EXPECT_THAT(refusal("HORA_TIMEOUT", "86401"), HasSubstr("from 0 to 86400s"));
}

TEST(Settings, RefusesNumbersThatOverflow) {
  for (const char* text : {"9223372036854775807", "9223372036854775808", "18446744073709551617",
                           "17179869184G", "99999999999999999999999999"}) {
    EXPECT_THAT(refusal("HORA_FUSION_THRESHOLD", text), HasSubstr("too large")) << text;
  }
}

TEST(Settings, RefusesUnknownChoices) {
  EXPECT_THAT(refusal("HORA_CROSS_ALGORITHM", "Ring"),
              AllOf(HasSubstr("\"Ring\""), HasSubstr("automatic, direct")));
  EXPECT_THAT(refusal("HORA_MALLOC_TUNING", "yes"), HasSubstr("off or on"));
  EXPECT_THAT(refusal("HORA_TENSOR_ARENA", "yes"), HasSubstr("auto, on or off"));
  EXPECT_THAT(refusal("HORA_GPU_NETWORK", "ib"), HasSubstr("auto, mpi or nccl"));
  EXPECT_THAT(refusal("HORA_LOG_LEVEL", "3"), HasSubstr("debug, info, warning, error or off"));
}

TEST(Settings, RefusesPathsThatCannotBeMeant) {
  constexpr std::tuple<const char*, const char*, const char*> kRefused[] = {
      {"HORA_TIMELINE", "%", "off, or the path of a file"},
      {"HORA_TIMELINE", "a%", "off, or the path of a file"},
      {"HORA_TIMELINE", "%p.json", "off, or the path of a file"},
      {"HORA_TIMELINE", "a\nb", "off, or the path of a file"},
      {"HORA_TIMELINE", "", "off, or the path of a file"},
      {"HORA_RECORD_DIRECTORY", "%r", "off, or the path of a folder"},
      {"HORA_RECORD_DIRECTORY", "a\nb", "off, or the path of a folder"},
      {"HORA_RECORD_DIRECTORY", "", "off, or the path of a folder"},
      {"HORA_TUNING", "a%r.json", "off, or on, or the path of a file"},
      {"HORA_TUNING", "a\nb", "off, or on, or the path of a file"},
      {"HORA_TUNING", "/tmp/", "off, or on, or the path of a file"}};
  for (const auto& [variable, path, allowed] : kRefused) {
    EXPECT_THAT(refusal(variable, path), HasSubstr(allowed));
  }
}

TEST(Settings, UnknownVariableIsToldTheNearestName) {
  EXPECT_THAT(refusal("HORA_FUSSION_TRESHOLD", "64M"),
              AllOf(HasSubstr("HORA_FUSSION_TRESHOLD=\"64M\""),
                    HasSubstr("did you mean HORA_FUSION_THRESHOLD?"), HasSubstr("HORA_SPIN")));
  EXPECT_THAT(refusal("HORA_CROSSALGORITHM", "ring"),
              HasSubstr("did you mean HORA_CROSS_ALGORITHM?"));
  EXPECT_THAT(refusal("HORA_LOGLEVEL", "info"), HasSubstr("did you mean HORA_LOG_LEVEL?"));
}

TEST(Settings, RefusesAVariableSetTwice) {
  EXPECT_THAT(refusal({{"HORA_SPIN", "1"}, {"HORA_SPIN", "1"}}), HasSubstr("more than once"));
}

TEST(Settings, FindsItsVariablesInAnEnvironment) {
  const char* const environment[] = {"PATH=/bin",   "HORA_SPIN=7",   "XHORA_SPIN=8", "HORARUN=1",
                                     "HORA_EMPTY=", "HORA_NO_VALUE", "HORA_A=b=c",   nullptr};
  EXPECT_EQ(setting_assignments(environment),
            (std::vector<SettingAssignment>{
                {"HORA_SPIN", "7"}, {"HORA_EMPTY", ""}, {"HORA_NO_VALUE", ""}, {"HORA_A", "b=c"}}));
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
    EXPECT_THAT(refusal(std::string(description.variable), "%"),
                HasSubstr(std::string(description.allowed)));
  }
}

const SettingDescription& described(std::string_view variable) {
  const auto descriptions = setting_descriptions();
  return *std::ranges::find(descriptions, variable, &SettingDescription::variable);
}

TEST(Settings, DescriptionsListTheChoices) {
  using testing::ElementsAre;
  using testing::IsEmpty;
  EXPECT_THAT(described("HORA_TENSOR_ARENA").choices, ElementsAre("auto", "on", "off"));
  EXPECT_THAT(described("HORA_CUDA").choices, ElementsAre("off", "on"));
  EXPECT_THAT(described("HORA_SPIN").choices, IsEmpty());
  EXPECT_THAT(described("HORA_TIMELINE").choices, IsEmpty());
}

TEST(Settings, DefaultsReadAsOneWouldWriteThem) {
  constexpr std::pair<std::string_view, std::string_view> kDefaults[] = {
      {"HORA_FUSION_THRESHOLD", "64MiB"},
      {"HORA_BUCKET_SIZE", "0"},
      {"HORA_SPIN", "50us"},
      {"HORA_STALL_WARNING", "10s"},
      {"HORA_MALLOC_TUNING", "on"},
      {"HORA_TUNING", "off"},
      {"HORA_CROSS_ALGORITHM", "automatic"},
      {"HORA_CUDA_AWARE_MPI", "auto"},
      {"HORA_ID_CAPACITY", "4096"},
      {"HORA_TIMEOUT", "60s"}};
  for (const auto& [variable, value] : kDefaults) {
    EXPECT_EQ(described(variable).default_value, value) << variable;
  }
}

TEST(Settings, AChoiceThatDoesNotExistHasNoText) {
  Settings settings;
  settings.cross_algorithm = static_cast<CrossAlgorithm>(200);
  EXPECT_THROW(static_cast<void>(to_assignments(settings)), Error);
}

TEST(Settings, ChangedAreThoseThatAreNotTheDefaults) {
  EXPECT_TRUE(changed_assignments(Settings{}).empty());
  Settings settings;
  settings.spin = std::chrono::microseconds(7);
  settings.timeline = "trace.json";
  EXPECT_EQ(
      changed_assignments(settings),
      (std::vector<SettingAssignment>{{"HORA_SPIN", "7us"}, {"HORA_TIMELINE", "trace.json"}}));
}

TEST(Settings, SurviveTheRoundTripThroughText) {
  EXPECT_EQ(parse_settings(to_assignments(Settings{})), Settings{});
  std::mt19937_64 random = test::generator();
  const auto below = [&](std::uint64_t bound) { return random() % bound; };
  for (int round = 0; round < 2000; ++round) {
    // Shifts make values that a suffix fits.
    Settings settings;
    settings.ranks_per_node = static_cast<int>(below(65537));
    settings.ranks_per_memory_node = static_cast<int>(below(65537));
    settings.fusion_threshold = below(64) << below(31);
    settings.bucket_size = below(std::uint64_t{64} << 30);
    settings.tuning = below(2) == 1 ? "" : below(2) == 1 ? "on" : "a b/c.json";
    settings.chunk_size = below(4) == 0 ? 0 : 4096 + (below(1000) << below(20));
    settings.small_message = below(65) * (below(2) == 0 ? 1000 : 1024);
    settings.cross_algorithm = static_cast<CrossAlgorithm>(below(3));
    settings.id_capacity = static_cast<int>(16 + below(65521));
    settings.spin = std::chrono::microseconds(below(2) == 0 ? below(1000001) : below(11) * 100000);
    settings.stall_warning = std::chrono::milliseconds(below(86400001));
    settings.timeout = std::chrono::milliseconds(below(86400001));
    settings.malloc_tuning = below(2) == 1;
    settings.tensor_arena = static_cast<TensorArenaUse>(below(3));
    settings.tensor_arena_limit = below(1025) << below(31);
    settings.report = below(2) == 1;
    settings.cuda_aware_mpi = static_cast<CudaAwareMpi>(below(3));
    settings.gpu_network = static_cast<GpuNetwork>(below(3));
    settings.nccl_windows = below(2) == 1;
    settings.log_level = static_cast<LogLevel>(below(5));
    settings.allow_unknown = below(2) == 1 ? "" : "HORA_A,HORA_" + std::to_string(below(100));
    settings.timeline = below(2) == 1 ? "" : "a b/%r=" + std::to_string(below(100)) + ".json";
    settings.record_directory = below(2) == 1 ? "" : "a b/" + std::to_string(below(100));
    EXPECT_EQ(parse_settings(to_assignments(settings)), settings);
  }
}

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

}  // namespace
}  // namespace hora::internal
