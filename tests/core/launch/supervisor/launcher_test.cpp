#include "core/launch/supervisor/launcher.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "core/flight/flight_recorder.h"
#include "core/launch/control/system.h"
#include "core/launch/guard/guard.h"
#include "tests/core/launch/texts.h"

namespace hora::launch {
namespace {

using internal::RecordState;

/// A message about a rank; all other fields have their defaults.
template <class Body, class... Fields>
Body of(int rank, const Fields&... fields) {
  return test::made<Body>(&Body::rank, rank, fields...);
}

RankSeen at_work(int rank, RecordState state = RecordState::initialised) {
  return of<RankSeen>(rank, &RankSeen::state, static_cast<std::uint8_t>(state),
                      &RankSeen::submitted, 40U, &RankSeen::collective, "hora.gradients.0.3",
                      &RankSeen::phase, "epoch 2");
}

ArrivalsSeen arrivals(std::uint64_t steps, int most_often_last = 2) {
  ArrivalsSeen message;
  message.decisions = 4 * steps;
  message.steps = steps;
  message.rows = {{static_cast<std::uint32_t>(3 * steps), 4.12F, 9, most_often_last, 1},
                  {static_cast<std::uint32_t>(steps), 0.1F, 0.25F, 0, 0}};
  return message;
}

TEST(LiveView, ShowsARowForEachRank) {
  LiveView job({{"a", 2}, {"b", 1}}, Moment(1000));
  for (const int rank : {0, 1, 2}) job.on_message(rank / 2, of<RankStarted>(rank), Moment(1000));
  for (const int rank : {0, 1, 2}) job.on_message(rank / 2, at_work(rank), Moment(1100));
  job.on_message(0, arrivals(10), Moment(2000));
  job.on_message(0, arrivals(30), Moment(4000));
  test::expect_texts("a watched job", job.table(Moment(5000)));
}

TEST(LiveView, SaysInWhichStateARankIs) {
  LiveView job({{"a", 9}}, Moment(0));
  const auto tell = [&](const Message& message) { job.on_message(0, message, Moment(1)); };
  for (int rank = 1; rank < 9; ++rank) tell(of<RankStarted>(rank));
  RankSeen before = at_work(2), waiting = at_work(4), damaged = at_work(8);
  before.state = kNotBegun;
  waiting.waits = true;
  waiting.idle_ms = 65000;
  damaged.state = 99;
  damaged.collective = damaged.phase = "x\x1b[2J\n";
  for (const RankSeen& each : {before, at_work(3, RecordState::starting), waiting, at_work(5),
                               damaged, at_work(6, RecordState::failed)}) {
    tell(each);
  }
  tell(RankStopped{{}, 5, true});
  tell(of<RankEnded>(7));
  test::expect_texts("states of ranks that are watched", job.table(Moment(5000)));
}

TEST(LiveView, OfManyRanksShowsThoseThatComeLastMostOften) {
  LiveView job({{"a", 100}}, Moment(0));
  for (int rank = 0; rank < 100; ++rank) {
    RankSeen message = at_work(rank);
    message.collective = std::string(90, 'x') + std::to_string(rank) + "\u00e9\u00e9";
    message.phase = std::string(60, 'p') + "\u00e9";
    job.on_message(0, message, Moment(1));
  }
  job.on_message(0, arrivals(10, 93), Moment(2));
  test::expect_texts("many ranks that are watched", job.table(Moment(61000)));
}

TEST(LiveView, IgnoresWhatTheJobDoesNotHave) {
  LiveView job({{"a", 1}}, Moment(0));
  const std::string before = job.table(Moment(0));
  for (const int rank : {-1, 1, 1 << 30}) {
    for (const Message& message :
         {Message(of<RankStarted>(rank)), Message(at_work(rank)),
          Message(RankStopped{{}, rank, true}), Message(of<RankEnded>(rank))}) {
      job.on_message(0, message, Moment(1));
    }
  }
  job.on_message(7, of<RankStarted>(0), Moment(1));
  EXPECT_EQ(job.table(Moment(0)), before);
  ArrivalsSeen strange = arrivals(1, -5);
  strange.decisions = 0;
  job.on_message(0, strange, Moment(1));
  job.on_message(0, arrivals(0), Moment(1));
  EXPECT_THAT(job.table(Moment(1)), testing::Not(testing::HasSubstr("most often")));
}

class RankOutputTest : public testing::Test {
 protected:
  RankOutputOptions options() const {
    RankOutputOptions result;
    result.output = output_.write.get();
    result.error = error_.write.get();
    return result;
  }
  static std::string contents(const Pipe& pipe) {
    char bytes[1000];
    pollfd entry{pipe.read.get(), POLLIN, 0};
    if (::poll(&entry, 1, 0) <= 0) return {};
    return {bytes, static_cast<std::size_t>(::read(pipe.read.get(), bytes, sizeof bytes))};
  }
  Pipe output_ = make_pipe(), error_ = make_pipe();
};

TEST_F(RankOutputTest, IsPassedOnInWholeLinesButAQuestion) {
  const std::chrono::steady_clock::time_point start{};
  RankOutputWriter writer(options());
  writer.write(0, "a", false, "half a li");
  writer.write(1, "a", true, "error\n");
  EXPECT_EQ(contents(output_), "");
  EXPECT_EQ(contents(error_), "error\n");
  writer.write(0, "a", false, "ne\ncontinue? ");
  EXPECT_EQ(contents(output_), "half a line\n");
  writer.on_time(start);
  writer.on_time(start + std::chrono::milliseconds(199));
  EXPECT_EQ(contents(output_), "");
  writer.on_time(start + std::chrono::milliseconds(200));
  EXPECT_EQ(contents(output_), "continue? ");
  writer.write(0, "a", false, "end");
  writer.finish();
  EXPECT_EQ(contents(output_), "end");
}

TEST_F(RankOutputTest, WaitsForASlowReaderThatDoesNotBlock) {
  ::fcntl(output_.write.get(), F_SETFL, O_NONBLOCK);
  const std::string line = std::string(1 << 20, 'x') + "\n";
  std::size_t read = 0;
  std::jthread reader([&] {
    std::array<char, 65536> bytes;
    while (read < line.size()) {
      read += static_cast<std::size_t>(::read(output_.read.get(), bytes.data(), bytes.size()));
    }
  });
  RankOutputWriter writer(options());
  writer.write(0, "a", false, line);
  EXPECT_EQ(writer.failure(), "");
}

TEST_F(RankOutputTest, AFolderThatCannotBeMadeIsNamed) {
  RankOutputOptions wrong = options();
  wrong.folder = "/proc/none/logs";
  try {
    RankOutputWriter writer(wrong);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("--output-filename: /proc/none/logs"));
  }
}

}  // namespace
}  // namespace hora::launch
