#include "examples/vision/logs/training_log.h"

#include <gmock/gmock.h>

#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include "tests/examples/vision/logs/event_reader.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_folder.h"

namespace vision {
namespace {

using hora::internal::test::read_file;
using hora::internal::test::TemporaryFolder;
using nlohmann::json;

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
    for (const auto& event : test::events_of(read_file(entry.path()))) {
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
    EXPECT_THAT(error.what(), testing::HasSubstr("Cannot write to /dev/full"));
  }
}

}  // namespace
}  // namespace vision
