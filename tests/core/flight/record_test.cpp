// A record: its memory, its writer and its reader in one process and in two; as JSON and as a file.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/flight/flight_recorder.h"
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

RecordMemory own_memory() {
  return RecordMemory::anonymous().value();
}

FlightRecord read(const RecordMemory& memory) {
  return read_record(memory.layout(), record_now()).value();
}

RecordTicket submit(const RecordWriter& writer, const std::string& name) {
  return writer.submitted(name, kWorld, {}, 4, 2, 1ns);
}

TEST(Record, HoldsTheRankWhatItDoesAndItsCollectives) {
  const RecordMemory memory = own_memory();
  const RecordWriter writer(memory.layout());
  EXPECT_EQ(read(memory).pid, 0);
  writer.begin();
  EXPECT_EQ(read(memory).rank, -1);
  EXPECT_EQ(read(memory).state, RecordState::starting);
  writer.identify(
      {.hora_version = "0.1.0", .host = "node7", .rank = 3, .size = 4, .node = 1, .local_rank = 1});
  writer.set_state(RecordState::initialised);
  writer.note_phase("epoch\n3");
  writer.blocked(true);
  submit(writer, "another");
  const Signature signature{
      .kind = OperationKind::reduce_scatter, .type = DataType::bfloat16, .op = ReduceOp::average};
  const RecordTicket ticket = writer.submitted("loss", ProcessSet(3), signature, 1234, 5, 10ns);
  writer.decided(ticket, 7, 20ns);
  writer.started(ticket, 30ns);
  writer.finished(ticket, RecordOutcome::done, 40ns);
  FlightRecord record = read_record(memory.layout(), 5s, /*most=*/1).value();
  EXPECT_GT(record.begin_wall, record.begin);
  EXPECT_GE(record.last_activity, record.begin);
  EXPECT_GE(record.phase_at, record.begin);
  EXPECT_EQ(record, (FlightRecord{.hora_version = "0.1.0",
                                  .rank = 3,
                                  .size = 4,
                                  .node = 1,
                                  .local_rank = 1,
                                  .host = "node7",
                                  .pid = ::getpid(),
                                  .state = RecordState::initialised,
                                  .begin = record.begin,
                                  .begin_wall = record.begin_wall,
                                  .last_activity = record.last_activity,
                                  .taken = 5s,
                                  .blocked = 1,
                                  .phase = "epoch\\n3",
                                  .phase_at = record.phase_at,
                                  .submitted = 2,
                                  .collectives = {{.name = "loss",
                                                   .set = 3,
                                                   .number = 7,
                                                   .kind = OperationKind::reduce_scatter,
                                                   .op = ReduceOp::average,
                                                   .type = DataType::bfloat16,
                                                   .outcome = RecordOutcome::done,
                                                   .peers = 5,
                                                   .bytes = 1234,
                                                   .submitted = 10ns,
                                                   .ready = 20ns,
                                                   .started = 30ns,
                                                   .done = 40ns}}}));
}

TEST(Record, KeepsTheFirstCauseAndThatTheRankHasFailed) {
  const RecordMemory memory = own_memory();
  const RecordWriter writer(memory.layout());
  writer.begin();
  writer.fail("the first\nof two", 3);
  writer.fail("the second", 0);
  writer.set_state(RecordState::shut_down);
  const FlightRecord record = read(memory);
  EXPECT_EQ(record.cause.value().text, "the first\\nof two");
  EXPECT_EQ(record.cause->code, 3u);
  EXPECT_GE(record.cause->time, record.begin);
  EXPECT_EQ(record.state, RecordState::failed);
  submit(writer, "gone");
  writer.begin();
  EXPECT_FALSE(read(memory).cause);
  EXPECT_EQ(read(memory).submitted, 0u);
  EXPECT_EQ(read(memory).state, RecordState::starting);
}

