// The first line of a diagnosis, of jobs that are constructed from what happened to them.
#include "core/launch/diagnose/diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <limits>

#include "core/flight/flight_recorder.h"
#include "tests/support/temporary_folder.h"

namespace hora::launch {
namespace {

using internal::test::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

using internal::FlightRecord;
using internal::OperationKind;
using internal::RecordedCause;
using internal::RecordedCollective;
using internal::RecordOutcome;
using internal::RecordState;
using internal::RecordTime;

RecordTime seconds(double value) {
  return std::chrono::duration_cast<RecordTime>(std::chrono::duration<double>(value));
}

/// Times are of one clock, on which the job begins at second 1000.
class ConstructedJob {
 public:
  /// `nodes`: the ranks of each; hosts are a, b, ...
  explicit ConstructedJob(const std::vector<int>& nodes) {
    for (std::size_t node = 0; node < nodes.size(); ++node) {
      for (int local = 0; local < nodes[node]; ++local) add_rank(static_cast<int>(node), local);
    }
    for (auto& [rank, record] : job_.of_rank) record.size = job_.size;
  }
  FlightRecord& rank(int number) { return job_.of_rank.at(number); }

  /// Rank `number` submits it, `decided` and done 10 ms later where it is; number: of the decision.
  void submits(int number, const std::string& name, double time, std::uint64_t decided = 0,
               std::uint32_t set = 0) {
    RecordedCollective one{.name = name, .set = set, .number = decided};
    one.peers = static_cast<std::uint32_t>(job_.size);
    one.submitted = seconds(time);
    if (decided > 0) {
      one.ready = one.started = seconds(time + 0.005);
      one.done = seconds(time + 0.01);
      one.outcome = RecordOutcome::done;
    }
    rank(number).collectives.push_back(one);
    rank(number).last_activity = seconds(time);
  }
  /// Every rank, the same.
  void all_submit(const std::string& name, double time, std::uint64_t decided = 0) {
    for (int r = 0; r < job_.size; ++r) submits(r, name, time, decided);
  }
  void ended(int number, int signal, int status, double time, bool by_launcher = false) {
    rank(number).ended = internal::RecordedEnd{signal, status, by_launcher, seconds(time)};
  }
  /// Those that have not ended yet are ended by horarun.
  void horarun_ends_the_rest(double time) {
    for (auto& [number, record] : job_.of_rank) {
      if (!record.ended) ended(number, 9, 0, time, true);
    }
  }
  void failed(int number, const std::string& text, ErrorCode code, double time) {
    rank(number).cause = RecordedCause{text, static_cast<std::uint32_t>(code) + 1, seconds(time)};
    rank(number).state = RecordState::failed;
  }
  void shuts_down(double time) {
    for (auto& [number, record] : job_.of_rank) {
      record.state = RecordState::shut_down;
      ended(number, 0, 0, time);
    }
  }
  void lose(int number) { job_.of_rank.erase(number); }
  /// The clocks of that node's host show so much more.
  void advance_clocks(int node, double by);

  JobRecords records() const { return job_; }

 private:
  void add_rank(int node, int local) {
    FlightRecord record{.rank = job_.size++, .node = node, .local_rank = local};
    record.host = std::string(1, static_cast<char>('a' + node));
    record.pid = 100 + record.rank;
    record.guard = 50 + record.rank;
    record.state = RecordState::initialised;
    record.begin = seconds(1000.0);
    record.begin_wall = seconds(1.7e9);
    record.taken = seconds(1100.0);
    job_.of_rank.emplace(record.rank, record);
  }

