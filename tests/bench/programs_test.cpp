/// Each program runs on 2 ranks with tiny times and writes the file that it promises.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>

#include "tests/support/golden.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_folder.h"

namespace {

using hora::internal::test::read_file;
using hora::internal::test::TemporaryFolder;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

std::string environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? "" : value;
}

class Programs : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(environment("MPIRUN"), "") << "set by ctest"; }

  struct Result {
    int code = 0;
    std::string screen;
  };
  Result run(const std::string& program, const std::string& arguments) const {
    const std::string path = environment(program);
    if (path.empty()) throw std::runtime_error(program + " is not in the environment");
    const std::string screen = folder_.file("screen");
    // mpirun ends its ranks when it gets SIGTERM.
    const std::string command = "timeout --foreground --kill-after=10 120 " +
                                environment("MPIRUN") + " -np 2 " + path + " " + arguments + " > " +
                                screen + " 2>&1";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128, read_file(screen)};
  }
  json file_of(const std::string& program, const std::string& arguments) const {
    const std::string path = folder_.file("results.json");
    const Result result = run(program, arguments + " --benchmark_out=" + path);
    EXPECT_EQ(result.code, 0) << result.screen;
    return json::parse(read_file(path));
  }
  void expect_failure(const std::string& program, const std::string& arguments,
                      const testing::Matcher<std::string>& screen) const {
    const Result result = run(program, arguments);
    EXPECT_NE(result.code, 0);
    EXPECT_THAT(result.screen, screen);
  }

  const TemporaryFolder folder_;
};

/// Expects that a row has these values.
void expect_row(const json& row, const json& expected) {
  for (const auto& [key, value] : expected.items()) EXPECT_EQ(row.at(key), value) << key;
}

/// Has a row of hora's, and no other, its ratio to MPI?
bool vs_mpi_is_right(const json& row) {
  return row.contains("vs_mpi") ==
         (row.at("name").get<std::string>().find("hora") != std::string::npos);
}

/// Expects the golden names, without those of Gloo, which some builds lack.
void expect_names(const json& file) {
  std::set<std::string> names;
  for (const json& row : file.at("benchmarks")) names.insert(row.at("name"));
  std::string text;
  for (const std::string& name : names) {
    if (name.find("gloo") == std::string::npos) text += name + "\n";
  }
  const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
  hora::internal::test::expect_golden("bench/programs.txt", test->name(), text);
}

TEST_F(Programs, AllreducePerf) {
  const json file = file_of("ALLREDUCE_PERF",
                            "--min-bytes 64KiB --max-bytes 256KiB --blocks 2 "
                            "--benchmark_min_time=0.002 --benchmark_filter='allreduce/.*/65536$'");
  expect_names(file);
  EXPECT_EQ(file.at("context").at("ranks"), "2");
  for (const json& row : file.at("benchmarks")) {
    SCOPED_TRACE(row.dump());
    expect_row(row, {{"time_unit", "us"},
                     {"label", "float sum"},
                     {"wrong", 0.0},
                     {"bytes", 65536.0},
                     {"count", 16384.0}});
    EXPECT_GE(row.at("iterations"), 6);
    const double microseconds = row.at("real_time");
    EXPECT_GT(microseconds, 0.0);
    EXPECT_GE(row.at("p99_us").get<double>(), microseconds);
    EXPECT_NEAR(row.at("algbw").get<double>(), 65536.0 / microseconds / 1e3, 1e-3);
    // nccl-tests: 2 (n - 1) / n, and n is 2.
    EXPECT_DOUBLE_EQ(row.at("busbw").get<double>(), row.at("algbw").get<double>());
    EXPECT_TRUE(vs_mpi_is_right(row));
  }
}

TEST_F(Programs, AllreducePerfInATypeThatMpiDoesNotHave) {
  const json file = file_of(
      "ALLREDUCE_PERF",
      "--type bfloat16 --min-bytes 4KiB --max-bytes 4KiB --blocks 1 --benchmark_min_time=0.001");
  expect_names(file);
  for (const json& row : file.at("benchmarks")) {
    expect_row(row, {{"label", "bfloat16 sum"}, {"count", 2048.0}, {"wrong", 0.0}});
  }
}

TEST_F(Programs, RepetitionsAreMeasuredAnewAndAggregated) {
  const json file = file_of("ALLREDUCE_PERF",
                            "--min-bytes 4 --max-bytes 4 --blocks 2 --benchmark_min_time=0.001 "
                            "--benchmark_repetitions=3 --benchmark_filter='allreduce/(hora|mpi)/'");
  const json& rows = file.at("benchmarks");
  const auto is_measured = [](const json& row) {
    return row.at("run_type") == "iteration" && row.at("name") == "allreduce/hora/4";
  };
  EXPECT_EQ(std::count_if(rows.begin(), rows.end(), is_measured), 3);
  EXPECT_THAT(file.dump(), HasSubstr("\"allreduce/hora/4_median\""));
}

