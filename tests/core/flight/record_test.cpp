// A record: its memory, its writer and its reader in one process and in two; as JSON and as a file.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "core/flight/flight_recorder.h"
#include "tests/support/golden.h"
#include "tests/support/read_file.h"
#include "tests/support/seed.h"
#include "tests/support/temporary_folder.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using std::chrono::nanoseconds;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

RecordTicket submit(const RecordWriter& writer, const std::string& name) {
  return writer.submitted(name, kWorld, {}, 4, 2, 1ns);
}

/// A record that has begun.
class Record : public testing::Test {
 protected:
  Record() { writer_.begin(); }
  FlightRecord read() const { return read_record(memory_.layout(), record_now()).value(); }

  const RecordMemory memory_ = RecordMemory::anonymous().value();
  const RecordWriter writer_{memory_.layout()};
};

/// As a writer leaves it, but for its times, and as that of a rank which has failed.
FlightRecord example() {
  const RecordMemory memory = RecordMemory::anonymous().value();
  const RecordWriter writer(memory.layout());
  writer.begin();
  writer.identify(
      {.hora_version = "0.1.0", .host = "b", .rank = 3, .size = 4, .node = 1, .local_rank = 1});
  writer.set_state(RecordState::initialised);
  writer.note_phase("epoch\n3");
  writer.blocked(true);
  submit(writer, "another");
  const Signature signature{.kind = OperationKind::alltoall,
                            .type = DataType::bfloat16,
                            .op = ReduceOp::average,
                            .device = DeviceKind::cuda};
  const RecordTicket ticket =
      writer.submitted("x\n", ProcessSet(4'000'000'000), signature, kMaxBytes, 5, 10ns);
  writer.decided(ticket, 7, 20ns);
  writer.started(ticket, 30ns);
  writer.finished(ticket, RecordOutcome::done, 40ns);
  FlightRecord record = read_record(memory.layout(), 5s, /*most=*/1).value();
  EXPECT_EQ(record.state, RecordState::initialised);
  EXPECT_EQ(record.pid, ::getpid());
  EXPECT_GT(record.begin_wall, record.begin);
  EXPECT_GE(std::min(record.last_activity, record.phase_at), record.begin);
  record.begin = 1ns;
  record.last_activity = 9ns;
  record.phase_at = 5ns;
  record.begin_wall = nanoseconds(1'700'000'000'000'000'000);
  record.pid = 4711;
  record.guard = 4710;
  record.state = RecordState::failed;
  record.cause = RecordedCause{"no \"way\"", 2, 8ns};
  record.unreadable = 1;
  record.ended = RecordedEnd{9, 0, true, 11ns};
  record.stopped = true;
  return record;
}

TEST_F(Record, HoldsTheRankWhatItDoesAndItsCollectives) {
  EXPECT_EQ(read_record(RecordMemory::anonymous().value().layout(), {}).value().pid, 0);
  EXPECT_EQ(read().rank, -1);
  EXPECT_EQ(read().state, RecordState::starting);
  test::expect_golden("core/flight/records.txt", "example", to_json(example()));
}

TEST_F(Record, KeepsTheFirstCauseAndThatTheRankHasFailed) {
  writer_.fail("the first\nof two", 3);
  writer_.fail("the second", 0);
  writer_.set_state(RecordState::shut_down);
  const FlightRecord record = read();
  EXPECT_EQ(record.cause.value().text, "the first\\nof two");
  EXPECT_EQ(record.cause->code, 3u);
  EXPECT_GE(record.cause->time, record.begin);
  EXPECT_EQ(record.state, RecordState::failed);
  submit(writer_, "gone");
  writer_.begin();
  EXPECT_FALSE(read().cause);
  EXPECT_EQ(read().submitted, 0u);
  EXPECT_EQ(read().state, RecordState::starting);
}

TEST_F(Record, CutsTextsThatAreTooLong) {
  const std::string name =
      "model.encoder.layer.11.attention.self.query.weight.and.one.more.gradient";
  const std::string longest(kRecordNameBytes, 'n');
  submit(writer_, name);
  submit(writer_, longest);
  writer_.fail(std::string(2000, 'c'), 0);
  // The character at the end would be cut in the middle.
  writer_.note_phase(std::string(kRecordPhaseBytes - 1, 'p') + "\u00e9");
  const FlightRecord record = read();
  ASSERT_THAT(record.collectives, SizeIs(2));
  EXPECT_EQ(record.collectives[0].name, name.substr(0, 24) + "..." + name.substr(name.size() - 29));
  EXPECT_EQ(record.collectives[1].name, longest);
  EXPECT_EQ(record.cause->text, std::string(kRecordCauseBytes, 'c'));
  EXPECT_EQ(record.phase, std::string(kRecordPhaseBytes - 1, 'p'));
}

TEST_F(Record, HoldsTheLastThousand) {
  const RecordTicket first = submit(writer_, "0");
  for (int i = 1; i < 2500; ++i) submit(writer_, std::to_string(i));
  // Its entry belongs to another one.
  writer_.finished(first, RecordOutcome::failed, 5ns);
  const FlightRecord record = read();
  EXPECT_EQ(record.submitted, 2500u);
  EXPECT_EQ(record.unreadable, 0u);
  ASSERT_THAT(record.collectives, SizeIs(kRecordedCollectives));
  for (std::size_t i = 0; i < kRecordedCollectives; ++i) {
    EXPECT_EQ(record.collectives[i].name, std::to_string(1500 + i));
    EXPECT_EQ(record.collectives[i].outcome, RecordOutcome::open);
  }
}

TEST_F(Record, AHalfWrittenEntryIsDropped) {
  for (int i = 0; i < 3; ++i) submit(writer_, std::to_string(i));
  // As a rank leaves it that is killed between two stores.
  memory_.layout().entries[1].begun.store(kRecordedCollectives + 2);
  EXPECT_THAT(read().collectives, SizeIs(2));
  EXPECT_EQ(read().unreadable, 1u);
  // While it is claimed by another thread, a writer leaves it alone.
  for (std::size_t i = 3; i < kRecordedCollectives; ++i) submit(writer_, "more");
  EXPECT_NE(submit(writer_, "0 again"), kNoTicket);
  EXPECT_EQ(submit(writer_, "1 again"), kNoTicket);
  EXPECT_EQ(read().unreadable, 1u);
  EXPECT_EQ(read().collectives.back().name, "0 again");
  // A new beginning repairs it.
  writer_.begin();
  EXPECT_THAT(read().collectives, IsEmpty());
  for (int i = 0; i < 3; ++i) submit(writer_, std::to_string(i));
  EXPECT_THAT(read().collectives, SizeIs(3));
}

// Each name is written with a number of bytes that belongs to it.
TEST_F(Record, IsWholeWhileSeveralThreadsWrite) {
  std::atomic<bool> enough{false};
  std::vector<std::jthread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; !enough.load(); ++i) {
        const std::string name =
            std::to_string(t) + std::string(static_cast<std::size_t>(i % 50), 'x');
        const auto ticket = writer_.submitted(name, kWorld, {}, name.size(), 2, 1ns);
        writer_.finished(ticket, RecordOutcome::done, 2ns);
        writer_.note_phase(name);
        // Slow enough for a reader to find whole entries.
        if (i % 100 == 0) std::this_thread::sleep_for(50us);
      }
    });
  }
  for (std::size_t seen = 0; seen < 20000 && !HasFailure();) {
    const FlightRecord record = read();
    EXPECT_LE(record.collectives.size() + record.unreadable, kRecordedCollectives);
    for (const RecordedCollective& one : record.collectives) {
      EXPECT_EQ(one.name.size(), one.bytes) << one.name;
      ++seen;
    }
  }
  enough.store(true);
}

