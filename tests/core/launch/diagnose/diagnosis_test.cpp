// The first line of a diagnosis, of jobs that are constructed from what happened to them.
#include "core/launch/diagnose/diagnosis.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <limits>
#include <numeric>

#include "core/flight/flight_recorder.h"
#include "tests/core/launch/texts.h"

namespace hora::launch {
namespace {

using internal::FlightRecord;
using internal::OperationKind;
using internal::RecordedCause;
using internal::RecordedCollective;
using internal::RecordOutcome;
using internal::RecordState;
using internal::RecordTime;
using internal::test::TemporaryFolder;

RecordTime seconds(double value) {
  return std::chrono::duration_cast<RecordTime>(std::chrono::duration<double>(value));
}

/// Records of ranks, by their nodes, on hosts a, b, ... Times are of one clock, on which the job
/// begins at second 1000.
JobRecords constructed(const std::vector<int>& nodes) {
  JobRecords job;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    for (int local = 0; local < nodes[node]; ++local) {
      FlightRecord record{.rank = job.size++, .node = static_cast<int>(node), .local_rank = local};
      record.host = std::string(1, static_cast<char>('a' + node));
      record.pid = 100 + record.rank;
      record.guard = 50 + record.rank;
      record.state = RecordState::initialised;
      record.begin = seconds(1000.0);
      record.begin_wall = seconds(1.7e9);
      record.taken = seconds(1100.0);
      job.of_rank.emplace(record.rank, record);
    }
  }
  for (auto& [rank, record] : job.of_rank) record.size = job.size;
  return job;
}

using Event = std::function<void(JobRecords&)>;
using Ranks = std::vector<int>;

/// Ranks submit it, `decided` and done 10 ms later where it is; number: of the decision.
Event submit(const Ranks& ranks, const char* name, double time, int decided = 0,
             std::uint32_t set = 0) {
  return [=](JobRecords& job) {
    RecordedCollective one{.name = name, .set = set, .number = static_cast<std::uint64_t>(decided)};
    one.peers = static_cast<std::uint32_t>(job.size);
    one.submitted = seconds(time);
    if (decided > 0) {
      one.ready = one.started = seconds(time + 0.005);
      one.done = seconds(time + 0.01);
      one.outcome = RecordOutcome::done;
    }
    for (const int rank : ranks) {
      job.of_rank.at(rank).collectives.push_back(one);
      job.of_rank.at(rank).last_activity = seconds(time);
    }
  };
}

/// Sets fields of the records of ranks.
template <class... Fields>
Event change(const Ranks& ranks, const Fields... fields) {
  return [=](JobRecords& job) {
    for (const int rank : ranks) test::set(job.of_rank.at(rank), fields...);
  };
}

/// The same of their last collectives.
template <class... Fields>
Event change_last(const Ranks& ranks, const Fields... fields) {
  return [=](JobRecords& job) {
    for (const int rank : ranks) test::set(job.of_rank.at(rank).collectives.back(), fields...);
  };
}

Event end(const Ranks& ranks, int signal, int status, double time, bool by_launcher = false) {
  return change(ranks, &FlightRecord::ended,
                internal::RecordedEnd{signal, status, by_launcher, seconds(time)});
}

/// Those that have not ended yet are ended by horarun.
Event rest_ends(double time) {
  return [=](JobRecords& job) {
    for (auto& [rank, record] : job.of_rank) {
      if (!record.ended) end({rank}, 9, 0, time, true)(job);
    }
  };
}

Event fail(const Ranks& ranks, const char* text, ErrorCode code, double time) {
  return change(ranks, &FlightRecord::state, RecordState::failed, &FlightRecord::cause,
                RecordedCause{text, static_cast<std::uint32_t>(code) + 1, seconds(time)});
}

Event lose(const Ranks& ranks) {
  return [=](JobRecords& job) {
    for (const int rank : ranks) job.of_rank.erase(rank);
  };
}

/// The clocks of host b show so much more.
void advance_clocks(JobRecords& job) {
  const auto advance = [&](RecordTime& time) {
    if (time.count() != 0) time += seconds(5.0e6);
  };
  for (auto& [number, record] : job.of_rank) {
    if (record.host != "b") continue;
    for (RecordTime* time : {&record.begin, &record.last_activity, &record.taken}) advance(*time);
    if (record.cause) advance(record.cause->time);
    if (record.ended) advance(record.ended->time);
    for (RecordedCollective& one : record.collectives) {
      for (RecordTime* time : {&one.submitted, &one.ready, &one.started, &one.done}) advance(*time);
    }
  }
}

/// Three steps that went well, from 1001 s on; then the events.
JobRecords trained(const std::vector<int>& nodes, const std::vector<Event>& events = {}) {
  JobRecords job = constructed(nodes);
  Ranks all(static_cast<std::size_t>(job.size));
  std::iota(all.begin(), all.end(), 0);
  for (int step = 0; step < 3; ++step) {
    submit(all, "a", 1001.0 + step, 2 * step + 1)(job);
    submit(all, "b", 1001.2 + step, 2 * step + 2)(job);
  }
  for (const Event& event : events) event(job);
  return job;
}

TEST(Diagnosis, BeginsWithTheFirstCause) {
  constexpr auto phase = &FlightRecord::phase;
  constexpr auto state = &FlightRecord::state;
  constexpr auto done = &RecordedCollective::done;
  constexpr auto outcome = &RecordedCollective::outcome;
  const auto stop = [](int rank) { return change({rank}, &FlightRecord::stopped, true); };
  const Event too_late = fail({0}, "too late", ErrorCode::timeout, 1014.0);
  const Event incomplete = fail({0, 2}, "tensor \"a\" is not complete", ErrorCode::timeout, 1064.0);
  const Event uncaught = change({1}, phase, "epoch 1", &FlightRecord::cause,
                                RecordedCause{"uncaught exception", 0, seconds(1004.0)});
  std::string text;
  for (const auto& [name, job] : std::vector<std::pair<const char*, JobRecords>>{
           {"all went well", trained({2, 2}, {change({0, 1, 2, 3}, state, RecordState::shut_down),
                                              end({0, 1, 2, 3}, 0, 0, 1005.0)})},
           {"a crash on a host that has started on another day",
            trained({2, 2}, {submit({0, 1, 2}, "a", 1004.0), end({3}, 11, 0, 1004.30),
                             end({0}, 9, 0, 1004.35), rest_ends(1004.8), advance_clocks})},
           {"an exit without shutdown", trained({2}, {end({1}, 0, 0, 1004.0), rest_ends(1004.5)})},
           {"the same mistake in each",
            trained({2}, {end({0}, 11, 0, 1004.0), end({1}, 11, 0, 1004.1)})},
           {"one after the other", trained({2}, {end({0}, 9, 0, 1004.0), end({1}, 9, 0, 1004.5)})},
           {"an exception that nobody caught",
            trained({2}, {uncaught, end({1}, 6, 0, 1004.2), end({0}, 9, 0, 1004.1, true)})},
           {"a rank in its own code",
            trained({2, 1}, {submit({0, 2}, "a", 1004.0), change({1}, phase, "loading data"),
                             rest_ends(1064.0)})},
           {"it had come late to the collective before, after the others had gone on",
            trained({2}, {submit({0}, "a", 1004.0, 7), submit({0}, "b", 1004.1),
                          submit({1}, "a", 1006.0, 7), rest_ends(1064.1)})},
           {"a collective that fails with its rank was waited for until then",
            trained({2}, {submit({0}, "a", 1004.0), too_late,
                          change_last({0}, done, seconds(1014.0), outcome, RecordOutcome::failed),
                          end({0}, 0, 1, 1014.5), rest_ends(1014.6)})},
           {"one that had failed by itself before, as ranks disagreed on it, was not",
            trained({2}, {submit({0}, "a", 1004.0), too_late,
                          change_last({0}, done, seconds(1005.0), outcome, RecordOutcome::failed),
                          end({0}, 0, 1, 1014.5), rest_ends(1014.6)})},
           {"decided, but node 2 never heard of it",
            trained({2, 2, 2}, {submit({0, 1, 2, 3, 4, 5}, "a", 1004.0),
                                change_last({0, 1, 2, 3}, &RecordedCollective::number, 7U,
                                            &RecordedCollective::ready, seconds(1004.1)),
                                rest_ends(1039.0)})},
           {"submitted by all",
            trained({2, 2}, {submit({0, 1, 2, 3}, "a", 1004.0), rest_ends(1039.0)})},
           {"ranks without records",
            trained({2, 2}, {submit({0, 1}, "a", 1004.0), lose({2, 3}), rest_ends(1039.0)})},
           {"a rank that was stopped inside",
            trained({3}, {submit({0, 1, 2}, "a", 1004.0, 7),
                          change_last({1, 2}, done, RecordTime(), outcome, RecordOutcome::open),
                          stop(2), rest_ends(1064.0)})},
           {"a rank that was stopped before",
            trained({3}, {submit({0, 2}, "a", 1004.0), stop(1), incomplete,
                          end({0, 2}, 0, 1, 1064.1), end({1}, 9, 0, 1064.2, true)})},
           {"and comes when it is ended",
            trained({3},
                    {submit({0, 2}, "a", 1004.0), stop(1), incomplete, end({0, 2}, 0, 1, 1064.1),
                     submit({1}, "a", 1064.1), end({1}, 9, 0, 1064.2, true)})},
           {"a rank in shutdown",
            trained({2}, {submit({0}, "a", 1004.0), change({1}, state, RecordState::in_shutdown),
                          rest_ends(1064.0)})},
           {"a rank that has joined brings nothing, and is not waited for",
            trained({3}, {submit({2}, "hora.join", 1004.0),
                          change_last({2}, &RecordedCollective::kind, OperationKind::join),
                          submit({0}, "a", 1004.0), rest_ends(1064.0)})},
           {"only the ranks of a set are expected there",
            trained({4}, {submit({1, 3}, "x", 1004.0, 1, 2), submit({3}, "y", 1004.5, 0, 2),
                          rest_ends(1064.5)})}}) {
    text += fmt::format("{}:\n  {}\n", name, diagnose(job).headline);
  }
  test::expect_texts("first causes in records", text);
}

TEST(Diagnosis, HasATableOfAllRanks) {
  const JobRecords job =
      trained({2, 2}, {submit({0, 2}, "a", 1004.0), change({1}, &FlightRecord::phase, "epoch 3"),
                       lose({3}), end({1}, 9, 0, 1004.3),
                       fail({0}, "cut\noff", ErrorCode::transport, 1004.6), rest_ends(1004.8)});
  test::expect_texts("a diagnosis", to_text(diagnose(job)));
}

TEST(Diagnosis, IsShortWhateverSizeARecordClaims) {
  const TemporaryFolder folder;
  JobRecords job = trained({1});
  job.of_rank.at(0).size = std::numeric_limits<int>::max();
  ASSERT_TRUE(internal::write_record(job.of_rank.at(0), folder.path()));
  test::expect_texts("a diagnosis of too many ranks",
                     to_text(diagnose(folder.path().string()).value()));
}

TEST(JobRecords, AreReadFromAFolder) {
  const TemporaryFolder folder;
  const JobRecords job = trained({1, 2});
  for (const auto& [rank, record] : job.of_rank) {
    ASSERT_TRUE(internal::write_record(record, folder.path()));
  }
  // Passed over.
  for (const char* name : {"notes.txt", "hora-record.json", "hora-record.x.json",
                           "hora-record.-1.json", "hora-record.99999999.json"}) {
    std::ofstream(folder.file(name)) << "{}";
  }
  const JobRecords read = read_records(folder.path()).value();
  EXPECT_EQ(read.size, 3);
  EXPECT_EQ(read.of_rank, job.of_rank);
  EXPECT_THAT(read.problems, testing::IsEmpty());
}

TEST(JobRecords, NameFilesThatCannotBeUsed) {
  const TemporaryFolder folder;
  const JobRecords job = constructed({3});
  ASSERT_TRUE(internal::write_record(job.of_rank.at(0), folder.path()));
  std::ofstream(folder.file("hora-record.1.json")) << "{\"hora_record\":";
  std::ofstream(folder.file("hora-record.2.json")) << internal::to_json(job.of_rank.at(1));
  const JobRecords read = read_records(folder.path()).value();
  EXPECT_EQ(read.size, 3);
  EXPECT_EQ(read.of_rank.size(), 1u);
  test::expect_texts("a diagnosis of damaged records",
                     test::with(to_text(diagnose(read)), folder.path(), "FOLDER"));
}

// The guard of a rank that died before hora::init knows which one it was.
TEST(JobRecords, TakeTheRankOfTheirFileWhereTheyHaveNone) {
  const TemporaryFolder folder;
  std::ofstream(folder.file("hora-record.4.json")) << internal::to_json(internal::FlightRecord{});
  const JobRecords read = read_records(folder.path()).value();
  EXPECT_EQ(read.size, 5);
  EXPECT_EQ(read.of_rank.at(4).rank, 4);
}

TEST(JobRecords, SayWhyThereAreNone) {
  const TemporaryFolder folder;
  std::string text = test::error_of(diagnose(folder.file("missing"))) + "\n" +
                     test::error_of(diagnose(folder.path().string())) + "\n";
  std::ofstream(folder.file("hora-record.0.json")) << "[]";
  text += test::error_of(diagnose(folder.path().string()));
  test::expect_texts("why there is no diagnosis", test::with(text, folder.path(), "FOLDER"));
}

}  // namespace
}  // namespace hora::launch
