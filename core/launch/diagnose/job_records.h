/// The flight records of a job's ranks, and one clock for all of them.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "core/flight/record_reader.h"

namespace hora::launch {

/// More ranks are not looked for.
inline constexpr int kMostRecords = 65536;

struct JobRecords {
  int size = 0;  ///< ranks of the job
  std::map<int, internal::FlightRecord> of_rank;
  std::vector<std::string> problems;  ///< files that cannot be used, and what else is missing
};

/// All "hora-record.<rank>.json" of a folder; other files are passed over. The error names the
/// folder and what is wrong with it, where there is no record that can be read.
tl::expected<JobRecords, std::string> read_records(const std::string& folder);

/// Puts all times of all records on the clock of the first one's host. Ranks of a node share a
/// clock. Every rank of a process set finishes a collective at about the same moment, because each
/// needs all the others': the median of these differences is the difference of two clocks, whatever
/// their wall clocks say. These are used, and a problem noted, only for nodes that have no
/// collective in common.
void use_one_clock(JobRecords& job);

}  // namespace hora::launch
