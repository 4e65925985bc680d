#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

#include "core/flight/record_reader.h"
#include "tests/core/flight/record_values.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using testing::SizeIs;

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

}  // namespace
}  // namespace hora::internal
