// The writer and the reader of a record, in one process and in two.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include "tests/core/flight/record_values.h"
#include "tests/support/seed.h"

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

}  // namespace
}  // namespace hora::internal
