/// Records for tests.
//
// The writer and the reader of a record, in one process and in two.
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
#include <string>
#include <thread>
#include <vector>

#include "core/flight/record_reader.h"
#include "core/flight/record_writer.h"
#include "tests/support/read_file.h"
#include "tests/support/seed.h"
#include "tests/support/temporary_folder.h"

namespace hora::internal::test {

/// Memory of this process, or the test ends.
inline RecordMemory own_memory() {
  return RecordMemory::anonymous().value();
}

inline FlightRecord read(const RecordMemory& memory) {
  return read_record(memory.layout(), record_now()).value();
}

inline Signature signature_of(OperationKind kind, DataType type = DataType::float32,
                              ReduceOp op = ReduceOp::sum) {
  Signature signature;
  signature.kind = kind;
  signature.type = type;
  signature.op = op;
  return signature;
}

inline RecordTicket submit(const RecordWriter& writer, const std::string& name,
                           std::int64_t time = 1) {
  return writer.submitted(name, kWorld, signature_of(OperationKind::allreduce), 4, 2,
                          std::chrono::nanoseconds(time));
}

}  // namespace hora::internal::test

namespace hora::internal {
namespace {

using std::chrono::nanoseconds;
using test::own_memory;
using test::read;
using test::signature_of;
using test::submit;
using testing::IsEmpty;
using testing::SizeIs;

TEST(Record, HoldsWhatHasHappenedToACollective) {
  const RecordMemory memory = own_memory();
  const RecordWriter writer(memory.layout());
  writer.begin();
  const RecordTicket ticket = writer.submitted(
      "loss", ProcessSet(3),
      signature_of(OperationKind::reduce_scatter, DataType::bfloat16, ReduceOp::average), 1234, 5,
      nanoseconds(10));
  writer.decided(ticket, 7, nanoseconds(20));
  writer.started(ticket, nanoseconds(30));
  writer.finished(ticket, RecordOutcome::done, nanoseconds(40));
  const FlightRecord record = read(memory);
  EXPECT_EQ(record.submitted, 1u);
  EXPECT_EQ(record.unreadable, 0u);
  const RecordedCollective expected{.name = "loss",
                                    .set = 3,
                                    .number = 7,
                                    .kind = OperationKind::reduce_scatter,
                                    .op = ReduceOp::average,
                                    .type = DataType::bfloat16,
                                    .outcome = RecordOutcome::done,
                                    .peers = 5,
                                    .bytes = 1234,
                                    .submitted = nanoseconds(10),
                                    .ready = nanoseconds(20),
                                    .started = nanoseconds(30),
                                    .done = nanoseconds(40)};
  ASSERT_THAT(record.collectives, SizeIs(1));
  EXPECT_EQ(record.collectives[0], expected);
}

TEST(Record, HoldsTheRankAndItsState) {
  const RecordMemory memory = own_memory();
  const RecordWriter writer(memory.layout());
  writer.begin();
  EXPECT_EQ(read(memory).rank, -1);
  EXPECT_EQ(read(memory).state, RecordState::starting);
  writer.identify(
      {.hora_version = "0.1.0", .host = "node7", .rank = 3, .size = 4, .node = 1, .local_rank = 1});
  writer.set_state(RecordState::initialised);
  writer.note_phase("epoch 3, step 120");
  writer.blocked(true);
  const FlightRecord record = read(memory);
  EXPECT_EQ(record.hora_version, "0.1.0");
  EXPECT_EQ(record.host, "node7");
  EXPECT_EQ(record.rank, 3);
  EXPECT_EQ(record.size, 4);
  EXPECT_EQ(record.node, 1);
  EXPECT_EQ(record.local_rank, 1);
  EXPECT_EQ(record.pid, ::getpid());
  EXPECT_EQ(record.guard, 0);
  EXPECT_EQ(record.state, RecordState::initialised);
  EXPECT_EQ(state_of(memory.layout()), RecordState::initialised);
  EXPECT_EQ(record.phase, "epoch 3, step 120");
  EXPECT_EQ(record.blocked, 1);
  EXPECT_GT(record.begin.count(), 0);
  EXPECT_GT(record.begin_wall.count(), record.begin.count());
  EXPECT_GE(record.last_activity, record.begin);
  EXPECT_FALSE(record.cause);
}

TEST(Record, ShowsARankThatLivesAtAGlance) {
  const RecordMemory memory = own_memory();
  EXPECT_FALSE(glance_at(memory.layout()).has_begun);
  const RecordWriter writer(memory.layout());
  writer.begin();
  EXPECT_TRUE(glance_at(memory.layout()).has_begun);
  EXPECT_EQ(glance_at(memory.layout()).last_collective, "");
  writer.set_state(RecordState::initialised);
  for (int i = 0; i < 1500; ++i) submit(writer, "g" + std::to_string(i));
  writer.note_phase("epoch\n3");
  writer.blocked(true);
  const RecordGlance glance = glance_at(memory.layout());
  EXPECT_EQ(glance.state, RecordState::initialised);
  EXPECT_EQ(glance.submitted, 1500u);
  EXPECT_EQ(glance.last_collective, "g1499");
  EXPECT_TRUE(glance.waits);
  EXPECT_EQ(glance.phase, "epoch\\n3");
  EXPECT_EQ(glance.last_activity, last_activity_of(memory.layout()));
  // While its entry is being written.
  memory.layout().header.next.store(1501);
  EXPECT_EQ(glance_at(memory.layout()).last_collective, "");
}

TEST(Record, KeepsTheFirstCauseAndThatTheRankHasFailed) {
  const RecordMemory memory = own_memory();
  const RecordWriter writer(memory.layout());
  writer.begin();
  writer.fail("the first\nof two", ErrorCode::mismatch);
  writer.fail("the second");
  writer.set_state(RecordState::shut_down);
  const FlightRecord record = read(memory);
  ASSERT_TRUE(record.cause);
  EXPECT_EQ(record.cause->text, "the first\\nof two");
  EXPECT_EQ(record.cause->code, static_cast<std::uint32_t>(ErrorCode::mismatch) + 1);
  EXPECT_GE(record.cause->time, record.begin);
  EXPECT_EQ(record.state, RecordState::failed);
  writer.begin();
  EXPECT_FALSE(read(memory).cause);
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
  writer.fail(std::string(2000, 'c'));
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
  writer.finished(first, RecordOutcome::failed, nanoseconds(5));
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

TEST(Record, IsOffWhereThereIsNoMemory) {
  const RecordWriter writer;
  writer.begin();
  writer.identify({});
  writer.set_state(RecordState::initialised);
  writer.fail("nothing");
  writer.note_phase("nothing");
  writer.blocked(true);
  EXPECT_EQ(submit(writer, "x"), kNoTicket);
  writer.decided(kNoTicket, 1, nanoseconds(1));
  EXPECT_FALSE(writer.on());
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
        const auto ticket = writer.submitted(name, kWorld, signature_of(OperationKind::allreduce),
                                             name.size(), 2, nanoseconds(i + 1));
        writer.finished(ticket, RecordOutcome::done, nanoseconds(i + 2));
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

// What a killed rank has written is what its guard reads.
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
  }
}

using testing::HasSubstr;

std::string refusal(const std::string& path) {
  const auto memory = RecordMemory::open(path);
  return memory ? std::string() : memory.error();
}

TEST(RecordMemory, IsSharedByThoseWhoOpenIt) {
  const RecordMemory guard = RecordMemory::create().value();
  const RecordMemory rank = RecordMemory::open(guard.path()).value();
  EXPECT_NE(&guard.layout(), &rank.layout());
  rank.layout().header.next.store(17);
  EXPECT_EQ(guard.layout().header.next.load(), 17u);
  EXPECT_EQ(rank.layout().header.guard.load(), ::getpid());
  EXPECT_EQ(rank.path(), "");
}

TEST(RecordMemory, CannotBeCut) {
  const RecordMemory guard = RecordMemory::create().value();
  EXPECT_NE(::truncate(guard.path().c_str(), 0), 0);
  const int descriptor = ::open(guard.path().c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(descriptor, 0);
  EXPECT_NE(::ftruncate(descriptor, 4096), 0);
  ::close(descriptor);
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
  std::ifstream kept(file);
  std::string text(4, ' ');
  kept.read(text.data(), 4);
  EXPECT_EQ(text, "mine");
}

TEST(RecordMemory, RefusesAnotherLayout) {
  const RecordMemory guard = RecordMemory::create().value();
  guard.layout().header.version.store(kRecordVersion + 1);
  EXPECT_THAT(refusal(guard.path()), HasSubstr("different versions of hora"));
}

TEST(RecordMemory, BelongsToOneLivingProcess) {
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
}

using namespace std::chrono_literals;

constexpr std::array<std::string_view, 2> kPhases{"forward", "a\nb"};

ArrivalsToRecord arrivals_of(std::span<const RecordedArrivalsRow> rows) {
  return {.at = 5s, .decisions = 100, .steps = 10, .phases = kPhases, .rows = rows};
}

TEST(RecordArrivals, HoldsWhoCameLast) {
  const RecordMemory memory = test::own_memory();
  EXPECT_FALSE(read_arrivals(memory.layout().arrivals));
  const std::vector<RecordedArrivalsRow> rows{{3, 70, 4ms, 9ms, 1}, {0, 30, 1ms, 2ms, 0}};
  write_arrivals(memory.layout().arrivals, arrivals_of(rows));
  const auto read = read_arrivals(memory.layout().arrivals);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->at, 5s);
  EXPECT_EQ(read->decisions, 100u);
  EXPECT_EQ(read->steps, 10u);
  EXPECT_EQ(read->rows, rows);
  ASSERT_THAT(read->phases, SizeIs(kRecordedPhases));
  EXPECT_EQ(read->phases[0], "forward");
  EXPECT_EQ(read->phases[1], "a\\nb");
  EXPECT_EQ(read->phases[2], "");
}

TEST(RecordArrivals, HoldsAsManyRowsAsThereIsPlaceFor) {
  const RecordMemory memory = test::own_memory();
  const std::vector<RecordedArrivalsRow> rows(kRecordedArrivals + 9, {7, 1, 1ms, 1ms, 0});
  write_arrivals(memory.layout().arrivals, arrivals_of(rows));
  EXPECT_THAT(read_arrivals(memory.layout().arrivals)->rows, SizeIs(kRecordedArrivals));
  write_arrivals(memory.layout().arrivals, arrivals_of(std::span(rows).first(1)));
  EXPECT_THAT(read_arrivals(memory.layout().arrivals)->rows, SizeIs(1));
}

TEST(RecordArrivals, AreWantedByTheGuardAndGoneWithANewBeginning) {
  const RecordMemory memory = test::own_memory();
  const RecordWriter writer(memory.layout());
  EXPECT_EQ(writer.watched_arrivals(), nullptr);
  EXPECT_EQ(RecordWriter().watched_arrivals(), nullptr);
  memory.layout().arrivals.wanted.store(1);
  EXPECT_EQ(writer.watched_arrivals(), &memory.layout().arrivals);
  write_arrivals(*writer.watched_arrivals(), arrivals_of({}));
  writer.begin();
  EXPECT_FALSE(read_arrivals(memory.layout().arrivals));
  EXPECT_NE(writer.watched_arrivals(), nullptr);
}

TEST(RecordArrivals, OfAWriterThatDiedAreNotReadAndWrittenAnew) {
  const RecordMemory memory = test::own_memory();
  RecordArrivals& arrivals = memory.layout().arrivals;
  write_arrivals(arrivals, arrivals_of({}));
  arrivals.sequence.fetch_add(1);
  EXPECT_FALSE(read_arrivals(arrivals));
  write_arrivals(arrivals, arrivals_of({}));
  EXPECT_TRUE(read_arrivals(arrivals));
}

// All that is written at once belongs together.
TEST(RecordArrivals, AreWholeWhileTheyAreWritten) {
  const RecordMemory memory = test::own_memory();
  RecordArrivals& arrivals = memory.layout().arrivals;
  std::atomic<bool> enough{false};
  std::jthread writer([&] {
    std::vector<RecordedArrivalsRow> rows(kRecordedArrivals);
    for (std::uint64_t n = 1; !enough.load(); ++n) {
      for (RecordedArrivalsRow& row : rows) row.last = n;
      write_arrivals(arrivals, {.decisions = n, .steps = n, .phases = {}, .rows = rows});
      if (n % 1000 == 0) std::this_thread::sleep_for(50us);
    }
  });
  for (int seen = 0; seen < 20000 && !HasFailure();) {
    const auto read = read_arrivals(arrivals);
    if (!read) continue;
    ++seen;
    EXPECT_EQ(read->steps, read->decisions);
    EXPECT_THAT(read->rows, SizeIs(kRecordedArrivals));
    for (const RecordedArrivalsRow& row : read->rows) EXPECT_EQ(row.last, read->decisions);
  }
  enough.store(true);
}

TEST(RecordArrivals, ArbitraryBytesAreReadAsValuesWithinTheirBounds) {
  const RecordMemory memory = test::own_memory();
  RecordArrivals& arrivals = memory.layout().arrivals;
  std::mt19937_64 random = test::generator();
  for (int round = 0; round < 200; ++round) {
    auto* const words = reinterpret_cast<std::uint64_t*>(&arrivals);
    for (std::size_t i = 0; i < sizeof arrivals / sizeof *words; ++i) words[i] = random();
    arrivals.sequence.store(2);
    const auto read = read_arrivals(arrivals);
    ASSERT_TRUE(read);
    EXPECT_LE(read->rows.size(), kRecordedArrivals);
    for (const RecordedArrivalsRow& row : read->rows) {
      EXPECT_GE(row.rank, 0);
      EXPECT_LT(row.phase, kRecordedPhases);
      EXPECT_GE(row.median, 0ns);
      EXPECT_GE(row.p99, 0ns);
    }
  }
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
