#include "core/flight/flight_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "core/base/diagnostics.h"
#include "core/flight/record_reader.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_folder.h"

namespace hora::internal {
namespace {

using testing::HasSubstr;

FlightRecord record_in(const std::string& folder, int rank) {
  return record_from_json(test::read_file(record_file(folder, rank))).value();
}

TEST(FlightRecorder, WritesItsFileWhenTheRankFails) {
  const test::TemporaryFolder folder;
  FlightRecorder recorder(nullptr);
  recorder.writer().identify({.rank = 2, .size = 4});
  recorder.write_failures_to(folder.file("records"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.file("records")));
  recorder.failed(Error(ErrorCode::timeout, "too late"));
  recorder.failed("again");
  const FlightRecord record = record_in(folder.file("records"), 2);
  EXPECT_EQ(record.cause->text, "too late");
  EXPECT_EQ(record.state, RecordState::failed);
}

TEST(FlightRecorder, LeavesTheFileToTheGuard) {
  const test::TemporaryFolder folder;
  const RecordMemory guard = RecordMemory::create().value();
  FlightRecorder recorder(guard.path().c_str());
  EXPECT_GT(recorder.guard(), 0);
  recorder.write_failures_to(folder.file("records"));
  recorder.failed("seen by the guard");
  EXPECT_FALSE(std::filesystem::exists(folder.file("records")));
  EXPECT_EQ(read_record(guard.layout(), {}).value().cause->text, "seen by the guard");
}

TEST(FlightRecorder, KeepsToItselfWhereTheGuardsMemoryCannotBeUsed) {
  testing::internal::CaptureStderr();
  const FlightRecorder recorder("/proc/1/fd/no");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("HORARUN_RECORD=/proc/1/fd/no: the flight record"));
  EXPECT_TRUE(recorder.writer().on());
  EXPECT_EQ(recorder.guard(), 0);
}

TEST(FlightRecorder, CanBeOff) {
  const FlightRecorder recorder("off");
  EXPECT_FALSE(recorder.writer().on());
}

TEST(FlightRecorder, RefusesAFolderThatCannotBeWrittenTo) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.file("file")) << "";
  FlightRecorder recorder(nullptr);
  try {
    recorder.write_failures_to(folder.file("file"));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_setting);
    EXPECT_THAT(error.what(), HasSubstr("HORA_RECORD_DIRECTORY: "));
  }
}

TEST(FlightRecorderDeathTest, AnUncaughtExceptionIsTheCause) {
  const test::TemporaryFolder folder;
  const auto throw_lost = [] { throw std::runtime_error("lost"); };
  const auto end = [&]() noexcept {
    FlightRecorder recorder(nullptr);
    recorder.writer().identify({.rank = 5, .size = 6});
    recorder.write_failures_to(folder.path());
    const TerminateReport report(5,
                                 {.record = [&](const std::string& why) { recorder.failed(why); }});
    throw_lost();
  };
  EXPECT_EXIT(end(), testing::KilledBySignal(SIGABRT), "std::runtime_error: lost");
  EXPECT_THAT(record_in(folder.path(), 5).cause->text, HasSubstr("std::runtime_error: lost"));
}

}  // namespace
}  // namespace hora::internal