TEST(Record, CutsTextsThatAreTooLong) {
  const RecordMemory memory = own_memory();
  const RecordWriter writer(memory.layout());
  writer.begin();
  const std::string name =
      "model.encoder.layer.11.attention.self.query.weight.and.one.more.gradient";
  submit(writer, name);
  submit(writer, std::string(kRecordNameBytes, 'n'));
  writer.fail(std::string(2000, 'c'), 0);
  // The character at the end would be cut in the middle.
  writer.note_phase(std::string(kRecordPhaseBytes - 1, 'p') + "\u00e9");
  const FlightRecord record = read(memory);
  ASSERT_THAT(record.collectives, SizeIs(2));
  EXPECT_EQ(record.collectives[0].name, name.substr(0, 24) + "..." + name.substr(name.size() - 29));
  EXPECT_EQ(record.collectives[1].name, std::string(kRecordNameBytes, 'n'));
  EXPECT_EQ(record.cause->text, std::string(kRecordCauseBytes, 'c'));
  EXPECT_EQ(record.phase, std::string(kRecordPhaseBytes - 1, 'p'));
}

TEST(Record, HoldsTheLastThousand) {
  const RecordMemory memory = own_memory();
  const RecordWriter writer(memory.layout());
  writer.begin();
  const RecordTicket first = submit(writer, "0");
  for (int i = 1; i < 2500; ++i) submit(writer, std::to_string(i));
  // Its entry belongs to another one.
  writer.finished(first, RecordOutcome::failed, 5ns);
  const FlightRecord record = read(memory);
  EXPECT_EQ(record.submitted, 2500u);
  EXPECT_EQ(record.unreadable, 0u);
  ASSERT_THAT(record.collectives, SizeIs(kRecordedCollectives));
  for (std::size_t i = 0; i < kRecordedCollectives; ++i) {
    EXPECT_EQ(record.collectives[i].name, std::to_string(1500 + i));
    EXPECT_EQ(record.collectives[i].outcome, RecordOutcome::open);
  }
}

TEST(Record, AHalfWrittenEntryIsDropped) {
  const RecordMemory memory = own_memory();
  const RecordWriter writer(memory.layout());
  writer.begin();
  for (int i = 0; i < 3; ++i) submit(writer, std::to_string(i));
  // As a rank leaves it that is killed between two stores.
  memory.layout().entries[1].begun.store(kRecordedCollectives + 2);
  FlightRecord record = read(memory);
  EXPECT_THAT(record.collectives, SizeIs(2));
  EXPECT_EQ(record.unreadable, 1u);
  // While it is claimed by another thread, a writer leaves it alone.
  for (std::size_t i = 3; i < kRecordedCollectives; ++i) submit(writer, "more");
  EXPECT_NE(submit(writer, "0 again"), kNoTicket);
  EXPECT_EQ(submit(writer, "1 again"), kNoTicket);
  record = read(memory);
  EXPECT_EQ(record.unreadable, 1u);
  EXPECT_EQ(record.collectives.back().name, "0 again");
  // A new beginning repairs it.
  writer.begin();
  EXPECT_THAT(read(memory).collectives, IsEmpty());
  for (int i = 0; i < 3; ++i) submit(writer, std::to_string(i));
  EXPECT_THAT(read(memory).collectives, SizeIs(3));
}

// Each name is written with a number of bytes that belongs to it.
TEST(Record, IsWholeWhileSeveralThreadsWrite) {
  const RecordMemory memory = own_memory();
  const RecordWriter writer(memory.layout());
  writer.begin();
  constexpr std::size_t kEnough = 20000;
  std::atomic<bool> enough{false};
  std::vector<std::jthread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; !enough.load(); ++i) {
        const std::string name =
            std::to_string(t) + std::string(static_cast<std::size_t>(i % 50), 'x');
        const auto ticket = writer.submitted(name, kWorld, {}, name.size(), 2, 1ns);
        writer.finished(ticket, RecordOutcome::done, 2ns);
        writer.note_phase(name);
        // Slow enough for a reader to find whole entries.
        if (i % 100 == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    });
  }
  for (std::size_t seen = 0; seen < kEnough && !HasFailure();) {
    const FlightRecord record = read(memory);
    EXPECT_LE(record.collectives.size() + record.unreadable, kRecordedCollectives);
    for (const RecordedCollective& one : record.collectives) {
      EXPECT_EQ(one.name.size(), one.bytes) << one.name;
      ++seen;
    }
  }
  enough.store(true);
}

