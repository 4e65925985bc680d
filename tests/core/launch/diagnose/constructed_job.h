/// Records of jobs that never ran.
#pragma once

#include <hora/error.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "core/launch/diagnose/job_records.h"

namespace hora::launch::test {

using internal::FlightRecord;
using internal::OperationKind;
using internal::RecordedCollective;
using internal::RecordOutcome;
using internal::RecordState;
using internal::RecordTime;

inline RecordTime seconds(double value) {
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
    rank(number).cause =
        internal::RecordedCause{text, static_cast<std::uint32_t>(code) + 1, seconds(time)};
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

inline void ConstructedJob::advance_clocks(int node, double by) {
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

}  // namespace hora::launch::test