  JobRecords job_;
};

void ConstructedJob::advance_clocks(int node, double by) {
  const auto advance = [&](RecordTime& time) {
    if (time.count() != 0) time += seconds(by);
  };
  for (auto& [number, record] : job_.of_rank) {
    if (record.node != node) continue;
    for (RecordTime* time : {&record.begin, &record.last_activity, &record.taken}) advance(*time);
    if (record.cause) advance(record.cause->time);
    if (record.ended) advance(record.ended->time);
    for (RecordedCollective& one : record.collectives) {
      for (RecordTime* time : {&one.submitted, &one.ready, &one.started, &one.done}) {
        advance(*time);
      }
    }
  }
}

/// Three steps that went well, from 1001 s on.
ConstructedJob trained(const std::vector<int>& nodes) {
  ConstructedJob job(nodes);
  for (int step = 0; step < 3; ++step) {
    job.all_submit("a", 1001.0 + step, static_cast<std::uint64_t>(2 * step + 1));
    job.all_submit("b", 1001.2 + step, static_cast<std::uint64_t>(2 * step + 2));
  }
  return job;
}

struct Case {
  std::vector<int> nodes;
  std::function<void(ConstructedJob&)> happens;  ///< after trained()
  std::string headline;                          ///< its beginning
};

TEST(Diagnosis, BeginsWithTheFirstCause) {
  const std::vector<Case> cases{
      {{2, 2},
       [](auto& job) { job.shuts_down(1005.0); },
       "nothing went wrong: all 4 ranks shut hora down"},
      // On a host that has started on another day.
      {{2, 2},
       [](auto& job) {
         for (const int rank : {0, 1, 2}) job.submits(rank, "a", 1004.0);
         job.ended(3, 11, 0, 1004.30);
         job.ended(0, 9, 0, 1004.35);
         job.horarun_ends_the_rest(1004.8);
         job.advance_clocks(1, 5.0e6);
       },
       "rank 3 (host b, pid 103) was killed by signal 11 (SIGSEGV) 4.3 s after the start"},
      {{2},
       [](auto& job) {
         job.ended(1, 0, 0, 1004.0);
         job.horarun_ends_the_rest(1004.5);
       },
       "rank 1 (host a, pid 101) left with exit status 0 without Context::shutdown() 4.0 s after "
       "the start, as the first of all"},
      // The same mistake in each of them.
      {{2},
       [](auto& job) {
         for (int rank = 0; rank < 2; ++rank) job.ended(rank, 11, 0, 1004.0 + 0.1 * rank);
       },
       "all 2 ranks ended at once, within 0.1 s: each was killed by signal 11 (SIGSEGV) 4.0 s "
       "after the start"},
      {{2},
       [](auto& job) {
         for (int rank = 0; rank < 2; ++rank) job.ended(rank, 9, 0, 1004.0 + 0.5 * rank);
       },
       "rank 0 (host a, pid 100) was killed by signal 9 (SIGKILL) 4.0 s after the start, as the "
       "first of all"},
      // An exception that nobody caught.
      {{2},
       [](auto& job) {
         job.rank(1).cause = RecordedCause{"uncaught exception", 0, seconds(1004.0)};
         job.rank(1).phase = "epoch 1";
         job.ended(1, 6, 0, 1004.2);
         job.ended(0, 9, 0, 1004.1, true);
       },
       "rank 1 (host a, pid 101) failed first, 4.0 s after the start, in epoch 1: uncaught "
       "exception"},
      {{2, 1},
       [](auto& job) {
         for (const int rank : {0, 2}) job.submits(rank, "a", 1004.0);
         job.rank(1).phase = "loading data";
         job.horarun_ends_the_rest(1064.0);
       },
       "rank 1 (host a, pid 101) never came to allreduce \"a\", for which ranks 0, 2 waited 60.0 "
       "s: it was in its own code for 60.8 s, after allreduce \"b\", in loading data"},
      // It had come late to the collective before, after the others had gone on.
      {{2},
       [](auto& job) {
         job.submits(0, "a", 1004.0, 7);
         job.submits(0, "b", 1004.1);
         job.submits(1, "a", 1006.0, 7);
         job.horarun_ends_the_rest(1064.1);
       },
       "rank 1 (host a, pid 101) never came to allreduce \"b\", for which rank 0 waited 60.0 s: it "
       "was in its own code for 58.1 s, after allreduce \"a\""},
      // A collective that fails with its rank was waited for until then.
      {{2},
       [](auto& job) {
         job.submits(0, "a", 1004.0);
         job.failed(0, "too late", ErrorCode::timeout, 1014.0);
         job.rank(0).collectives.back().outcome = RecordOutcome::failed;
         job.rank(0).collectives.back().done = seconds(1014.0);
         job.ended(0, 0, 1, 1014.5);
         job.horarun_ends_the_rest(1014.6);
       },
       "rank 1 (host a, pid 101) never came to allreduce \"a\", for which rank 0 waited 10.0 s"},
      // One that had failed by itself before, as ranks disagreed on it, was not.
      {{2},
       [](auto& job) {
         job.submits(0, "a", 1004.0);
         job.failed(0, "too late", ErrorCode::timeout, 1014.0);
         job.rank(0).collectives.back().outcome = RecordOutcome::failed;
         job.rank(0).collectives.back().done = seconds(1005.0);
         job.ended(0, 0, 1, 1014.5);
         job.horarun_ends_the_rest(1014.6);
       },
       "rank 0 (host a, pid 100) failed first"},
      // Decided, but node 2 never heard of it.
      {{2, 2, 2},
       [](auto& job) {
         job.all_submit("a", 1004.0);
         for (const int rank : {0, 1, 2, 3}) {
           job.rank(rank).collectives.back().number = 7;
           job.rank(rank).collectives.back().ready = seconds(1004.1);
         }
         job.horarun_ends_the_rest(1039.0);
       },
       "all ranks came to allreduce \"a\", but on node 2 (host c, ranks 4, 5) it was not done "
       "within "
       "35.0 s: are the nodes cut off from each other?"},
      {{2, 2},
       [](auto& job) {
         job.all_submit("a", 1004.0);
         job.horarun_ends_the_rest(1039.0);
       },
       "all ranks came to allreduce \"a\", but on node 0 (host a, ranks 0, 1) and node 1 (host b, "
       "ranks 2, 3) it was not done within 35.0 s: are the nodes cut off"},
      {{2, 2},
       [](auto& job) {
         for (const int rank : {0, 1}) job.submits(rank, "a", 1004.0);
         job.lose(2), job.lose(3);
         job.horarun_ends_the_rest(1039.0);
       },
       "ranks 2, 3 never came to allreduce \"a\", for which ranks 0, 1 waited 35.0 s: each left no "
       "record"},
      {{3},
       [](auto& job) {
         job.all_submit("a", 1004.0, 7);
         for (const int rank : {1, 2}) {
           job.rank(rank).collectives.back().done = {};
           job.rank(rank).collectives.back().outcome = RecordOutcome::open;
         }
         job.rank(2).stopped = true;
         job.horarun_ends_the_rest(1064.0);
       },
       "all ranks came to allreduce \"a\", but on ranks 1, 2 it was not done within 60.0 s: rank 2 "
       "(host a, pid 102) was stopped"},
      {{2},
       [](auto& job) {
         job.submits(0, "a", 1004.0);
         job.rank(1).state = RecordState::in_shutdown;
         job.horarun_ends_the_rest(1064.0);
       },
       "rank 1 (host a, pid 101) never came to allreduce \"a\", for which rank 0 waited 60.0 s: it "
       "had called Context::shutdown()"},
      // A rank that has joined brings nothing, and is not waited for.
      {{3},
       [](auto& job) {
         job.submits(2, "hora.join", 1004.0);
         job.rank(2).collectives.back().kind = OperationKind::join;
         job.submits(0, "a", 1004.0);
         job.horarun_ends_the_rest(1064.0);
       },
       "rank 1 (host a, pid 101) never came to allreduce \"a\""},
      // Only the ranks of a set are expected there.
      {{4},
       [](auto& job) {
         for (const int rank : {1, 3}) job.submits(rank, "x", 1004.0, 1, 2);
         job.submits(3, "y", 1004.5, 0, 2);
         job.horarun_ends_the_rest(1064.5);
       },
       "rank 1 (host a, pid 101) never came to allreduce \"y\" (set 2)"}};
  for (const Case& each : cases) {
    ConstructedJob job = trained(each.nodes);
    each.happens(job);
    EXPECT_THAT(diagnose(job.records()).headline, StartsWith(each.headline));
  }
}

TEST(Diagnosis, OfARankThatWasStopped) {
  for (const bool comes_when_continued_to_be_ended : {false, true}) {
    ConstructedJob job = trained({3});
    for (const int rank : {0, 2}) job.submits(rank, "a", 1004.0);
    job.rank(1).stopped = true;
    for (const int rank : {0, 2}) {
      job.failed(rank, "tensor \"a\" is not complete", ErrorCode::timeout, 1064.0);
      job.ended(rank, 0, 1, 1064.1);
    }
    if (comes_when_continued_to_be_ended) job.submits(1, "a", 1064.1);
    job.ended(1, 9, 0, 1064.2, true);
    EXPECT_EQ(diagnose(job.records()).headline,
              "rank 1 (host a, pid 101) never came to allreduce \"a\", for which ranks 0, 2 waited "
              "60.0 s: it was stopped");
  }
}

TEST(Diagnosis, HasATableOfAllRanks) {
  ConstructedJob job = trained({2, 2});
  for (const int rank : {0, 2}) job.submits(rank, "a", 1004.0);
  job.rank(1).phase = "epoch 3";
  job.lose(3);
  job.ended(1, 9, 0, 1004.3);
  job.failed(0, "cut\noff", ErrorCode::transport, 1004.6);
  job.horarun_ends_the_rest(1004.8);
  EXPECT_EQ(to_text(diagnose(job.records())),
            "rank 1 (host a, pid 101) was killed by signal 9 (SIGKILL) 4.3 s after the start, in "
            "epoch 3, "
            "as the first of all; ranks 0, 2 waited for it at allreduce \"a\" for up to 0.8 s\n"
            "\n"
            "rank  host  end                                                 collectives           "
            "         phase\n"
            "   0  a     was ended by horarun (signal 9 (SIGKILL)) at 4.8 s  waits for allreduce "
            "\"a\" 0.6 s\n"
            "   1  a     was killed by signal 9 (SIGKILL) at 4.3 s           last allreduce "
            "\"b\" at 3.2 s    epoch 3\n"
            "   2  b     was ended by horarun (signal 9 (SIGKILL)) at 4.8 s  waits for allreduce "
            "\"a\" 0.8 s\n"
            "\n"
            "rank 0 at 4.6 s: cut\\noff\n"
            "rank 3: no record\n");
}

TEST(Diagnosis, IsShortWhateverSizeARecordClaims) {
  const internal::test::TemporaryFolder folder;
  ConstructedJob job = trained({1});
  job.rank(0).size = std::numeric_limits<int>::max();
  ASSERT_TRUE(internal::write_record(job.rank(0), folder.path()));
  const std::string text = to_text(diagnose(folder.path().string()).value());
  EXPECT_THAT(text, HasSubstr("ranks 1-65535: no record"));
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 10) << text;
}

TEST(JobRecords, AreReadFromAFolder) {
  const TemporaryFolder folder;
  ConstructedJob job({1, 2});
  job.all_submit("a", 1001.0, 1);
  for (const auto& [rank, record] : job.records().of_rank) {
    ASSERT_TRUE(internal::write_record(record, folder.path()));
  }
  // Passed over.
  for (const char* name : {"notes.txt", "hora-record.json", "hora-record.x.json",
                           "hora-record.-1.json", "hora-record.99999999.json"}) {
    std::ofstream(folder.file(name)) << "{}";
  }
  const JobRecords read = read_records(folder.path()).value();
  EXPECT_EQ(read.size, 3);
  EXPECT_EQ(read.of_rank, job.records().of_rank);
  EXPECT_THAT(read.problems, ElementsAre());
}

TEST(JobRecords, NameFilesThatCannotBeUsed) {
  const TemporaryFolder folder;
  ConstructedJob job({3});
  ASSERT_TRUE(internal::write_record(job.rank(0), folder.path()));
  std::ofstream(folder.file("hora-record.1.json")) << "{\"hora_record\":";
  std::ofstream(folder.file("hora-record.2.json")) << internal::to_json(job.rank(1));
  const JobRecords read = read_records(folder.path()).value();
  EXPECT_EQ(read.size, 3);
  EXPECT_EQ(read.of_rank.size(), 1u);
  EXPECT_THAT(read.problems,
              ElementsAre(HasSubstr("hora-record.1.json\" cannot be used: it is no JSON"),
                          HasSubstr("hora-record.2.json\" cannot be used: it is rank 1's")));
  EXPECT_THAT(to_text(diagnose(read)), HasSubstr("it is no JSON"));
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
  EXPECT_THAT(diagnose(folder.file("missing")).error(), HasSubstr("cannot be read: No such file"));
  EXPECT_THAT(diagnose(folder.path().string()).error(),
              HasSubstr("has no hora-record.<rank>.json; give the folder"));
  std::ofstream(folder.file("hora-record.0.json")) << "[]";
  EXPECT_THAT(diagnose(folder.path().string()).error(),
              HasSubstr("has no record that can be used: "));
}

}  // namespace
}  // namespace hora::launch