// The guard reads what a killed rank has written.
TEST(Record, OutlivesTheProcessThatWrites) {
  const RecordMemory memory = RecordMemory::create().value();
  const pid_t rank = ::fork();
  ASSERT_GE(rank, 0);
  if (rank == 0) {
    const auto own = RecordMemory::open(memory.path());
    if (!own) ::_exit(3);
    const RecordWriter writer(own->layout());
    writer.begin();
    writer.set_state(RecordState::initialised);
    submit(writer, "last");
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(rank, &status, 0), rank);
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  const FlightRecord record = read(memory);
  EXPECT_EQ(record.pid, rank);
  EXPECT_EQ(record.guard, ::getpid());
  EXPECT_EQ(record.state, RecordState::initialised);
  ASSERT_THAT(record.collectives, SizeIs(1));
  EXPECT_EQ(record.collectives[0].name, "last");
}

TEST(Record, ArbitraryBytesAreReadAsValuesWithinTheirBounds) {
  const RecordMemory memory = own_memory();
  std::mt19937_64 random = test::generator();
  for (int round = 0; round < 20; ++round) {
    auto* const words = reinterpret_cast<std::uint64_t*>(&memory.layout());
    for (std::size_t i = 0; i < kRecordBytes / sizeof *words; ++i) words[i] = random();
    EXPECT_FALSE(read_record(memory.layout(), {}));
    memory.layout().header.magic.store(kRecordMagic);
    EXPECT_FALSE(read_record(memory.layout(), {}));
    memory.layout().header.version.store(kRecordVersion);
    // Entries that look whole.
    const std::uint64_t next = memory.layout().header.next.load();
    for (std::uint64_t ticket = next - kRecordedCollectives; ticket != next; ++ticket) {
      RecordEntry& entry = memory.layout().entries[ticket % kRecordedCollectives];
      entry.begun.store(static_cast<std::uint32_t>(ticket + 1));
      entry.written.store(static_cast<std::uint32_t>(ticket + 1));
      if (random() % 2 == 0) entry.what.store(static_cast<std::uint32_t>(random() % 4));
      if (random() % 2 == 0) entry.outcome.store(static_cast<std::uint32_t>(random() % 3));
    }
    const FlightRecord record = read(memory);
    EXPECT_EQ(record.collectives.size() + record.unreadable, kRecordedCollectives);
    EXPECT_GE(record.rank, -1);
    for (const RecordedCollective& one : record.collectives) {
      EXPECT_LE(one.kind, last_of<OperationKind>);
      EXPECT_LE(one.outcome, last_of<RecordOutcome>);
      EXPECT_LE(one.bytes, kMaxBytes);
      EXPECT_GE(one.submitted.count(), 0);
    }
    memory.layout().arrivals.sequence.store(2);
    const auto arrivals = read_arrivals(memory.layout().arrivals).value();
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
  EXPECT_THAT(refusal(folder.file("missing")), HasSubstr("No such file"));
  EXPECT_THAT(refusal(folder.path()), HasSubstr("Is a directory"));
  const std::string pipe = folder.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), S_IRWXU), 0);
  EXPECT_THAT(refusal(pipe), HasSubstr("it is no file"));
  const std::string file = folder.file("file");
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
  if (other == 0) {
    ::pause();
    ::_exit(0);
  }
  guard.layout().header.pid.store(other);
  EXPECT_THAT(refusal(guard.path()),
              HasSubstr("process " + std::to_string(other) + " writes there"));
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
  EXPECT_EQ(refusal(guard.path()), "");
  guard.layout().header.version.store(kRecordVersion + 1);
  EXPECT_THAT(refusal(guard.path()), HasSubstr("different versions of hora"));
}

void write_rows(RecordArrivals& arrivals, std::span<const RankArrivals> rows) {
  write_arrivals(arrivals, 5s, 100, 10, rows);
}