TEST_F(Record, ArbitraryBytesAreReadAsValuesWithinTheirBounds) {
  RecordLayout& layout = memory_.layout();
  std::mt19937_64 random = test::generator();
  for (int round = 0; round < 20; ++round) {
    auto* const words = reinterpret_cast<std::uint64_t*>(&layout);
    for (std::size_t i = 0; i < kRecordBytes / sizeof *words; ++i) words[i] = random();
    EXPECT_FALSE(read_record(layout, {}));
    layout.header.magic.store(kRecordMagic);
    EXPECT_FALSE(read_record(layout, {}));
    layout.header.version.store(kRecordVersion);
    // Entries that look whole.
    const std::uint64_t next = layout.header.next.load();
    for (std::uint64_t ticket = next - kRecordedCollectives; ticket != next; ++ticket) {
      RecordEntry& entry = layout.entries[ticket % kRecordedCollectives];
      entry.begun.store(static_cast<std::uint32_t>(ticket + 1));
      entry.written.store(static_cast<std::uint32_t>(ticket + 1));
      if (random() % 2 == 0) entry.what.store(static_cast<std::uint32_t>(random() % 4));
      if (random() % 2 == 0) entry.outcome.store(static_cast<std::uint32_t>(random() % 3));
    }
    const FlightRecord record = read();
    EXPECT_EQ(record.collectives.size() + record.unreadable, kRecordedCollectives);
    EXPECT_GE(record.rank, -1);
    for (const RecordedCollective& one : record.collectives) {
      EXPECT_LE(one.kind, last_of<OperationKind>);
      EXPECT_LE(one.outcome, last_of<RecordOutcome>);
      EXPECT_LE(one.bytes, kMaxBytes);
      EXPECT_GE(one.submitted.count(), 0);
    }
    layout.arrivals.sequence.store(2);
    const auto arrivals = read_arrivals(layout.arrivals).value();
    EXPECT_LE(arrivals.rows.size(), kRecordedArrivals);
    for (const RankArrivals& row : arrivals.rows) {
      EXPECT_GE(row.rank, 0);
      EXPECT_LT(row.phase, kStepPhases);
      EXPECT_GE(std::min(row.median, row.p99), 0ns);
    }
  }
}

