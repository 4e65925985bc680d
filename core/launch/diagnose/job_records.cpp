#include "core/launch/diagnose/job_records.h"

#include <hora/printable.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/flight/record_reader.h"
#include "core/launch/options/text.h"

namespace hora::launch {
namespace {

using internal::FlightRecord;
using internal::RecordedCollective;
using internal::RecordTime;

/// The rank of "hora-record.<rank>.json"; none: another file.
std::optional<int> rank_of_file(std::string_view name) {
  constexpr std::string_view kBefore = "hora-record.";
  constexpr std::string_view kAfter = ".json";
  if (!name.starts_with(kBefore) || !name.ends_with(kAfter)) return std::nullopt;
  if (name.size() < kBefore.size() + kAfter.size()) return std::nullopt;
  name.remove_prefix(kBefore.size());
  name.remove_suffix(kAfter.size());
  int rank = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), rank);
  const bool is_rank = error == std::errc() && end == name.data() + name.size();
  return is_rank && rank >= 0 && rank < kMostRecords ? std::optional(rank) : std::nullopt;
}

void read_one(const std::string& path, int rank, JobRecords& job) {
  const auto refuse = [&](const std::string& why) {
    job.problems.push_back(in_quotes(path) + " cannot be used: " + why);
  };
  const auto text = read_input_file(path, internal::kLongestRecordFile);
  if (!text) return refuse(text.error());
  auto record = internal::record_from_json(*text);
  if (!record) return refuse(record.error());
  if (record->rank < 0) record->rank = rank;
  if (record->rank != rank) return refuse("it is rank " + std::to_string(record->rank) + "'s");
  job.size = std::max({job.size, std::min(record->size, kMostRecords), rank + 1});
  job.of_rank.emplace(rank, std::move(*record));
}

/// Ranks that share a clock.
using HostClock = std::pair<std::string, int>;

HostClock clock_of(const FlightRecord& record) {
  return {record.host, record.node};
}

using Ends = std::map<std::pair<std::uint32_t, std::uint64_t>, RecordTime>;

/// When collectives were done, by set and number.
Ends ends_of(const FlightRecord& record) {
  Ends ends;
  for (const RecordedCollective& one : record.collectives) {
    if (one.number > 0 && one.outcome == internal::RecordOutcome::done) {
      ends[{one.set, one.number}] = one.done;
    }
  }
  return ends;
}

void append_differences(const Ends& reference, const Ends& other, std::vector<RecordTime>& to) {
  for (const auto& [collective, time] : other) {
    const auto same = reference.find(collective);
    if (same != reference.end()) to.push_back(time - same->second);
  }
}

RecordTime median(std::vector<RecordTime> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void move_back(RecordTime& time, RecordTime by) {
  // What has not happened stays so.
  if (time.count() != 0) time -= by;
}

void move_back(FlightRecord& record, RecordTime by) {
  for (RecordTime* time : {&record.begin, &record.last_activity, &record.taken, &record.phase_at}) {
    move_back(*time, by);
  }
  if (record.cause) move_back(record.cause->time, by);
  if (record.ended) move_back(record.ended->time, by);
  for (RecordedCollective& one : record.collectives) {
    for (RecordTime* time : {&one.submitted, &one.ready, &one.started, &one.done}) {
      move_back(*time, by);
    }
  }
}

/// Wall clocks that differ by more say nothing.
constexpr RecordTime kMostBetweenWalls = std::chrono::hours(24 * 366);

/// By how much `other`'s clock is ahead of `reference`'s, by their wall clocks; none: unknown.
std::optional<RecordTime> offset_by_walls(const FlightRecord& reference,
                                          const FlightRecord& other) {
  const RecordTime between = other.begin_wall - reference.begin_wall;
  if (between > kMostBetweenWalls || between < -kMostBetweenWalls) return std::nullopt;
  return other.begin - reference.begin - between;
}

}  // namespace

tl::expected<JobRecords, std::string> read_records(const std::string& folder) {
  const auto refuse = [&](const std::string& why) {
    return tl::unexpected("the folder " + in_quotes(folder) + " " + why +
                          "; give the folder that HORA_RECORD_DIRECTORY named in the job, with the "
                          "files of all hosts");
  };
  std::error_code error;
  std::filesystem::directory_iterator files(folder, error);
  if (error) return refuse("cannot be read: " + error.message());
  JobRecords job;
  std::map<int, std::string> paths;
  for (const std::filesystem::directory_iterator end; files != end; files.increment(error)) {
    if (error) return refuse("cannot be read: " + error.message());
    const auto rank = rank_of_file(files->path().filename().native());
    if (rank) paths[*rank] = files->path().string();
  }
  if (paths.empty()) return refuse("has no hora-record.<rank>.json");
  for (const auto& [rank, path] : paths) read_one(path, rank, job);
  if (job.of_rank.empty()) return refuse("has no record that can be used: " + job.problems.front());
  return job;
}

void use_one_clock(JobRecords& job) {
  if (job.of_rank.empty()) return;
  const FlightRecord& first = job.of_rank.begin()->second;
  const HostClock reference = clock_of(first);
  Ends of_reference;
  for (const auto& [rank, record] : job.of_rank) {
    if (clock_of(record) == reference) of_reference.merge(ends_of(record));
  }
  std::map<HostClock, std::vector<RecordTime>> differences;
  for (const auto& [rank, record] : job.of_rank) {
    if (clock_of(record) != reference) {
      append_differences(of_reference, ends_of(record), differences[clock_of(record)]);
    }
  }
  std::map<HostClock, RecordTime> offsets;
  for (const auto& [rank, record] : job.of_rank) {
    const HostClock clock = clock_of(record);
    if (clock == reference || offsets.contains(clock)) continue;
    if (!differences[clock].empty()) {
      offsets[clock] = median(differences[clock]);
      continue;
    }
    const auto offset = offset_by_walls(first, record);
    offsets[clock] = offset.value_or(RecordTime(0));
    job.problems.push_back("the clock of host " + in_quotes(record.host) + " " +
                           (offset ? "is compared by the time of day" : "cannot be compared") +
                           ": its ranks have no collective in common with those of " +
                           in_quotes(first.host));
  }
  for (auto& [rank, record] : job.of_rank) {
    const auto offset = offsets.find(clock_of(record));
    if (offset != offsets.end()) move_back(record, offset->second);
  }
}

}  // namespace hora::launch
