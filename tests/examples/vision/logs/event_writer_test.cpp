#include "examples/vision/logs/event_writer.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <system_error>

#include "tests/examples/vision/logs/event_reader.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_folder.h"

namespace vision {
namespace {

using hora::internal::test::read_file;
using hora::internal::test::TemporaryFolder;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::events_of;
using testing::HasSubstr;

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
    EXPECT_EQ(event.wall_time(), seconds_of(kStart + scalars[i].after_start));
    EXPECT_EQ(event.step(), scalars[i].step);
    ASSERT_EQ(event.summary().value_size(), 1);
    EXPECT_EQ(event.summary().value(0).tag(), scalars[i].tag);
    EXPECT_EQ(event.summary().value(0).simple_value(), static_cast<float>(scalars[i].value));
  }
}

TEST(EventWriter, WritesTheBytesOfTensorBoards) {
  const TemporaryFolder folder;
  EventWriter writer(folder.path(), seconds(10), kStart);
  for (const Scalar& scalar : scalars) {
    writer.add(scalar.tag, scalar.step, scalar.value, kStart + scalar.after_start);
  }
  writer.flush();
  EXPECT_EQ(read_file(writer.path()), read_file(SCALARS_TFEVENTS));
}

TEST(EventWriter, MakesFoldersAndNamesFilesAsTensorBoardFindsThem) {
  const TemporaryFolder folder;
  const EventWriter first(folder.path() / "runs" / "a run", seconds(10), kStart);
  const EventWriter second(folder.path() / "runs" / "a run", seconds(10), kStart);
  std::array<char, 256> host{};
  ASSERT_EQ(gethostname(host.data(), host.size() - 1), 0);
  const std::string name =
      "events.out.tfevents.1700000000." + std::string(host.data()) + "." + std::to_string(getpid());
  EXPECT_EQ(first.path(), folder.path() / "runs" / "a run" / name);
  EXPECT_EQ(second.path(), folder.path() / "runs" / "a run" / (name + ".1"));
}

TEST(EventWriter, FlushesAtIntervalsAndAtItsEnd) {
  const TemporaryFolder folder;
  std::filesystem::path path;
  {
    EventWriter writer(folder.path(), seconds(10), kStart);
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
  EventWriter writer(folder.path(), seconds(0), kStart);
  writer.add("a", 1, std::numeric_limits<double>::quiet_NaN(), kStart);
  writer.add("a", 2, -std::numeric_limits<double>::infinity(), kStart);
  const auto events = events_of(read_file(writer.path()));
  ASSERT_EQ(events.size(), 3U);
  EXPECT_TRUE(std::isnan(events[1].summary().value(0).simple_value()));
  EXPECT_EQ(events[2].summary().value(0).simple_value(), -std::numeric_limits<float>::infinity());
}

TEST(EventWriter, NamesAFolderThatCannotBeMade) {
  const TemporaryFolder folder;
  { LogFile(folder.file("taken"), LogFile::Existing::refused).append("a file"); }
  try {
    const EventWriter writer(folder.path() / "taken" / "run");
    ADD_FAILURE() << "was opened";
  } catch (const std::system_error& error) {
    EXPECT_THAT(error.what(), HasSubstr(folder.file("taken")));
  }
}

}  // namespace
}  // namespace vision