TEST(RecordArrivals, HoldWhoCameLastAsFarAsThereIsPlace) {
  const RecordMemory memory = own_memory();
  RecordArrivals& arrivals = memory.layout().arrivals;
  EXPECT_FALSE(read_arrivals(arrivals));
  const std::vector<RankArrivals> rows{{3, 70, 4ms, 9ms, 1}, {0, 30, 1ms, 2ms, 0}};
  write_rows(arrivals, rows);
  const auto read = read_arrivals(arrivals).value();
  EXPECT_EQ(read.at, 5s);
  EXPECT_EQ(read.decisions, 100u);
  EXPECT_EQ(read.steps, 10u);
  EXPECT_EQ(read.rows, rows);
  const std::vector<RankArrivals> many(kRecordedArrivals + 9, {7, 1, 1ms, 1ms, 0});
  write_rows(arrivals, many);
  EXPECT_THAT(read_arrivals(arrivals)->rows, SizeIs(kRecordedArrivals));
  // A writer that died.
  arrivals.sequence.fetch_add(1);
  EXPECT_FALSE(read_arrivals(arrivals));
  write_rows(arrivals, rows);
  EXPECT_THAT(read_arrivals(arrivals)->rows, SizeIs(2));
  RecordWriter(memory.layout()).begin();
  EXPECT_FALSE(read_arrivals(arrivals));
}

// All that is written at once belongs together.
TEST(RecordArrivals, AreWholeWhileTheyAreWritten) {
  const RecordMemory memory = own_memory();
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
                                .submitted = 2ns,
                                .ready = 3ns,
                                .started = 4ns,
                                .done = 5ns});
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
  const std::string too_long(kLongestRecordFile + 1, ' ');
  for (const auto& [bad, problem] :
       std::map<std::string, std::string>{{"", "no JSON"},
                                          {text.substr(0, text.size() / 2), "cut off"},
                                          {"[]", "no object"},
                                          {"7", "no object"},
                                          {"{}", "hora_record is missing"},
                                          {"{\"hora_record\":99}", "another version of hora"},
                                          {"{\"hora_record\":2}", "hora_version is missing"},
                                          {too_long, "longer than"}}) {
    EXPECT_THAT(problem_with(bad), HasSubstr(problem)) << bad.substr(0, 100);
  }
  struct Case {
    const char* good;
    const char* bad;
    const char* problem;
  };
  for (const Case& each :
       {Case{"\"rank\":3", "\"rank\":-2", "rank is out of bounds"},
        Case{"\"rank\":3", "\"rank\":4294967299", "rank is out of bounds"},
        Case{"\"rank\":3", "\"rank\":3.5", "rank is no whole number"},
        Case{"\"rank\":3", "\"rank\":\"3\"", "rank is no whole number"},
        Case{"\"host\":\"b\"", "\"host\":7", "host is no text"},
        Case{"\"state\":\"failed\"", "\"state\":\"fine\"", "state is \"fine\""},
        Case{"\"stopped\":true", "\"stopped\":1", "stopped is neither true nor false"},
        Case{"\"taken\":10", "\"taken\":-1", "taken is out of bounds"},
        Case{"\"signal\":9", "\"signal\":900", "signal is out of bounds"},
        Case{"\"ended\":{", "\"ended\":7,\"x\":{", "it is no object"},
        Case{"\"kind\":\"alltoall\"", "\"kind\":\"all\"", "kind is \"all\""},
        Case{"\"bytes\":281474976710656", "\"bytes\":281474976710657", "bytes is out of bounds"},
        Case{"\"collectives\":[", "\"collectives\":7,\"x\":[",
             "collectives is no list of at most 1000"},
        Case{"\"collectives\":[", "\"collectives\":[7,", "it is no object"}}) {
    EXPECT_EQ(problem_with(replaced(text, each.good, each.bad)), each.problem);
  }
  FlightRecord many = example();
  many.collectives.resize(kRecordedCollectives + 1);
  EXPECT_THAT(problem_with(to_json(many)), HasSubstr("at most 1000"));
}

TEST(RecordJson, TextsBecomePrintable) {
  const std::string text =
      replaced(to_json(example()), "\"host\":\"b\"", "\"host\":\"\\u001b[2J\"");
  EXPECT_EQ(record_from_json(text).value().host, "\\x1b[2J");
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
