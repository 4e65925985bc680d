#include "core/launch/diagnose/diagnosis.h"

#include <hora/error.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <utility>

#include "core/base/text.h"
#include "core/launch/diagnose/diagnosis_text.h"
#include "core/launch/diagnose/meetings.h"

namespace hora::launch {
namespace {

using internal::FlightRecord;
using internal::RecordedCollective;
using internal::RecordTime;

/// Ranks that die this close together have died of one thing. On busy cores guards see it some time
/// later.
constexpr RecordTime kAtOnce = std::chrono::milliseconds(250);
/// A wait that is shorter is no hang.
constexpr RecordTime kLongWait = std::chrono::seconds(1);

/// An error that says what another rank has not done.
bool is_consequence(const internal::RecordedCause& cause) {
  return cause.is(ErrorCode::timeout) || cause.is(ErrorCode::transport) ||
         cause.is(ErrorCode::shut_down) || cause.is_told();
}

/// A rank that failed or ended by itself.
struct Failure {
  int rank = 0;
  bool is_late = false;  ///< as others are ended after the first
  RecordTime time{};
  bool has_cause = false;
  bool operator<(const Failure& other) const {
    return is_late != other.is_late ? other.is_late : time < other.time;
  }
};

class Case {
 public:
  explicit Case(JobRecords records) : job_(std::move(records)) {
    use_one_clock(job_);
    meetings_ = open_meetings(job_);
    find_failures();
    for (const auto& [rank, record] : job_.of_rank) {
      if (record.begin.count() == 0) continue;
      if (begin_.count() == 0 || record.begin < begin_) begin_ = record.begin;
    }
  }

  Diagnosis diagnosis() const {
    Diagnosis result{.headline = headline(), .ranks = {}, .notes = notes()};
    // The others are in the notes: what a record says of the job's size may be damage.
    for (const auto& [rank, record] : job_.of_rank) result.ranks.push_back(finding(rank, record));
    return result;
  }

 private:
  void find_failures();
  std::string headline() const;
  bool went_well() const;
  const Meeting* hang() const;
  std::optional<std::string> died_at_once() const;
  std::string failure_text(const Failure& failure) const;
  std::string meeting_text(const Meeting& meeting) const;
  std::string incomplete_text(const Meeting& meeting) const;
  std::string absence_text(const Meeting& meeting, int rank) const;
  bool went_past(const Meeting& meeting, int rank) const;
  std::optional<std::string> crossed_text(const Meeting& meeting) const;
  std::string nodes_text(const std::vector<int>& ranks) const;
  RankFinding finding(int rank, const FlightRecord& record) const;
  std::string activity_text(const FlightRecord& record) const;
  std::vector<std::string> notes() const;

  const FlightRecord* record_of(int rank) const {
    const auto found = job_.of_rank.find(rank);
    return found == job_.of_rank.end() ? nullptr : &found->second;
  }
  std::string at(RecordTime time) const { return duration_text(time - begin_); }

