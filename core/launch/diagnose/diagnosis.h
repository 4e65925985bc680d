/// The first cause of what happened to a job, from the flight records of its ranks: `horarun
/// --diagnose DIR`.
#pragma once

#include <map>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "core/flight/flight_recorder.h"

namespace hora::launch {

struct JobRecords {
  int size = 0;  ///< ranks of the job
  std::map<int, internal::FlightRecord> of_rank;
  std::vector<std::string> problems;  ///< files that cannot be used, and what else is missing
};

/// All "hora-record.<rank>.json" of a folder; other files are passed over. The error names the
/// folder and what is wrong with it, where there is no record that can be read.
tl::expected<JobRecords, std::string> read_records(const std::string& folder);

/// Rank, host, end ("killed by signal 9 (SIGKILL) at 12.3 s"), collectives ("waits for allreduce
/// \"x\" 60.1 s"), and the phase that the program has noted; texts that do not apply are empty.
using RankRow = std::vector<std::string>;

struct Diagnosis {
  std::string headline = {};        ///< the first cause, in one line
  std::vector<RankRow> ranks = {};  ///< those with a record
  /// The cause in its own words, what is missing, what is uncertain.
  std::vector<std::string> notes = {};
};

/// Pure. The times in it are seconds since the first rank called hora::init.
Diagnosis diagnose(JobRecords job);
/// The same for the records in a folder. The error says why there is nothing to be read there.
tl::expected<Diagnosis, std::string> diagnose(const std::string& folder);

/// The headline, the table and the notes, with an end of line behind each.
std::string to_text(const Diagnosis& diagnosis);

}  // namespace hora::launch
