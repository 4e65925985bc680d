#include "core/launch/guard/guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits.h>

#include <string>

#include "core/flight/record_reader.h"
#include "core/launch/control/messages.h"

namespace hora::launch {
namespace {

using namespace std::chrono_literals;
using internal::RecordMemory;
using internal::RecordTime;
using internal::RecordWriter;
using testing::SizeIs;

TEST(LastWords, AreTheLastLines) {
  LastWords words;
  words.append("one\ntwo\nth");
  words.append("ree\nfour\n\n  \n");
  EXPECT_EQ(words.lines(2), "three\nfour");
  EXPECT_EQ(words.lines(10), "one\ntwo\nthree\nfour");
}

TEST(LastWords, OfNothingAreEmpty) {
  LastWords words;
  EXPECT_EQ(words.lines(3), "");
  words.append("\n\n");
  EXPECT_EQ(words.lines(3), "");
}

TEST(LastWords, KeepTheEndOfMuch) {
  LastWords words(10);
  words.append("a very long line\nend");
  EXPECT_EQ(words.lines(1), "end");
}

TEST(LastWords, ABacktraceOfOpenMpiDoesNotHideWhatTheProgramSaid) {
  LastWords words;
  words.append(
      "about to die\n[vm:17412] *** Process received signal ***\n"
      "[vm:17412] [10] ./p(+0x126b)[0x55fe6cc2126b]\n[vm:17412] *** End of error message ***\n");
  EXPECT_EQ(words.lines(2), "about to die");
  LastWords alone;
  alone.append("[vm:17412] *** Process received signal ***\n");
  EXPECT_EQ(alone.lines(2), "[vm:17412] *** Process received signal ***");
}

TEST(LastWords, AProgressLineIsALine) {
  LastWords words;
  words.append("10 %\r20 %\r30 %");
  EXPECT_EQ(words.lines(1), "30 %");
}

TEST(StatusOfAbort, IsInMpichsWords) {
  EXPECT_EQ(status_of_abort("step 3\nAbort(7) on node 2 (rank 2 in comm 0): application called "
                            "MPI_Abort(MPI_COMM_WORLD, 7) - process 2\n[cli_2]: readline failed"),
            7);
  EXPECT_EQ(
      status_of_abort("Abort(-1) on node 0 (rank 0 in comm 0): application called MPI_Abort("),
      255);
  EXPECT_EQ(
      status_of_abort("Abort(256) on node 0 (rank 0 in comm 0): application called MPI_Abort("), 1);
}

TEST(StatusOfAbort, IsInNoOthers) {
  for (const char* const words :
       {"", "Abort(7)", "Abort(7) on node 0 (rank 0 in comm 0): Fatal error in PMPI_Send",
        "Abort(x) on node 0 (rank 0 in comm 0): application called MPI_Abort(",
        "on node 0 (rank 0 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 7)"}) {
    EXPECT_EQ(status_of_abort(words), std::nullopt) << words;
  }
}

TEST(RankSeen, IsWhatTheRecordSays) {
  const RecordMemory memory = RecordMemory::anonymous().value();
  EXPECT_EQ(rank_seen(memory.layout(), 3, 5s).state, kNotBegun);
  const RecordWriter writer(memory.layout());
  writer.begin();
  writer.set_state(internal::RecordState::initialised);
  writer.note_phase("epoch 3");
  writer.submitted("loss", kWorld, {}, 4, 2, 1s);
  writer.blocked(true);
  const RecordTime now = internal::record_now() + 20s;
  const RankSeen seen = rank_seen(memory.layout(), 3, now);
  EXPECT_EQ(seen.rank, 3);
  EXPECT_EQ(seen.state, static_cast<std::uint8_t>(internal::RecordState::initialised));
  EXPECT_TRUE(seen.waits);
  EXPECT_EQ(seen.submitted, 1u);
  EXPECT_EQ(seen.collective, "loss");
  EXPECT_EQ(seen.phase, "epoch 3");
  EXPECT_GE(seen.idle_ms, 20000u);
  EXPECT_LT(seen.idle_ms, 50000u);
}

TEST(ArrivalsSeen, AreToldOnceEach) {
  const RecordMemory memory = RecordMemory::anonymous().value();
  RecordTime after{};
  EXPECT_FALSE(arrivals_seen(memory.layout(), after));
  const std::vector<internal::RankArrivals> rows{{2, 70, 4ms, 9ms, 1}};
  const std::array<std::string_view, 2> phases{"a", "b"};
  internal::write_arrivals(
      memory.layout().arrivals,
      {.at = 7s, .decisions = 100, .steps = 9, .phases = phases, .rows = rows});
  const auto seen = arrivals_seen(memory.layout(), after);
  ASSERT_TRUE(seen);
  EXPECT_EQ(after, 7s);
  EXPECT_EQ(seen->decisions, 100u);
  EXPECT_EQ(seen->steps, 9u);
  ASSERT_THAT(seen->rows, SizeIs(1));
  const wire::ArrivalsRow& row = seen->rows[0];
  EXPECT_EQ(row.rank(), 2);
  EXPECT_EQ(row.last(), 70u);
  EXPECT_EQ(row.median_ns(), 4'000'000);
  EXPECT_EQ(row.p99_ns(), 9'000'000);
  EXPECT_EQ(row.phase(), 1u);
  EXPECT_EQ(seen->phases[1], "b");
  EXPECT_FALSE(arrivals_seen(memory.layout(), after)) << "nothing newer";
}

// The kernel writes what is not longer as one (pipe(7)): reports of guards do not mix.
TEST(ArrivalsSeen, FitsIntoOneReport) {
  const RecordMemory memory = RecordMemory::anonymous().value();
  const std::vector<internal::RankArrivals> rows(internal::kRecordedArrivals,
                                                        {70000, ~std::uint64_t{0}, 1h, 1h, 7});
  const std::string name(internal::kRecordPhaseNameBytes, '\x01');
  const std::vector<std::string_view> phases(internal::kRecordedPhases, name);
  internal::write_arrivals(memory.layout().arrivals,
                           {.at = 7s, .decisions = 1, .steps = 1, .phases = phases, .rows = rows});
  RecordTime after{};
  const auto seen = arrivals_seen(memory.layout(), after);
  ASSERT_TRUE(seen);
  EXPECT_THAT(seen->rows, SizeIs(internal::kRecordedArrivals));
  EXPECT_LE(frame_of(encode(*seen)).size(), std::size_t{PIPE_BUF});
}

}  // namespace
}  // namespace hora::launch
