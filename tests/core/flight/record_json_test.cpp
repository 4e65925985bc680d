#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "core/flight/record_reader.h"
#include "tests/core/flight/record_values.h"
#include "tests/support/read_file.h"
#include "tests/support/seed.h"
#include "tests/support/temporary_folder.h"

namespace hora::internal {
namespace {

using std::chrono::nanoseconds;
using testing::HasSubstr;

FlightRecord example() {
  FlightRecord record{.hora_version = "0.1.0",
                      .rank = 3,
                      .size = 4,
                      .node = 1,
                      .local_rank = 1,
                      .host = "b",
                      .pid = 4711,
                      .guard = 4710,
                      .state = RecordState::failed,
                      .begin = nanoseconds(1),
                      .begin_wall = nanoseconds(1'700'000'000'000'000'000),
                      .last_activity = nanoseconds(9),
                      .taken = nanoseconds(10),
                      .blocked = 1,
                      .cause = RecordedCause{"no \"way\"", 2, nanoseconds(8)},
                      .phase = "epoch 1",
                      .phase_at = nanoseconds(5),
                      .submitted = 2000,
                      .unreadable = 1,
                      .collectives = {},
                      .ended = RecordedEnd{9, 0, true, nanoseconds(11)},
                      .stopped = true};
  record.collectives.push_back({.name = "x\\n",
                                .set = 4'000'000'000,
                                .number = 12,
                                .kind = OperationKind::alltoall,
                                .op = ReduceOp::max,
                                .type = DataType::uint64,
                                .device = DeviceKind::cuda,
                                .outcome = RecordOutcome::failed,
                                .peers = 4,
                                .bytes = kMaxBytes,
                                .submitted = nanoseconds(2),
                                .ready = nanoseconds(3),
                                .started = nanoseconds(4),
                                .done = nanoseconds(5)});
  record.collectives.push_back({.name = "y"});
  return record;
}

std::string problem_with(const std::string& text) {
  const auto record = record_from_json(text);
  return record ? std::string() : record.error();
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, text.npos) << what;
  return at == text.npos ? text : text.replace(at, what.size(), by);
}

TEST(RecordJson, IsReadBack) {
  const FlightRecord record = example();
  EXPECT_EQ(record_from_json(to_json(record)).value(), record);
  EXPECT_EQ(record_from_json(to_json(FlightRecord{})).value(), FlightRecord{});
}

TEST(RecordJson, SaysWhatIsWrong) {
  const std::string text = to_json(example());
  EXPECT_THAT(problem_with(""), HasSubstr("no JSON"));
  EXPECT_THAT(problem_with(text.substr(0, text.size() / 2)), HasSubstr("cut off"));
  EXPECT_THAT(problem_with("[]"), HasSubstr("no object"));
  EXPECT_THAT(problem_with("7"), HasSubstr("no object"));
  EXPECT_THAT(problem_with("{}"), HasSubstr("hora_record is missing"));
  EXPECT_THAT(problem_with("{\"hora_record\":99}"), HasSubstr("another version of hora"));
  EXPECT_THAT(problem_with("{\"hora_record\":2}"), HasSubstr("hora_version is missing"));
  const auto with = [&](const std::string& what, const std::string& by) {
    return problem_with(replaced(text, what, by));
  };
  EXPECT_EQ(with("\"rank\":3", "\"rank\":-2"), "rank is out of bounds");
  EXPECT_EQ(with("\"rank\":3", "\"rank\":4294967299"), "rank is out of bounds");
  EXPECT_EQ(with("\"rank\":3", "\"rank\":3.5"), "rank is no whole number");
  EXPECT_EQ(with("\"rank\":3", "\"rank\":\"3\""), "rank is no whole number");
  EXPECT_EQ(with("\"host\":\"b\"", "\"host\":7"), "host is no text");
  EXPECT_EQ(with("\"state\":\"failed\"", "\"state\":\"fine\""), "state is \"fine\"");
  EXPECT_EQ(with("\"stopped\":true", "\"stopped\":1"), "stopped is neither true nor false");
  EXPECT_EQ(with("\"taken\":10", "\"taken\":-1"), "taken is out of bounds");
  EXPECT_EQ(with("\"signal\":9", "\"signal\":900"), "signal is out of bounds");
  EXPECT_EQ(with("\"kind\":\"alltoall\"", "\"kind\":\"all\""), "kind is \"all\"");
  EXPECT_EQ(with("\"bytes\":281474976710656", "\"bytes\":281474976710657"),
            "bytes is out of bounds");
  EXPECT_THAT(with("\"collectives\":[", "\"collectives\":7,\"x\":["), HasSubstr("no list"));
  EXPECT_EQ(with("\"collectives\":[", "\"collectives\":[7,"), "it is no object");
  FlightRecord many = example();
  many.collectives.resize(kRecordedCollectives + 1);
  EXPECT_THAT(problem_with(to_json(many)), HasSubstr("at most 1000"));
  EXPECT_THAT(problem_with(std::string(kLongestRecordFile + 1, ' ')), HasSubstr("longer than"));
}

TEST(RecordJson, TextsBecomePrintable) {
  const std::string text =
      replaced(to_json(example()), "\"host\":\"b\"", "\"host\":\"\\u001b[2J\"");
  EXPECT_EQ(record_from_json(text).value().host, "\\x1b[2J");
}

TEST(RecordJson, DamageIsRefusedOrReadAsValues) {
  const std::string text = to_json(example());
  std::mt19937_64 random = test::generator();
  for (int round = 0; round < 2000; ++round) {
    std::string damaged = text;
    damaged[random() % damaged.size()] = static_cast<char>(random() % 128);
    const auto record = record_from_json(damaged);
    if (record) {
      EXPECT_LE(record->collectives.size(), 2u);
    }
  }
}

TEST(RecordFile, IsWrittenIntoItsFolderForTheUserAlone) {
  const test::TemporaryFolder folder;
  const std::string inside = folder.file("records");
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(write_record(example(), inside).value(), inside + "/hora-record.3.json");
  }
  struct stat status {};
  ASSERT_EQ(::stat(inside.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0700U);
  ASSERT_EQ(::stat(record_file(inside, 3).c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  EXPECT_EQ(record_from_json(test::read_file(record_file(inside, 3))).value(), example());
}

TEST(RecordFile, FollowsNoLinks) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.file("precious")) << "kept";
  std::filesystem::create_symlink(folder.file("precious"), record_file(folder.path(), 3));
  EXPECT_THAT(write_record(example(), folder.path()).error(), HasSubstr("a link"));
  EXPECT_EQ(std::filesystem::file_size(folder.file("precious")), 4u);
}

TEST(RecordFile, SaysWhyThereIsNoFolder) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.file("file")) << "";
  EXPECT_THAT(write_record(example(), folder.file("file")).error(), HasSubstr("is no folder"));
  EXPECT_THAT(write_record(example(), folder.file("no/such")).error(),
              HasSubstr("cannot be made: No such file"));
}

}  // namespace
}  // namespace hora::internal