TEST_F(Programs, ColumnsOfNcclTestsOnScreen) {
  const Result result = run("ALLREDUCE_PERF",
                            "--max-bytes 4 --blocks 1 --benchmark_min_time=0.001 "
                            "--benchmark_filter=allreduce/hora/");
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.screen, testing::ContainsRegex(
                                 "size .*count .*type .*redop .*time .*algbw .*busbw .*#wrong"));
}

TEST_F(Programs, CollectivesPerf) {
  const json file = file_of("COLLECTIVES_PERF",
                            "--max-bytes 64KiB --blocks 2 --benchmark_min_time=0.002 "
                            "--benchmark_filter='/(hora|hora_bucket|mpi)/65536$'");
  expect_names(file);
  for (const json& row : file.at("benchmarks")) {
    SCOPED_TRACE(row.dump());
    EXPECT_EQ(row.at("wrong"), 0.0);
    EXPECT_TRUE(vs_mpi_is_right(row));
  }
}

TEST_F(Programs, Negotiation) {
  const json file =
      file_of("NEGOTIATION", "--idle-seconds 0.2 --wait-seconds 0.2 --benchmark_min_time=0.01");
  expect_names(file);
  for (const json& row : file.at("benchmarks")) {
    SCOPED_TRACE(row.dump());
    EXPECT_TRUE(row.at("pass") == 0.0 || row.at("pass") == 1.0);
    if (row.contains("bar_ns")) {
      EXPECT_EQ(row.at("wrong"), 0.0);
      EXPECT_EQ(row.at("pass") == 1.0, row.at("cost_ns").get<double>() <= row.at("bar_ns"));
    } else if (row.contains("bar_us")) {
      EXPECT_GT(row.at("real_time").get<double>(), 0.0);
      EXPECT_EQ(row.at("pass") == 1.0, row.at("real_time").get<double>() <= row.at("bar_us"));
    } else {
      // The rank that waits may begin a little after the other one's 0.2 s have.
      EXPECT_GE(row.at("elapsed_s").get<double>(), 0.1);
      EXPECT_EQ(row.at("pass") == 1.0,
                row.at("cpu_percent").get<double>() <= row.at("bar_percent"));
    }
  }
}

// Left out by ctest's environment in builds without LibTorch.
TEST_F(Programs, TrainingStep) {
  const json file =
      file_of("TRAINING_STEP", "--network tiny_layers --batch 2 --blocks 2 --steps 1");
  expect_names(file);
  EXPECT_EQ(file.at("context").at("network"), "tiny_layers");
  for (const json& row : file.at("benchmarks")) {
    SCOPED_TRACE(row.dump());
    EXPECT_EQ(row.at("time_unit"), "ms");
    const double milliseconds = row.at("real_time");
    for (const char* part : {"forward_ms", "backward_ms", "update_ms"}) {
      EXPECT_GT(row.at(part).get<double>(), 0.0);
    }
    EXPECT_GE(row.at("p99_ms").get<double>(), milliseconds);
    for (const char* count : {"page_faults", "switches", "switches_by_force"}) {
      EXPECT_GE(row.at(count).get<double>(), 0.0);
    }
    const std::string name = row.at("name");
    EXPECT_EQ(row.contains("over_plain"), name != "training_step/plain");
    EXPECT_EQ(row.contains("hidden_share"), name.find("/hora_") != std::string::npos);
    if (!row.contains("over_plain")) continue;
    EXPECT_EQ(row.at("wrong"), 0.0);
    EXPECT_GT(row.at("over_plain_low").get<double>(), 0.0);
    EXPECT_LE(row.at("over_plain_low"), row.at("over_plain"));
    EXPECT_LE(row.at("over_plain"), row.at("over_plain_high"));
    if (!row.contains("hidden_share")) continue;
    EXPECT_GE(row.at("hidden_share").get<double>(), 0.0);
    EXPECT_LE(row.at("hidden_share").get<double>(), 1.0);
    EXPECT_GT(row.at("gradients_mib").get<double>(), 0.0);
  }
}

TEST_F(Programs, TrainingStepOfOneContenderOnResNet18) {
  const json file =
      file_of("TRAINING_STEP", "--contenders hora_copies --batch 2 --blocks 1 --steps 1");
  expect_names(file);
  EXPECT_EQ(file.at("context").at("network"), "resnet18");
  for (const json& row : file.at("benchmarks")) EXPECT_EQ(row.value("wrong", 0.0), 0.0) << row;
}

TEST_F(Programs, TrainingStepNamesContendersThatThereAreNot) {
  expect_failure("TRAINING_STEP", "--contenders hora_copies,no_such",
                 AllOf(HasSubstr("no_such"), HasSubstr("mpi_blocking")));
}

TEST_F(Programs, ListsNamesWithoutMeasuring) {
  const Result result = run("NEGOTIATION", "--benchmark_list_tests --benchmark_filter=bytes");
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.screen, "negotiation/4_bytes_from_idle\n");
}

TEST_F(Programs, AFilterThatMatchesNothingAndAnUnknownFlagFail) {
  expect_failure("NEGOTIATION", "--benchmark_filter=no_such",
                 HasSubstr("--benchmark_filter=no_such matches no benchmark"));
  expect_failure("NEGOTIATION", "--unknown", HasSubstr("--unknown"));
}

}  // namespace