std::string refusal(const std::string& path) {
  const auto memory = RecordMemory::open(path);
  return memory ? std::string() : memory.error();
}

TEST(RecordMemory, IsSharedByThoseWhoOpenItAndCannotBeCut) {
  const RecordMemory guard = RecordMemory::create().value();
  const RecordMemory rank = RecordMemory::open(guard.path()).value();
  rank.layout().header.next.store(17);
  EXPECT_EQ(guard.layout().header.next.load(), 17u);
  EXPECT_EQ(rank.layout().header.guard.load(), ::getpid());
  EXPECT_EQ(rank.path(), "");
  EXPECT_NE(::truncate(guard.path().c_str(), 4096), 0);
}

TEST(RecordMemory, RefusesWhatItHasNotMade) {
  const test::TemporaryFolder folder;
  const std::string pipe = folder.file("pipe"), file = folder.file("file");
  EXPECT_THAT(refusal(folder.file("missing")), HasSubstr("No such file"));
  EXPECT_THAT(refusal(folder.path()), HasSubstr("Is a directory"));
  ASSERT_EQ(::mkfifo(pipe.c_str(), S_IRWXU), 0);
  EXPECT_THAT(refusal(pipe), HasSubstr("it is no file"));
  std::ofstream(file) << "mine";
  EXPECT_THAT(refusal(file), HasSubstr("it has 4 bytes instead of"));
  std::filesystem::resize_file(file, kRecordBytes);
  EXPECT_THAT(refusal(file), HasSubstr("it is no record"));
  EXPECT_THAT(test::read_file(file), testing::StartsWith("mine"));
}

TEST(RecordMemory, BelongsToOneLivingProcessOfOneVersion) {
  const RecordMemory guard = RecordMemory::create().value();
  const pid_t other = ::fork();
  ASSERT_GE(other, 0);
  while (other == 0) ::pause();
  guard.layout().header.pid.store(other);
  EXPECT_THAT(refusal(guard.path()),
              HasSubstr("process " + std::to_string(other) + " writes there"));
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
  EXPECT_EQ(refusal(guard.path()), "");
  guard.layout().header.version.store(kRecordVersion + 1);
  EXPECT_THAT(refusal(guard.path()), HasSubstr("different versions of hora"));
}

TEST(RecordArrivals, HoldWhoCameLastAsFarAsThereIsPlace) {
  const RecordMemory memory = RecordMemory::anonymous().value();
  RecordArrivals& arrivals = memory.layout().arrivals;
  EXPECT_FALSE(read_arrivals(arrivals));
  const auto write = [&](const std::vector<RankArrivals>& rows) {
    write_arrivals(arrivals, 5s, 100, 10, rows);
  };
  const std::vector<RankArrivals> rows{{3, 70, 4ms, 9ms, 1}, {0, 30, 1ms, 2ms, 0}};
  write(rows);
  const auto read = read_arrivals(arrivals).value();
  EXPECT_EQ(read.at, 5s);
  EXPECT_EQ(read.decisions, 100u);
  EXPECT_EQ(read.steps, 10u);
  EXPECT_EQ(read.rows, rows);
  write(std::vector<RankArrivals>(kRecordedArrivals + 9, {7, 1, 1ms, 1ms, 0}));
  EXPECT_THAT(read_arrivals(arrivals)->rows, SizeIs(kRecordedArrivals));
  // A writer that died.
  arrivals.sequence.fetch_add(1);
  EXPECT_FALSE(read_arrivals(arrivals));
  write(rows);
  EXPECT_THAT(read_arrivals(arrivals)->rows, SizeIs(2));
  RecordWriter(memory.layout()).begin();
  EXPECT_FALSE(read_arrivals(arrivals));
}

