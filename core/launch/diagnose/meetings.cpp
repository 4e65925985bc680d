#include "core/launch/diagnose/meetings.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace hora::launch {
namespace {

using internal::FlightRecord;
using internal::OperationKind;
using internal::RecordedCollective;
using internal::RecordOutcome;
using internal::RecordTime;

/// True where its failure is the rank's: an error of this collective alone came before.
bool failed_with_rank(const FlightRecord& record, const RecordedCollective& one) {
  return one.outcome == RecordOutcome::failed && record.cause && one.done >= record.cause->time;
}

bool unfinished(const FlightRecord& record, const RecordedCollective& one) {
  return one.number > 0 && (one.outcome == RecordOutcome::open || failed_with_rank(record, one));
}

/// What one rank has to do with a name of a set.
struct Part {
  const FlightRecord* record = nullptr;
  const RecordedCollective* last = nullptr;  ///< its last submission of the name
};

using Subject = std::pair<std::uint32_t, std::string>;  // set and name

/// By rank.
using Parts = std::map<int, Part>;

std::map<Subject, Parts> parts_of(const JobRecords& job) {
  std::map<Subject, Parts> subjects;
  for (const auto& [rank, record] : job.of_rank) {
    for (const RecordedCollective& one : record.collectives) {
      if (one.kind == OperationKind::join) continue;
      subjects[{one.set, one.name}][rank] = {&record, &one};
    }
  }
  return subjects;
}

/// What ranks know of a set.
struct SetFacts {
  std::set<int> members;
  std::uint32_t peers = 0;
  std::map<int, std::uint64_t> decided;  ///< by rank: the last number
  std::set<int> joined;
};

std::map<std::uint32_t, SetFacts> sets_of(const JobRecords& job) {
  std::map<std::uint32_t, SetFacts> sets;
  for (int rank = 0; rank < job.size; ++rank) sets[0].members.insert(rank);
  for (const auto& [rank, record] : job.of_rank) {
    for (const RecordedCollective& one : record.collectives) {
      SetFacts& facts = sets[one.set];
      facts.members.insert(rank);
      facts.peers = std::max(facts.peers, one.peers);
      facts.decided[rank] = std::max(facts.decided[rank], one.number);
      const bool is_join = one.kind == OperationKind::join;
      if (is_join && waits_undecided(record, one)) facts.joined.insert(rank);
    }
  }
  return sets;
}

/// The collective that `waiting` wait for has been decided on `part`'s rank: it is beyond what they
/// know.
bool has_gone_on(const Part& part, const SetFacts& facts, const std::vector<int>& waiting) {
  return std::any_of(waiting.begin(), waiting.end(), [&](int rank) {
    const auto known = facts.decided.find(rank);
    return part.last->number > (known == facts.decided.end() ? 0 : known->second);
  });
}

RecordTime waited_by(const Part& part) {
  return std::max(RecordTime(0), end_of(*part.record) - part.last->submitted);
}

void note_waiting(Meeting& meeting, int rank, const Part& part) {
  if (meeting.waiting.empty() || part.last->submitted < meeting.first) {
    meeting.first = part.last->submitted;
  }
  meeting.waiting.push_back(rank);
  meeting.waited = std::max(meeting.waited, waited_by(part));
  meeting.operation = part.last->kind;
}

/// It was stopped, and came when it was continued to be ended.
bool came_at_the_end(const Part& part, const Meeting& meeting) {
  return part.record->stopped && waited_by(part) < meeting.waited / 2;
}

/// None waits: no meeting.
Meeting undecided_meeting(const Subject& subject, const Parts& parts, const SetFacts& facts) {
  Meeting meeting{.name = subject.second, .set = subject.first, .waiting = {}, .behind = {}};
  for (const auto& [rank, part] : parts) {
    if (waits_undecided(*part.record, *part.last)) note_waiting(meeting, rank, part);
  }
  if (meeting.waiting.empty()) return meeting;
  std::erase_if(meeting.waiting,
                [&](int rank) { return came_at_the_end(parts.at(rank), meeting); });
  std::vector<int> gone_on;
  for (const int rank : facts.members) {
    if (std::binary_search(meeting.waiting.begin(), meeting.waiting.end(), rank)) continue;
    const auto part = parts.find(rank);
    if (part != parts.end() && has_gone_on(part->second, facts, meeting.waiting)) {
      gone_on.push_back(rank);
    } else if (!(allows_joined(meeting.operation) && facts.joined.contains(rank))) {
      meeting.behind.push_back(rank);
    }
  }
  if (!meeting.behind.empty()) return meeting;
  meeting.kind = gone_on.empty() ? Meeting::Kind::undecided : Meeting::Kind::undelivered;
  if (!gone_on.empty()) meeting.behind = meeting.waiting;
  return meeting;
}

Meeting unfinished_meeting(const Subject& subject, const Parts& parts) {
  Meeting meeting{.kind = Meeting::Kind::unfinished,
                  .name = subject.second,
                  .set = subject.first,
                  .waiting = {},
                  .behind = {}};
  for (const auto& [rank, part] : parts) {
    if (unfinished(*part.record, *part.last)) note_waiting(meeting, rank, part);
  }
  meeting.behind = meeting.waiting;
  return meeting;
}

}  // namespace

RecordTime end_of(const FlightRecord& record) {
  if (record.cause) return record.cause->time;
  return record.ended ? record.ended->time : record.taken;
}

bool waits_undecided(const FlightRecord& record, const RecordedCollective& one) {
  return one.number == 0 && (one.outcome == RecordOutcome::open || failed_with_rank(record, one));
}

bool comes_after(const JobRecords& job, const Meeting& meeting, const RecordedCollective& one) {
  if (one.submitted <= meeting.first) return false;
  const auto is_same = [&](const RecordedCollective& other) {
    if (other.set != one.set || other.number != one.number) return false;
    return one.number > 0 || other.name == one.name;
  };
  return std::none_of(meeting.waiting.begin(), meeting.waiting.end(), [&](int rank) {
    const auto& collectives = job.of_rank.at(rank).collectives;
    const auto waits = std::find_if(collectives.rbegin(), collectives.rend(), [&](const auto& own) {
      return own.set == meeting.set && own.name == meeting.name;
    });
    // From there back to its first.
    return std::any_of(waits, collectives.rend(), is_same);
  });
}

std::vector<Meeting> open_meetings(const JobRecords& job) {
  const auto sets = sets_of(job);
  std::vector<Meeting> meetings;
  for (const auto& [subject, parts] : parts_of(job)) {
    Meeting undecided = undecided_meeting(subject, parts, sets.at(subject.first));
    Meeting open = unfinished_meeting(subject, parts);
    if (!undecided.waiting.empty()) meetings.push_back(std::move(undecided));
    if (!open.waiting.empty()) meetings.push_back(std::move(open));
  }
  std::stable_sort(meetings.begin(), meetings.end(),
                   [](const Meeting& a, const Meeting& b) { return a.waited > b.waited; });
  return meetings;
}

}  // namespace hora::launch