  JobRecords job_;
  std::vector<Meeting> meetings_;
  std::vector<Failure> failures_;  ///< the first one first
  RecordTime begin_{};             ///< of the job
};

void Case::find_failures() {
  for (const auto& [rank, record] : job_.of_rank) {
    if (record.cause && !is_consequence(*record.cause)) {
      failures_.push_back({rank, false, record.cause->time, true});
    } else if (record.ended && !ended_well(record) && !record.ended->by_launcher) {
      // MPI ends the others by SIGTERM; a rank with an error about others was not the first.
      const bool is_late = record.ended->signal == SIGTERM || record.cause;
      failures_.push_back({rank, is_late, record.ended->time, false});
    }
  }
  std::sort(failures_.begin(), failures_.end());
}

bool Case::went_well() const {
  return static_cast<int>(job_.of_rank.size()) == job_.size &&
         std::all_of(job_.of_rank.begin(), job_.of_rank.end(),
                     [](const auto& one) { return ended_well(one.second); });
}

/// The collective that ranks waited for in vain, if that was before anything else: who never came
/// has not failed before.
const Meeting* Case::hang() const {
  const auto found = std::find_if(meetings_.begin(), meetings_.end(), [&](const Meeting& meeting) {
    if (meeting.waited < kLongWait) return false;
    if (failures_.empty() || failures_.front().is_late) return true;
    const Failure& first = failures_.front();
    const bool of_absent =
        std::find(meeting.behind.begin(), meeting.behind.end(), first.rank) != meeting.behind.end();
    return !first.has_cause && !of_absent && first.time - meeting.first >= kLongWait;
  });
  return found == meetings_.end() ? nullptr : &*found;
}

std::optional<std::string> Case::died_at_once() const {
  if (failures_.size() < 2 || static_cast<int>(failures_.size()) != job_.size) return std::nullopt;
  RecordTime first = failures_.front().time;
  RecordTime last = first;
  const std::string how = end_text(*record_of(failures_.front().rank));
  for (const Failure& failure : failures_) {
    if (failure.has_cause || end_text(*record_of(failure.rank)) != how) return std::nullopt;
    first = std::min(first, failure.time);
    last = std::max(last, failure.time);
  }
  if (last - first > kAtOnce) return std::nullopt;
  // What horarun ends is no failure; ranks that do the same may well crash together.
  const bool is_killed = record_of(failures_.front().rank)->ended->signal == SIGKILL;
  return "all " + std::to_string(job_.size) + " ranks ended at once, within " +
         duration_text(last - first) + ": each " + how + " " + at(first) + " after the start" +
         (is_killed ? ", so the reason lies outside of them" : "");
}

std::string Case::failure_text(const Failure& failure) const {
  const FlightRecord& record = *record_of(failure.rank);
  std::string text = rank_text(job_, failure.rank) + " ";
  if (failure.has_cause) {
    text += "failed first, " + at(failure.time) + " after the start" + phase_text(record) + ": " +
            record.cause->text;
  } else {
    text += end_text(record) + " " + at(failure.time) + " after the start" + phase_text(record);
    if (job_.of_rank.size() > 1) text += ", as the first of all";
  }
  for (const Meeting& meeting : meetings_) {
    if (meeting.kind != Meeting::Kind::incomplete || failure.has_cause) continue;
    if (std::find(meeting.behind.begin(), meeting.behind.end(), failure.rank) ==
        meeting.behind.end()) {
      continue;
    }
    return text + "; " + internal::named_ranks(meeting.waiting) + " waited for it at " +
           collective_text(meeting.operation, meeting.name, meeting.set) + " for up to " +
           duration_text(meeting.waited);
  }
  return text;
}

/// Of ranks that are whole nodes: "node 1 (host b, ranks 2-3)"; else empty.
std::string Case::nodes_text(const std::vector<int>& ranks) const {
  std::map<int, std::vector<int>> nodes;
  for (const auto& [rank, record] : job_.of_rank) nodes[record.node].push_back(rank);
  if (nodes.size() < 2) return {};
  std::string text;
  std::size_t covered = 0;
  for (const auto& [node, members] : nodes) {
    if (!std::includes(ranks.begin(), ranks.end(), members.begin(), members.end())) continue;
    covered += members.size();
    text += (text.empty() ? "node " : " and node ") + std::to_string(node) + " (host " +
            record_of(members.front())->host + ", " + internal::named_ranks(members) + ")";
  }
  return covered == ranks.size() ? text : std::string();
}

/// Ranks that wait for each other at different collectives.
std::optional<std::string> Case::crossed_text(const Meeting& meeting) const {
  // One that went past it together with the others has skipped it.
  if (std::any_of(meeting.behind.begin(), meeting.behind.end(),
                  [&](int rank) { return went_past(meeting, rank); })) {
    return std::nullopt;
  }
  for (const Meeting& other : meetings_) {
    if (other.kind != Meeting::Kind::incomplete || &other == &meeting) continue;
    const auto waits_there = [&](int rank) {
      return std::binary_search(other.waiting.begin(), other.waiting.end(), rank);
    };
    const bool crossed =
        std::all_of(meeting.behind.begin(), meeting.behind.end(), waits_there) &&
        std::any_of(meeting.waiting.begin(), meeting.waiting.end(), [&](int rank) {
          return std::binary_search(other.behind.begin(), other.behind.end(), rank);
        });
    if (!crossed) continue;
    return "ranks wait for each other at different collectives: " +
           ranks_text_of(job_, meeting.behind) + " at " +
           collective_text(other.operation, other.name, other.set) + ", " +
           ranks_text_of(job_, meeting.waiting) + " at " +
           collective_text(meeting.operation, meeting.name, meeting.set) + ", for " +
           duration_text(meeting.waited) +
           "; did one of them skip a call, or do they differ in order?";
  }
  return std::nullopt;
}

bool Case::went_past(const Meeting& meeting, int rank) const {
  const FlightRecord* const record = record_of(rank);
  return record && std::any_of(record->collectives.begin(), record->collectives.end(),
                               [&](const RecordedCollective& one) {
                                 return one.set == meeting.set && one.number > 0 &&
                                        comes_after(job_, meeting, one);
                               });
}

/// What a rank did instead of coming; what follows "it".
std::string Case::absence_text(const Meeting& meeting, int rank) const {
  const FlightRecord* const record = record_of(rank);
  if (!record) return "left no record";
  if (record->stopped) return "was stopped" + phase_text(*record);
  if (record->pid == 0) return "had not called hora::init";
  if (record->ended && !record->ended->by_launcher && !record->cause) {
    return end_text(*record) + " " + at(record->ended->time) + " after the start" +
           phase_text(*record);
  }
  if (record->state == internal::RecordState::in_shutdown ||
      record->state == internal::RecordState::shut_down) {
    return "had called Context::shutdown()";
  }
  if (record->collectives.empty()) return "had submitted nothing at all" + phase_text(*record);
  for (const RecordedCollective& one : record->collectives) {
    if (!comes_after(job_, meeting, one)) continue;
    return "went on to " + collective_text(one.kind, one.name, one.set) + phase_text(*record);
  }
  const RecordedCollective& last = record->collectives.back();
  const RecordTime idle = std::max(RecordTime(0), end_of(*record) - last.submitted);
  return std::string(waits_undecided(*record, last) ? "waited" : "was in its own code") + " for " +
         duration_text(idle) + ", after " + collective_text(last.kind, last.name, last.set) +
         phase_text(*record);
}

std::string Case::incomplete_text(const Meeting& meeting) const {
  const std::string name = collective_text(meeting.operation, meeting.name, meeting.set);
  if (auto crossed = crossed_text(meeting)) return *crossed;
  const std::string nodes = nodes_text(meeting.behind);
  std::string text = (nodes.empty() ? ranks_text_of(job_, meeting.behind) : nodes) +
                     " never came to " + name + ", for which " +
                     internal::named_ranks(meeting.waiting) + " waited " +
                     duration_text(meeting.waited);
  std::vector<std::string> reasons;
  for (const int rank : meeting.behind) {
    const std::string reason = absence_text(meeting, rank);
    if (std::find(reasons.begin(), reasons.end(), reason) == reasons.end()) {
      reasons.push_back(reason);
    }
  }
  // Several ranks that did different things: the table has them.
  if (reasons.size() > 1) return text;
  return text + (meeting.behind.size() == 1 ? ": it " : ": each ") + reasons.front();
}

std::string Case::meeting_text(const Meeting& meeting) const {
  const std::string name = collective_text(meeting.operation, meeting.name, meeting.set);
  const std::string waited = duration_text(meeting.waited);
  const std::string nodes = nodes_text(meeting.behind);
  const std::string behind = nodes.empty() ? ranks_text_of(job_, meeting.behind) : nodes;
  switch (meeting.kind) {
    case Meeting::Kind::incomplete:
      return incomplete_text(meeting);
    case Meeting::Kind::undelivered:
      return behind + " never learned that " + name + " was decided, and waited " + waited +
             ": cut off from the others";
    case Meeting::Kind::undecided:
      return "all ranks came to " + name + ", but they could not agree on it for " + waited +
             ": the nodes are cut off from each other, or a leader of a node hangs";
    case Meeting::Kind::unfinished:
      break;
  }
  std::vector<int> stopped;
  for (const int rank : meeting.behind) {
    if (record_of(rank)->stopped) stopped.push_back(rank);
  }
  std::string text =
      name + " was decided, but its data did not arrive on " + behind + " within " + waited;
  if (!stopped.empty()) text += ": " + ranks_text_of(job_, stopped) + " was stopped";
  return text;
}

std::string Case::headline() const {
  if (went_well()) {
    return "nothing went wrong: all " + std::to_string(job_.size) + " ranks shut hora down";
  }
  if (const Meeting* const meeting = hang()) return meeting_text(*meeting);
  if (const auto together = died_at_once()) return *together;
  if (!failures_.empty() && !failures_.front().is_late) return failure_text(failures_.front());
  const FlightRecord* first = nullptr;
  for (const auto& [rank, record] : job_.of_rank) {
    if (record.cause && (!first || record.cause->time < first->cause->time)) first = &record;
  }
  if (first) {
    return rank_text(job_, first->rank) + " failed first, " + at(first->cause->time) +
           " after the start: " + first->cause->text;
  }
  if (!failures_.empty()) return failure_text(failures_.front());
  if (!meetings_.empty()) return meeting_text(meetings_.front());
  if (static_cast<int>(job_.of_rank.size()) < job_.size) {
    return "no rank with a record has failed or waited; the others left none";
  }
  return "no rank has failed, and none waits for another";
}

std::string Case::activity_text(const FlightRecord& record) const {
  const RecordedCollective* waits = nullptr;
  const RecordedCollective* last = nullptr;
  for (const RecordedCollective& one : record.collectives) {
    const bool is_open = one.outcome == internal::RecordOutcome::open ||
                         (one.number == 0 && waits_undecided(record, one));
    if (is_open && (!waits || one.submitted < waits->submitted)) waits = &one;
    if (!last || one.submitted >= last->submitted) last = &one;
  }
  if (waits) {
    return "waits for " + collective_text(waits->kind, waits->name, waits->set) + " " +
           duration_text(std::max(RecordTime(0), end_of(record) - waits->submitted));
  }
  if (!last) return "none";
  return "last " + collective_text(last->kind, last->name, last->set) + " at " +
         at(last->submitted);
}

RankFinding Case::finding(int rank, const FlightRecord& record) const {
  std::string end = end_text(record);
  if (record.ended) end += " at " + at(record.ended->time);
  return {rank, record.host, end, activity_text(record), record.phase};
}

std::vector<std::string> Case::notes() const {
  std::vector<std::string> notes;
  for (const auto& [rank, record] : job_.of_rank) {
    if (!record.cause) continue;
    notes.push_back("rank " + std::to_string(rank) + " at " + at(record.cause->time) + ": " +
                    record.cause->text);
  }
  std::vector<int> missing;
  for (int rank = 0; rank < job_.size; ++rank) {
    if (!record_of(rank)) missing.push_back(rank);
  }
  if (!missing.empty()) notes.push_back(internal::named_ranks(missing) + ": no record");
  notes.insert(notes.end(), job_.problems.begin(), job_.problems.end());
  return notes;
}

}  // namespace

Diagnosis diagnose(JobRecords job) {
  return Case(std::move(job)).diagnosis();
}

tl::expected<Diagnosis, std::string> diagnose(const std::string& folder) {
  auto job = read_records(folder);
  if (!job) return tl::unexpected(job.error());
  return diagnose(std::move(*job));
}

}  // namespace hora::launch