// All that is written at once belongs together.
TEST(RecordArrivals, AreWholeWhileTheyAreWritten) {
  const RecordMemory memory = RecordMemory::anonymous().value();
  RecordArrivals& arrivals = memory.layout().arrivals;
  std::atomic<bool> enough{false};
  std::jthread writer([&] {
    std::vector<RankArrivals> rows(kRecordedArrivals);
    for (std::uint64_t n = 1; !enough.load(); ++n) {
      for (RankArrivals& row : rows) row.last = n;
      write_arrivals(arrivals, {}, n, n, rows);
      if (n % 1000 == 0) std::this_thread::sleep_for(50us);
    }
  });
  for (int seen = 0; seen < 20000 && !HasFailure();) {
    const auto read = read_arrivals(arrivals);
    if (!read) continue;
    ++seen;
    EXPECT_EQ(read->steps, read->decisions);
    EXPECT_THAT(read->rows, SizeIs(kRecordedArrivals));
    for (const RankArrivals& row : read->rows) EXPECT_EQ(row.last, read->decisions);
  }
  enough.store(true);
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

TEST(RecordJson, IsReadBackAndItsTextsBecomePrintable) {
  for (const FlightRecord& record : {example(), FlightRecord{}}) {
    EXPECT_EQ(record_from_json(to_json(record)).value(), record);
  }
  const std::string text =
      replaced(to_json(example()), "\"host\":\"b\"", "\"host\":\"\\u001b[2J\"");
  EXPECT_EQ(record_from_json(text).value().host, "\\x1b[2J");
}

TEST(RecordJson, SaysWhatIsWrong) {
  const std::string text = to_json(example());
  std::string problems;
  for (const std::string& bad :
       {std::string(), text.substr(0, text.size() / 2), std::string("[]"), std::string("7"),
        std::string("{}"), std::string("{\"hora_record\":99}"), std::string("{\"hora_record\":2}"),
        std::string(kLongestRecordFile + 1, ' ')}) {
    problems += problem_with(bad) + "\n";
  }
  const std::pair<const char*, const char*> changes[] = {
      {"\"rank\":3", "\"rank\":-2"},
      {"\"rank\":3", "\"rank\":4294967299"},
      {"\"rank\":3", "\"rank\":3.5"},
      {"\"rank\":3", "\"rank\":\"3\""},
      {"\"host\":\"b\"", "\"host\":7"},
      {"\"state\":\"failed\"", "\"state\":\"fine\""},
      {"\"stopped\":true", "\"stopped\":1"},
      {"\"taken\":5", "\"taken\":-5"},
      {"\"signal\":9", "\"signal\":900"},
      {"\"ended\":{", "\"ended\":7,\"x\":{"},
      {"\"kind\":\"alltoall\"", "\"kind\":\"all\""},
      {"\"bytes\":281474976710656", "\"bytes\":281474976710657"},
      {"\"collectives\":[", "\"collectives\":7,\"x\":["},
      {"\"collectives\":[", "\"collectives\":[7,"}};
  for (const auto& [good, bad] : changes) {
    problems += problem_with(replaced(text, good, bad)) + "\n";
  }
  FlightRecord many = example();
  many.collectives.resize(kRecordedCollectives + 1);
  problems += problem_with(to_json(many));
  test::expect_golden("core/flight/records.txt", "problems", problems);
}

TEST(RecordFile, IsWrittenIntoItsFolderForTheUserAlone) {
  const test::TemporaryFolder folder;
  const std::string inside = folder.file("records");
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(write_record(example(), inside).value(), inside + "/hora-record.3.json");
  }
  const std::string file = record_file(inside, 3);
  EXPECT_EQ(std::filesystem::status(inside).permissions(), std::filesystem::perms{0700});
  EXPECT_EQ(std::filesystem::status(file).permissions(), std::filesystem::perms{0600});
  EXPECT_EQ(record_from_json(test::read_file(file)).value(), example());
}

TEST(RecordFile, SaysWhyItCannotBeWritten) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.file("precious")) << "kept";
  std::filesystem::create_symlink(folder.file("precious"), record_file(folder.path(), 3));
  EXPECT_THAT(write_record(example(), folder.path()).error(), HasSubstr("a link"));
  EXPECT_EQ(test::read_file(folder.file("precious")), "kept");
  EXPECT_THAT(write_record(example(), folder.file("precious")).error(), HasSubstr("is no folder"));
  EXPECT_THAT(write_record(example(), folder.file("no/such")).error(),
              HasSubstr("cannot be made: No such file"));
}

}  // namespace
}  // namespace hora::internal
