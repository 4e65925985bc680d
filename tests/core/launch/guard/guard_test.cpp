#include "core/launch/guard/guard.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits.h>

#include <cstring>
#include <optional>
#include <string>
#include <tuple>

#include "core/flight/flight_recorder.h"
#include "core/launch/control/channel.h"

namespace hora::launch {
namespace {

using namespace std::chrono_literals;
using internal::RecordMemory;
using internal::RecordTime;
using internal::RecordWriter;
using testing::SizeIs;

TEST(LastWords, AreTheLastLines) {
  const std::string handler = "[vm:17412] *** Process received signal ***";
  for (const auto& [written, count, lines] : std::vector<std::tuple<std::string, int, std::string>>{
           {"one\ntwo\nthree\nfour\n\n  \n", 2, "three\nfour"},
           {"one\ntwo\nthree\nfour\n\n  \n", 10, "one\ntwo\nthree\nfour"},
           {"", 3, ""},
           {"\n\n", 3, ""},
           {"10 %\r20 %\r30 %", 1, "30 %"},
           // A backtrace of Open MPI does not hide what the program has said.
           {"about to die\n" + handler + "\n[vm:17412] [10] ./p(+0x126b)[0x55fe6cc2126b]\n", 2,
            "about to die"},
           {handler + "\n", 2, handler},
           {"failed\nAbort(7) on node 2 (rank 2): application called MPI_Abort(7)\n[cli_2]: "
            "failed\n",
            5, "failed"}}) {
    EXPECT_EQ(last_lines(written, static_cast<std::size_t>(count)), lines) << written;
  }
}

TEST(StatusOfAbort, IsInMpichsWords) {
  const std::string of_rank = " on node 0 (rank 0 in comm 0): application called MPI_Abort(";
  for (const auto& [words, status] : std::vector<std::pair<std::string, std::optional<int>>>{
           {"step 3\nAbort(7)" + of_rank + "MPI_COMM_WORLD, 7) - process 2\n[cli_2]: failed", 7},
           {"Abort(-1)" + of_rank, 255},
           {"Abort(256)" + of_rank, 1},
           {"", {}},
           {"Abort(7) on node 0 (rank 0 in comm 0): Fatal error in PMPI_Send", {}},
           {"Abort(x)" + of_rank, {}},
           {of_rank + "MPI_COMM_WORLD, 7)", {}}}) {
    EXPECT_EQ(status_of_abort(words), status) << words;
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
  EXPECT_EQ(
      fmt::format("{} {} {} {} {}", seen.rank, seen.state, seen.submitted, seen.collective,
                  seen.phase),
      fmt::format("3 {} 1 loss epoch 3", static_cast<int>(internal::RecordState::initialised)));
  EXPECT_TRUE(seen.waits && seen.overdue);
  EXPECT_GE(seen.idle_ms, 20000u);
  EXPECT_LT(seen.idle_ms, 50000u);
  EXPECT_FALSE(rank_seen(memory.layout(), 3, internal::record_now()).overdue);
  writer.blocked(false);
  EXPECT_FALSE(rank_seen(memory.layout(), 3, now).overdue) << "it works alone";
  writer.set_state(internal::RecordState::in_shutdown);
  EXPECT_TRUE(rank_seen(memory.layout(), 3, internal::record_now() + 20s).overdue);
}

TEST(ArrivalsSeen, AreToldOnceEach) {
  const RecordMemory memory = RecordMemory::anonymous().value();
  RecordTime after{};
  EXPECT_FALSE(arrivals_seen(memory.layout(), after));
  const std::vector<internal::RankArrivals> rows{{2, 70, 4ms, 9ms, 1}};
  internal::write_arrivals(memory.layout().arrivals, 7s, 100, 9, rows);
  const auto seen = arrivals_seen(memory.layout(), after);
  ASSERT_TRUE(seen);
  EXPECT_EQ(after, 7s);
  EXPECT_EQ(seen->decisions, 100u);
  EXPECT_EQ(seen->steps, 9u);
  ASSERT_THAT(seen->rows, SizeIs(1));
  const wire::ArrivalsRow row = seen->rows[0], expected(70, 4, 9, 2, 1);
  EXPECT_EQ(std::memcmp(&row, &expected, sizeof row), 0);
  EXPECT_FALSE(arrivals_seen(memory.layout(), after)) << "nothing newer";
}

// The kernel writes what is not longer as one (pipe(7)): reports of guards do not mix.
TEST(ArrivalsSeen, FitsIntoOneReport) {
  const RecordMemory memory = RecordMemory::anonymous().value();
  const std::vector<internal::RankArrivals> rows(internal::kRecordedArrivals,
                                                 {70000, ~std::uint64_t{0}, 1h, 1h, 3});
  internal::write_arrivals(memory.layout().arrivals, 7s, 1, 1, rows);
  RecordTime after{};
  const auto seen = arrivals_seen(memory.layout(), after);
  ASSERT_TRUE(seen);
  EXPECT_THAT(seen->rows, SizeIs(internal::kRecordedArrivals));
  EXPECT_LE(frame_of(encode(*seen)).size(), std::size_t{PIPE_BUF});
}

}  // namespace
}  // namespace hora::launch
