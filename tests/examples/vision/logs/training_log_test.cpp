// Trainings' logs, line by line and curve by curve: training_log.txt.
#include "examples/vision/logs/training_log.h"

#include <gmock/gmock.h>
#include <spdlog/fmt/fmt.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <limits>
#include <map>
#include <stdexcept>

#include "examples/vision/logs/event.pb.h"
#include "tests/examples/vision/temporary_folder.h"
#include "tests/support/read_file.h"

namespace vision {
namespace {

using hora::internal::test::read_file;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::TemporaryFolder;

const EventWriter::Time kStart{seconds(1'700'000'000)};

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

/// A curve a line: its tag, then STEP=VALUE.
std::string curves_in(const std::string& folder) {
  std::map<std::string, std::string> curves;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    for (const auto& event : events_of(read_file(entry.path()))) {
      for (const auto& value : event.summary().value()) {
        curves[value.tag()] += fmt::format(" {}={}", event.step(), value.simple_value());
      }
    }
  }
  std::string text;
  for (const auto& [tag, points] : curves) text += tag + ":" + points + "\n";
  return text;
}

/// Expects the golden text of `train`'s log, in both forms.
void expect_logged(const std::string& name, LogTargets targets,
                   const std::function<void(TrainingLog&)>& train) {
  const TemporaryFolder folder;
  targets.json = folder.file("log.json");
  targets.tensorboard = folder.file("run");
  {
    TrainingLog log(targets);
    train(log);
  }
  hora::internal::test::expect_golden("examples/vision/logs/training_log.txt", name,
                                      read_file(targets.json) + curves_in(targets.tensorboard));
}

// Two epochs of three steps, two steps an entry.
void train(TrainingLog& log) {
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
               kStart);
    }
    log.epoch({.loss = 2.0, .top1 = 10.0 * epoch, .top5 = 90.0, .validation_seconds = 0.75},
              kStart + seconds(1));
  }
}

TEST(TrainingLog, HasTheCourse) {
  expect_logged("course", {.every = 2}, train);
  TrainingLog nowhere({});
  train(nowhere);
}

TEST(TrainingLog, OfAResumedRunGoesOn) {
  expect_logged("resumed", {.every = 1}, [](TrainingLog& log) {
    log.run({.epochs = 3, .steps = 4, .resumed = ResumePoint{.epochs = 1, .steps = 2}});
    for (const std::size_t step : {3, 4}) {
      log.step(
          {.epoch = 2, .step = step, .steps = 4, .gpu_bytes = 1024.0 * static_cast<double>(step)},
          {});
    }
    log.epoch({.loss = 0.0}, {});
    log.step({.epoch = 3, .step = 1, .steps = 4}, {});
  });
}

TEST(TrainingLog, AnEpochWithoutAStepThatCountsHasNoLoss) {
  expect_logged("no loss", {}, [](TrainingLog& log) {
    log.run({.epochs = 1, .steps = 1});
    log.step({.epoch = 1, .step = 1, .steps = 1, .seconds = 1}, {});
    log.epoch({}, {});
  });
}

TEST(TrainingLog, LinesAreCompleteWhileTrainingGoesOn) {
  const TemporaryFolder folder;
  LogTargets targets{.json = folder.file("log.json"), .every = 1};
  TrainingLog(targets).run({});
  targets.append = true;
  TrainingLog log(targets);
  log.run({.data = "bytes that are no UTF-8: \xff"});
  log.step({.steps = 2, .loss = std::numeric_limits<double>::quiet_NaN()}, {});
  hora::internal::test::expect_golden("examples/vision/logs/training_log.txt", "no numbers",
                                      read_file(targets.json));
}

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

TEST(EventWriter, WritesTheBytesOfTensorBoardsIntoAFileThatItFinds) {
  const TemporaryFolder folder;
  EventWriter writer(folder.path() / "runs" / "a run", kStart);
  for (const Scalar& scalar : scalars) {
    writer.add(scalar.tag, scalar.step, scalar.value, kStart + scalar.after_start);
  }
  writer.flush();
  EXPECT_EQ(read_file(writer.path()), read_file(SCALARS_TFEVENTS));
  std::array<char, 256> host{};
  ASSERT_EQ(gethostname(host.data(), host.size() - 1), 0);
  const std::string name =
      "events.out.tfevents.1700000000." + std::string(host.data()) + "." + std::to_string(getpid());
  EXPECT_EQ(writer.path(), folder.path() / "runs" / "a run" / name);
}

TEST(EventWriter, FlushesAtIntervalsAndAtItsEnd) {
  const TemporaryFolder folder;
  std::filesystem::path path;
  const auto written = [&] { return events_of(read_file(path)).size(); };
  {
    EventWriter writer(folder.path(), kStart);
    path = writer.path();
    EXPECT_EQ(written(), 1U) << "TensorBoard finds out what the file is";
    using Row = std::pair<int, std::size_t>;  // time of an event in ms, and what is written then
    for (const auto& [time, count] : {Row{9'999, 1}, Row{10'000, 3}, Row{19'999, 3},
                                      Row{-100'000, 5} /* clock set back */, Row{-99'000, 5}}) {
      writer.add("a", 1, 1, kStart + milliseconds(time));
      EXPECT_EQ(written(), count) << time;
    }
  }
  EXPECT_EQ(written(), 6U);
}

TEST(EventWriter, KeepsWhatIsNotFinite) {
  const TemporaryFolder folder;
  EventWriter writer(folder.path(), kStart);
  writer.add("nan", 1, std::numeric_limits<double>::quiet_NaN(), kStart);
  writer.add("infinite", 2, -std::numeric_limits<double>::infinity(), kStart);
  writer.flush();
  EXPECT_EQ(curves_in(folder.path()), "infinite: 2=-inf\nnan: 1=nan\n");
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

// It does not wait for the reader of a FIFO.
TEST(LogFile, NamesWhatCannotBeWritten) {
  const TemporaryFolder folder;
  ASSERT_EQ(mkfifo(folder.file("fifo").c_str(), 0600), 0);
  LogFile(folder.file("taken")).append("a file");
  std::string errors;
  const auto note = [&](const auto& call) {
    errors += test::replaced(test::message_of(call), folder.path(), "FOLDER") + "\n";
  };
  for (const bool continued : {false, true}) note([&] { LogFile(folder.file("fifo"), continued); });
  note([&] { LogFile(folder.file("absent/log")); });
  note([&] { EventWriter(folder.path() / "taken" / "run"); });
  note([] { TrainingLog({.json = "/dev/full"}).run({}); });
  note([] {
    LogFile file("/dev/full");
    file.append("bytes");
    file.flush();
  });
  hora::internal::test::expect_golden("examples/vision/logs/training_log.txt", "errors", errors);
}

}  // namespace
}  // namespace vision
