/// What happened to a job, from the flight records of its ranks: `horarun --diagnose DIR`.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/diagnose/job_records.h"

namespace hora::launch {

/// One rank of the table; texts that do not apply are empty.
struct RankFinding {
  int rank = 0;
  std::string host;
  std::string end;         ///< "killed by signal 9 (SIGKILL) at 12.3 s"
  std::string collective;  ///< "waits for allreduce \"x\" 60.1 s", "last: ..."
  std::string phase;       ///< what the program had noted
};

struct Diagnosis {
  std::string headline;            ///< what happened, in one line
  std::vector<RankFinding> ranks;  ///< those with a record
  std::vector<std::string>
      notes;  ///< the cause in its own words, what is missing, what is uncertain
};

/// Pure. The times in it are seconds since the first rank called hora::init.
Diagnosis diagnose(JobRecords job);
/// Of the records in a folder. The error says why there is nothing to be read there.
tl::expected<Diagnosis, std::string> diagnose(const std::string& folder);

/// The headline, the table and the notes, with an end of line behind each.
std::string to_text(const Diagnosis& diagnosis);

}  // namespace hora::launch
