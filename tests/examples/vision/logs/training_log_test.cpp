#include "examples/vision/logs/training_log.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include "examples/vision/logs/event.pb.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_folder.h"

namespace vision {
namespace {

using hora::internal::test::read_file;
using hora::internal::test::TemporaryFolder;
using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

/// Throws where a record is cut short or data is no event.
std::vector<logs::Event> events_of(const std::string& bytes) {
  std::vector<logs::Event> events;
  for (std::size_t at = 0; at < bytes.size();) {
    std::uint64_t size = 0;
    for (std::size_t i = 8; i-- > 0;) {
      size = size << 8 | static_cast<unsigned char>(bytes.at(at + i));
    }
    logs::Event event;
    if (at + 16 + size > bytes.size() || !event.ParseFromString(bytes.substr(at + 12, size))) {
      throw std::runtime_error("No record at byte " + std::to_string(at));
    }
    events.push_back(event);
    at += 16 + size;
  }
  return events;
}

std::vector<json> lines_of(const std::string& path) {
  std::istringstream text(read_file(path));
  std::vector<json> lines;
  for (std::string line; std::getline(text, line);) {
    lines.push_back(json::parse(line));
  }
  return lines;
}

using Curves = std::map<std::string, std::vector<std::pair<std::int64_t, float>>>;

Curves curves_in(const std::string& folder) {
  Curves curves;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    for (const auto& event : events_of(read_file(entry.path()))) {
      for (const auto& value : event.summary().value()) {
        curves[value.tag()].emplace_back(event.step(), value.simple_value());
      }
    }
  }
  return curves;
}

// Two epochs of three steps, two steps an entry.
void train(const LogTargets& targets) {
  TrainingLog log(targets);
  log.run({.ranks = 4,
           .nodes = 2,
           .batch = 8,
           .epochs = 2,
           .steps = 3,
           .data = "digits",
           .model = "ResNet-18"});
  for (int epoch = 1; epoch <= 2; ++epoch) {
    for (std::size_t step = 1; step <= 3; ++step) {
      log.step({.epoch = epoch,
                .epochs = 2,
                .step = step,
                .steps = 3,
                .loss = static_cast<double>(step),
                .top1 = 50.0 * epoch,
                .learning_rate = 0.5,
                .images_per_second = 64,
                .seconds = 0.5,
                .data_seconds = 0.25,
                .exposed_seconds = 0.125},
               TrainingLog::Time(std::chrono::seconds(1'700'000'000)));
    }
    log.epoch({.loss = 2.0, .top1 = 10.0 * epoch, .top5 = 90.0, .validation_seconds = 0.75},
              TrainingLog::Time(std::chrono::seconds(1'700'000'001)));
  }
}

TEST(TrainingLog, JsonHasTheCourse) {
  const TemporaryFolder folder;
  train({.json = folder.file("log.json"), .every = 2});
  const auto step = [](int epoch, int number, double loss) {
    return json{{"kind", "step"},
                {"epoch", epoch},
                {"step", number},
                {"loss", loss},
                {"top1", 50.0 * epoch},
                {"learning_rate", 0.5},
                {"images_per_second", 64.0},
                {"seconds", 0.5},
                {"data_seconds", 0.25},
                {"exposed_seconds", 0.125}};
  };
  const auto epoch = [](int number) {
    return json{{"kind", "epoch"},
                {"epoch", number},
                {"loss", 2.0},
                {"top1", 10.0 * number},
                {"top5", 90.0},
                {"steps", 3},
                {"images_per_second", 64.0},
                {"seconds", 1.5},
                {"data_seconds", 0.75},
                {"exposed_seconds", 0.375},
                {"validation_seconds", 0.75}};
  };
  EXPECT_EQ(lines_of(folder.file("log.json")), (std::vector<json>{{{"kind", "run"},
                                                                   {"ranks", 4},
                                                                   {"nodes", 2},
                                                                   {"batch", 8},
                                                                   {"epochs", 2},
                                                                   {"steps", 3},
                                                                   {"data", "digits"},
                                                                   {"model", "ResNet-18"}},
                                                                  step(1, 2, 1.5),
                                                                  step(1, 3, 3),
                                                                  epoch(1),
                                                                  step(2, 2, 1.5),
                                                                  step(2, 3, 3),
                                                                  epoch(2)}));
}

TEST(TrainingLog, TensorBoardHasTheCourse) {
  const TemporaryFolder folder;
  train({.tensorboard = folder.file("run"), .every = 2});
  const auto curves = curves_in(folder.file("run"));
  const Curves expected{
      {"loss/training", {{2, 1.5F}, {3, 3.0F}, {5, 1.5F}, {6, 3.0F}}},
      {"top1/training", {{2, 50.0F}, {3, 50.0F}, {5, 100.0F}, {6, 100.0F}}},
      {"learning_rate", {{2, 0.5F}, {3, 0.5F}, {5, 0.5F}, {6, 0.5F}}},
      {"images_per_second", {{2, 64.0F}, {3, 64.0F}, {5, 64.0F}, {6, 64.0F}}},
      {"step_seconds/all", {{2, 0.5F}, {3, 0.5F}, {5, 0.5F}, {6, 0.5F}}},
      {"step_seconds/data", {{2, 0.25F}, {3, 0.25F}, {5, 0.25F}, {6, 0.25F}}},
      {"step_seconds/exposed_communication", {{2, 0.125F}, {3, 0.125F}, {5, 0.125F}, {6, 0.125F}}},
      {"loss/epoch", {{3, 2.0F}, {6, 2.0F}}},
      {"top1/validation", {{3, 10.0F}, {6, 20.0F}}},
      {"top5/validation", {{3, 90.0F}, {6, 90.0F}}}};
  EXPECT_EQ(curves, expected);
}

TEST(TrainingLog, AResumedRunGoesOn) {
  const TemporaryFolder folder;
  LogTargets targets{.json = folder.file("log.json"), .every = 1};
  TrainingLog(targets).run({.epochs = 3, .steps = 4});
  targets.append = true;
  targets.tensorboard = folder.file("run");
  {
    TrainingLog log(targets);
    log.run({.epochs = 3, .steps = 4, .resumed = ResumePoint{.epochs = 1, .steps = 2}});
    for (const std::size_t step : {3, 4}) {
      log.step(
          {.epoch = 2, .step = step, .steps = 4, .gpu_bytes = 1024.0 * static_cast<double>(step)},
          {});
    }
    log.epoch({.loss = 0.0}, {});
    log.step({.epoch = 3, .step = 1, .steps = 4}, {});
  }
  const auto lines = lines_of(folder.file("log.json"));
  ASSERT_EQ(lines.size(), 6U);
  EXPECT_FALSE(lines[0].contains("resumed_epoch"));
  EXPECT_EQ(lines[1]["kind"], "run");
  EXPECT_EQ(lines[1]["resumed_epoch"], 1);
  EXPECT_EQ(lines[1]["resumed_step"], 2);
  EXPECT_EQ(lines[3]["gpu_bytes"], 4096);
  EXPECT_FALSE(lines[5].contains("gpu_bytes"));
  const auto curves = curves_in(folder.file("run"));
  using Points = std::vector<std::pair<std::int64_t, float>>;
  EXPECT_EQ(curves.at("gpu_memory/peak_bytes"), (Points{{7, 3072.0F}, {8, 4096.0F}}));
  EXPECT_EQ(curves.at("loss/training"), (Points{{7, 0.0F}, {8, 0.0F}, {9, 0.0F}}));
  EXPECT_EQ(curves.at("loss/epoch"), (Points{{8, 0.0F}}));
}

TEST(TrainingLog, AnEpochWithoutAStepThatCountsHasNoLoss) {
  const TemporaryFolder folder;
  {
    TrainingLog log({.json = folder.file("log.json"), .tensorboard = folder.file("run")});
    log.run({.epochs = 1, .steps = 1});
    log.step({.epoch = 1, .step = 1, .steps = 1}, {});
    log.epoch({}, {});
  }
  EXPECT_TRUE(lines_of(folder.file("log.json")).back()["loss"].is_null());
  EXPECT_FALSE(curves_in(folder.file("run")).contains("loss/epoch"));
}

TEST(TrainingLog, LinesAreCompleteWhileTrainingGoesOn) {
  const TemporaryFolder folder;
  TrainingLog log({.json = folder.file("log.json"), .every = 1});
  log.run({.data = "bytes that are no UTF-8: \xff"});
  log.step({.steps = 2, .loss = std::numeric_limits<double>::quiet_NaN()}, {});
  const auto lines = lines_of(folder.file("log.json"));
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_TRUE(lines[1]["loss"].is_null());
  EXPECT_FALSE(lines[1].contains("top1"));
}

TEST(TrainingLog, WritesNothingWhereNothingIsAskedFor) {
  train({});
}

TEST(TrainingLog, NamesWhatCannotBeWritten) {
  TrainingLog log({.json = "/dev/full"});
  try {
    log.run({});
    ADD_FAILURE() << "was written";
  } catch (const std::system_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("Cannot write to /dev/full"));
  }
}

const EventWriter::Time kStart{seconds(1'700'000'000)};

struct Scalar {
  const char* tag;
  std::int64_t step;
  double value;
  milliseconds after_start;
};
// As in make_fixture.py.
const std::array<Scalar, 4> scalars{
    Scalar{"loss/training", 1, 2.302585, milliseconds(250)},
    Scalar{"loss/training", 10, 1.5, milliseconds(1'500)},
    Scalar{"top1/validation", 10, 43.75, milliseconds(2'000)},
    Scalar{"Prüfung ✓", std::int64_t{1} << 40, -1e-30, milliseconds(3'125)}};

TEST(EventWriter, TensorBoardsOwnFileHasTheScalars) {
  const auto events = events_of(read_file(SCALARS_TFEVENTS));
  ASSERT_EQ(events.size(), scalars.size() + 1);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_EQ(events[0].wall_time(), 1'700'000'000.0);
  for (std::size_t i = 0; i < scalars.size(); ++i) {
    const logs::Event& event = events[i + 1];
    EXPECT_EQ(event.wall_time(),
              1'700'000'000 + std::chrono::duration<double>(scalars[i].after_start).count());
    EXPECT_EQ(event.step(), scalars[i].step);
    ASSERT_EQ(event.summary().value_size(), 1);
    EXPECT_EQ(event.summary().value(0).tag(), scalars[i].tag);
    EXPECT_EQ(event.summary().value(0).simple_value(), static_cast<float>(scalars[i].value));
  }
}

TEST(EventWriter, WritesTheBytesOfTensorBoards) {
  const TemporaryFolder folder;
  EventWriter writer(folder.path(), kStart);
  for (const Scalar& scalar : scalars) {
    writer.add(scalar.tag, scalar.step, scalar.value, kStart + scalar.after_start);
  }
  writer.flush();
  EXPECT_EQ(read_file(writer.path()), read_file(SCALARS_TFEVENTS));
}

TEST(EventWriter, MakesFoldersAndNamesFilesAsTensorBoardFindsThem) {
  const TemporaryFolder folder;
  const EventWriter first(folder.path() / "runs" / "a run", kStart);
  std::array<char, 256> host{};
  ASSERT_EQ(gethostname(host.data(), host.size() - 1), 0);
  const std::string name =
      "events.out.tfevents.1700000000." + std::string(host.data()) + "." + std::to_string(getpid());
  EXPECT_EQ(first.path(), folder.path() / "runs" / "a run" / name);
}

TEST(EventWriter, FlushesAtIntervalsAndAtItsEnd) {
  const TemporaryFolder folder;
  std::filesystem::path path;
  {
    EventWriter writer(folder.path(), kStart);
    path = writer.path();
    const auto written = [&] { return events_of(read_file(path)).size(); };
    EXPECT_EQ(written(), 1U) << "TensorBoard finds out what the file is";
    writer.add("a", 1, 1, kStart + milliseconds(9'999));
    EXPECT_EQ(written(), 1U);
    writer.add("a", 2, 1, kStart + milliseconds(10'000));
    EXPECT_EQ(written(), 3U);
    writer.add("a", 3, 1, kStart + milliseconds(19'999));
    EXPECT_EQ(written(), 3U);
    writer.add("a", 4, 1, kStart - seconds(100));  // the clock was set back
    EXPECT_EQ(written(), 5U);
    writer.add("a", 5, 1, kStart - seconds(99));
    EXPECT_EQ(written(), 5U);
  }
  EXPECT_EQ(events_of(read_file(path)).size(), 6U);
}

TEST(EventWriter, KeepsWhatIsNotFinite) {
  const TemporaryFolder folder;
  EventWriter writer(folder.path(), kStart);
  writer.add("a", 1, std::numeric_limits<double>::quiet_NaN(), kStart);
  writer.add("a", 2, -std::numeric_limits<double>::infinity(), kStart);
  writer.flush();
  const auto events = events_of(read_file(writer.path()));
  ASSERT_EQ(events.size(), 3U);
  EXPECT_TRUE(std::isnan(events[1].summary().value(0).simple_value()));
  EXPECT_EQ(events[2].summary().value(0).simple_value(), -std::numeric_limits<float>::infinity());
}

TEST(EventWriter, NamesAFolderThatCannotBeMade) {
  const TemporaryFolder folder;
  { LogFile(folder.file("taken")).append("a file"); }
  try {
    const EventWriter writer(folder.path() / "taken" / "run");
    ADD_FAILURE() << "was opened";
  } catch (const std::system_error& error) {
    EXPECT_THAT(error.what(), HasSubstr(folder.file("taken")));
  }
}

TEST(LogFile, DoesNotWaitForTheReaderOfAFifo) {
  const TemporaryFolder folder;
  ASSERT_EQ(mkfifo(folder.file("fifo").c_str(), 0600), 0);
  for (const bool continued : {false, true}) {
    EXPECT_THROW(LogFile(folder.file("fifo"), continued), std::system_error);
  }
}

TEST(LogFile, GoesOnBehindTheLastWholeLine) {
  const TemporaryFolder folder;
  const auto go_on_after = [&](const std::string& before) {
    LogFile(folder.file("log")).append(before);
    LogFile(folder.file("log"), true).append("new\n");
    return read_file(folder.file("log"));
  };
  EXPECT_EQ(go_on_after(""), "new\n");
  EXPECT_EQ(go_on_after("half"), "new\n");
  EXPECT_EQ(go_on_after("one\ntwo\n"), "one\ntwo\nnew\n");
  EXPECT_EQ(go_on_after("one\n" + std::string(10'000, 'x')), "one\nnew\n");
  EXPECT_EQ(go_on_after(std::string(10'000, 'x') + "\n"), std::string(10'000, 'x') + "\nnew\n");
  LogFile(folder.file("first"), true).append("new\n");
  EXPECT_EQ(read_file(folder.file("first")), "new\n");
}

TEST(LogFile, NamesAFolderThatIsNotThere) {
  const TemporaryFolder folder;
  try {
    const LogFile file(folder.file("absent/log"));
    ADD_FAILURE() << "was opened";
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code(), std::errc::no_such_file_or_directory);
    EXPECT_THAT(error.what(), HasSubstr("Cannot open " + folder.file("absent/log")));
  }
}

TEST(LogFile, NamesAFullDisk) {
  LogFile file("/dev/full");
  file.append("bytes");
  try {
    file.flush();
    ADD_FAILURE() << "was written";
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code(), std::errc::no_space_on_device);
    EXPECT_THAT(error.what(), HasSubstr("Cannot write to /dev/full"));
  }
}

}  // namespace
}  // namespace vision
