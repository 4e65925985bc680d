/// Which ranks came to which collective, and which did not: of records on one clock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/launch/diagnose/job_records.h"

namespace hora::launch {

/// A collective that did not come about, or did not finish, and who waits for it.
struct Meeting {
  enum class Kind {
    incomplete,   ///< ranks never came
    undecided,    ///< all known ranks came, none knows that it was decided
    undelivered,  ///< decided, which only some ranks know
    unfinished,   ///< decided on all, and its data did not arrive
  };
  Kind kind = Kind::incomplete;
  std::string name;
  std::uint32_t set = 0;
  internal::OperationKind operation = internal::OperationKind::allreduce;
  std::vector<int> waiting;  ///< ascending
  /// Of incomplete: who never came, ranks without records included. Of undelivered: who does not
  /// know. Of unfinished: who has not finished it.
  std::vector<int> behind;
  internal::RecordTime first{};   ///< of the submissions of those who wait
  internal::RecordTime waited{};  ///< the longest
};

/// The one that has been waited for longest first.
std::vector<Meeting> open_meetings(const JobRecords& job);

/// Whether this collective, of a rank that has not come to the meeting, follows it in the program:
/// it was submitted after those who wait had come there, and they had not submitted it before that.
bool comes_after(const JobRecords& job, const Meeting& meeting,
                 const internal::RecordedCollective& collective);

/// Whether the rank waits for this collective to be decided when its record ends: it is open, or
/// failed because the rank itself had failed.
bool waits_undecided(const internal::FlightRecord& record,
                     const internal::RecordedCollective& collective);

/// The last moment that the record knows of the rank: its failure or end, or when it was taken.
internal::RecordTime end_of(const internal::FlightRecord& record);

}  // namespace hora::launch
