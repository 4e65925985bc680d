/// How a diagnosis speaks: of ranks, collectives and times; to_text(Diagnosis) of diagnosis.h lays
/// it out as a table. Pure.
#pragma once

#include <span>
#include <string>

#include "core/launch/diagnose/meetings.h"

namespace hora::launch {

/// "60.1 s", "12 ms".
std::string duration_text(internal::RecordTime time);
/// "rank 3 (host b, pid 4711)"; "rank 3" where it has no record.
std::string rank_text(const JobRecords& job, int rank);
/// That of one rank; "ranks 0-2" of several.
std::string ranks_text_of(const JobRecords& job, std::span<const int> ranks);
/// "allreduce \"x\"", "barrier \"y\" (set 2)".
std::string collective_text(internal::OperationKind kind, const std::string& name,
                            std::uint32_t set);
/// ", in epoch 3, step 120"; empty where the program has noted nothing.
std::string phase_text(const internal::FlightRecord& record);

/// Whether the rank's end was regular, as far as its record says.
bool ended_well(const internal::FlightRecord& record);
/// "was killed by signal 9 (SIGKILL)", "left with exit status 0 without Context::shutdown()"; of a
/// rank that has not ended, what it was about.
std::string end_text(const internal::FlightRecord& record);

}  // namespace hora::launch
