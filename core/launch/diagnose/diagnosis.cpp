#include "core/launch/diagnose/diagnosis.h"

#include <hora/printable.h>
#include <spdlog/fmt/fmt.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <functional>
#include <set>
#include <system_error>

#include "core/base/text.h"
#include "core/launch/control/system.h"
#include "core/launch/text.h"

namespace hora::launch {
namespace {

using internal::FlightRecord;
using internal::OperationKind;
using internal::RecordedCollective;
using internal::RecordOutcome;
using internal::RecordState;
using internal::RecordTime;

/// More ranks are not looked for.
constexpr int kMostRecords = 65536;
/// Later times are damage.
constexpr RecordTime kLatestWall{std::int64_t{1} << 62};

/// Puts a record's times on the clock of the day, by which hosts can be compared: horarun warns at
/// its start where their clocks differ.
void use_wall_clock(FlightRecord& record) {
  const RecordTime ahead = std::min(record.begin_wall, kLatestWall) - record.begin;
  const auto move = [&](RecordTime& time) {
    if (time.count() != 0) time += ahead;  // else it has not happened
  };
  move(record.taken);
  if (record.cause) move(record.cause->time);
  if (record.ended) move(record.ended->time);
  for (RecordedCollective& one : record.collectives) {
    move(one.submitted);
    move(one.done);
  }
  move(record.begin);
}

void read_one(const std::string& path, int rank, JobRecords& job) {
  const auto refuse = [&](const std::string& why) {
    job.problems.push_back(fmt::format("{} cannot be used: {}", in_quotes(path), why));
  };
  const auto text = read_input_file(path, internal::kLongestRecordFile);
  if (!text) return refuse(text.error());
  auto record = internal::record_from_json(*text);
  if (!record) return refuse(record.error());
  if (record->rank < 0) record->rank = rank;
  if (record->rank != rank) return refuse(fmt::format("it is rank {}'s", record->rank));
  job.size = std::max({job.size, std::min(record->size, kMostRecords), rank + 1});
  job.of_rank.emplace(rank, std::move(*record));
}

// Meetings: which ranks came to which collective, and which did not.

/// A collective that did not come about, or did not finish, and who waits for it.
struct Meeting {
  bool all_came = false;
  std::string name;
  std::uint32_t set = 0;
  OperationKind operation = OperationKind::allreduce;
  std::vector<int> waiting = {};  ///< ascending
  /// Who never came, ranks without records included; where all came, who has not finished it.
  std::vector<int> behind = {};
  internal::RecordTime first{};   ///< of the submissions of those who wait
  internal::RecordTime waited{};  ///< the longest
};

/// True where its failure is the rank's: an error of this collective alone came before.
bool failed_with_rank(const FlightRecord& record, const RecordedCollective& one) {
  return one.outcome == RecordOutcome::failed && record.cause && one.done >= record.cause->time;
}

bool unfinished(const FlightRecord& record, const RecordedCollective& one) {
  return one.number > 0 && (one.outcome == RecordOutcome::open || failed_with_rank(record, one));
}

/// The last moment that the record knows of the rank: its failure or end, or when it was taken.
RecordTime end_of(const FlightRecord& record) {
  if (record.cause) return record.cause->time;
  return record.ended ? record.ended->time : record.taken;
}

/// True where the rank waits for this collective to be decided when its record ends: it is open, or
/// failed because the rank itself had failed.
bool waits_undecided(const FlightRecord& record, const RecordedCollective& one) {
  return one.number == 0 && (one.outcome == RecordOutcome::open || failed_with_rank(record, one));
}

/// One rank's part in a name of a set.
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

/// The ranks' knowledge of a set.
struct SetFacts {
  std::set<int> members;
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
  return std::ranges::any_of(waiting, [&](int rank) {
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
  Meeting meeting{.name = subject.second, .set = subject.first};
  for (const auto& [rank, part] : parts) {
    if (waits_undecided(*part.record, *part.last)) note_waiting(meeting, rank, part);
  }
  if (meeting.waiting.empty()) return meeting;
  std::erase_if(meeting.waiting,
                [&](int rank) { return came_at_the_end(parts.at(rank), meeting); });
  for (const int rank : facts.members) {
    if (std::ranges::binary_search(meeting.waiting, rank)) continue;
    const auto part = parts.find(rank);
    const bool has_come = part != parts.end() && has_gone_on(part->second, facts, meeting.waiting);
    const bool has_joined = allows_joined(meeting.operation) && facts.joined.contains(rank);
    if (!has_come && !has_joined) meeting.behind.push_back(rank);
  }
  meeting.all_came = meeting.behind.empty();
  if (meeting.all_came) meeting.behind = meeting.waiting;
  return meeting;
}

Meeting unfinished_meeting(const Subject& subject, const Parts& parts) {
  Meeting meeting{.all_came = true, .name = subject.second, .set = subject.first};
  for (const auto& [rank, part] : parts) {
    if (unfinished(*part.record, *part.last)) note_waiting(meeting, rank, part);
  }
  meeting.behind = meeting.waiting;
  return meeting;
}

/// True where this collective, of a rank that has not come to the meeting, follows it in the
/// program: it was submitted after those who wait had come there, and they had not submitted it
/// before that.
bool comes_after(const JobRecords& job, const Meeting& meeting, const RecordedCollective& one) {
  if (one.submitted <= meeting.first) return false;
  const auto is_same = [&](const RecordedCollective& other) {
    if (other.set != one.set || other.number != one.number) return false;
    return one.number > 0 || other.name == one.name;
  };
  return std::ranges::none_of(meeting.waiting, [&](int rank) {
    const auto& collectives = job.of_rank.at(rank).collectives;
    const auto waits = std::find_if(collectives.rbegin(), collectives.rend(), [&](const auto& own) {
      return own.set == meeting.set && own.name == meeting.name;
    });
    // From there back to its first.
    return std::any_of(waits, collectives.rend(), is_same);
  });
}

/// The one that has been waited for longest first.
std::vector<Meeting> open_meetings(const JobRecords& job) {
  const auto sets = sets_of(job);
  std::vector<Meeting> meetings;
  for (const auto& [subject, parts] : parts_of(job)) {
    Meeting undecided = undecided_meeting(subject, parts, sets.at(subject.first));
    Meeting open = unfinished_meeting(subject, parts);
    if (!undecided.waiting.empty()) meetings.push_back(std::move(undecided));
    if (!open.waiting.empty()) meetings.push_back(std::move(open));
  }
  std::ranges::stable_sort(meetings, std::greater(), &Meeting::waited);
  return meetings;
}

// Words for ranks, collectives and times.

/// "60.1 s", "12 ms".
std::string duration_text(RecordTime time) {
  const double seconds = std::chrono::duration<double>(time).count();
  return seconds < 0.1 ? fmt::format("{:.1f} ms", seconds * 1e3) : fmt::format("{:.1f} s", seconds);
}

/// "rank 3 (host b, pid 4711)"; "rank 3" where it has no record.
std::string rank_text(const JobRecords& job, int rank) {
  const auto record = job.of_rank.find(rank);
  if (record == job.of_rank.end() || record->second.pid == 0) return fmt::format("rank {}", rank);
  return fmt::format("rank {} (host {}, pid {})", rank, record->second.host, record->second.pid);
}

/// That of one rank; "ranks 0-2" of several.
std::string ranks_text_of(const JobRecords& job, std::span<const int> ranks) {
  return ranks.size() == 1 ? rank_text(job, ranks.front()) : internal::named_ranks(ranks);
}

/// "allreduce \"x\"", "barrier \"y\" (set 2)".
std::string collective_text(OperationKind kind, const std::string& name, std::uint32_t set) {
  const std::string of_set = set == 0 ? "" : fmt::format(" (set {})", set);
  return fmt::format("{} {}{}", name_of(kind), in_quotes(name), of_set);
}

/// ", in epoch 3, step 120"; empty where the program has noted nothing.
std::string phase_text(const FlightRecord& record) {
  return record.phase.empty() ? std::string() : ", in " + record.phase;
}

/// True where the rank's end was regular, as far as its record says.
bool shut_down_well(const FlightRecord& record) {
  const bool used_hora = record.pid != 0;
  const bool left_hora = !used_hora || record.state == RecordState::shut_down;
  if (!record.ended) return record.state == RecordState::shut_down;
  return left_hora && record.ended->signal == 0 && record.ended->status == 0;
}

/// "was killed by signal 9 (SIGKILL)", "left with exit status 0 without Context::shutdown()"; for a
/// rank that has not ended, what it was about.
std::string how_it_ended(const FlightRecord& record) {
  if (record.ended && record.ended->signal != 0) {
    const std::string how = signal_text(record.ended->signal);
    return record.ended->by_launcher ? "was ended by horarun (" + how + ")"
                                     : "was killed by " + how;
  }
  if (record.ended) {
    const bool in_hora = record.pid != 0 && record.state != RecordState::shut_down;
    return fmt::format("left with exit status {}{}", record.ended->status,
                       in_hora ? " without Context::shutdown()" : "");
  }
  if (record.stopped) return "was stopped";
  constexpr std::array kStates{"was in hora::init", "was running", "was in shutdown",
                               "had shut hora down", "had failed"};
  return kStates.at(static_cast<std::size_t>(record.state));
}

std::string name_of(const Meeting& meeting) {
  return collective_text(meeting.operation, meeting.name, meeting.set);
}

bool contains(const std::vector<int>& ranks, int rank) {
  return std::ranges::find(ranks, rank) != ranks.end();
}

/// Ranks that die this close together have died of one thing. On busy cores guards see it some time
/// later.
constexpr RecordTime kAtOnce = std::chrono::milliseconds(400);
/// A wait that is shorter is no hang.
constexpr RecordTime kLongWait = std::chrono::seconds(1);

/// An error that says what another rank has not done.
bool is_consequence(const internal::RecordedCause& cause) {
  return cause.is(ErrorCode::timeout) || cause.is(ErrorCode::transport) ||
         cause.is(ErrorCode::shut_down) || cause.is_told();
}

/// A rank that failed or ended by itself.
struct FailedRank {
  int rank = 0;
  bool is_late = false;  ///< as others are ended after the first
  RecordTime time{};
  bool has_cause = false;
  bool operator<(const FailedRank& other) const {
    return is_late != other.is_late ? other.is_late : time < other.time;
  }
};

class Case {
 public:
  explicit Case(JobRecords records) : job_(std::move(records)) {
    for (auto& [rank, record] : job_.of_rank) use_wall_clock(record);
    meetings_ = open_meetings(job_);
    find_failures();
    for (const auto& [rank, record] : job_.of_rank) {
      if (record.begin.count() == 0) continue;
      if (begin_.count() == 0 || record.begin < begin_) begin_ = record.begin;
    }
  }

  Diagnosis diagnosis() const {
    Diagnosis result{.headline = headline(), .notes = notes()};
    // The others are in the notes: what a record says of the job's size may be damage.
    for (const auto& [rank, record] : job_.of_rank) {
      std::string end = how_it_ended(record);
      if (record.ended) end += " at " + at(record.ended->time);
      result.ranks.push_back(
          {std::to_string(rank), record.host, end, activity_text(record), record.phase});
    }
    return result;
  }

 private:
  const FlightRecord* record_of(int rank) const {
    const auto found = job_.of_rank.find(rank);
    return found == job_.of_rank.end() ? nullptr : &found->second;
  }
  std::string at(RecordTime time) const { return duration_text(time - begin_); }

  void find_failures() {
    for (const auto& [rank, record] : job_.of_rank) {
      if (record.cause && !is_consequence(*record.cause)) {
        failures_.push_back({rank, false, record.cause->time, true});
      } else if (record.ended && !shut_down_well(record) && !record.ended->by_launcher) {
        // MPI ends the others by SIGTERM; a rank with an error about others was not the first.
        const bool is_late = record.ended->signal == SIGTERM || record.cause;
        failures_.push_back({rank, is_late, record.ended->time, false});
      }
    }
    std::sort(failures_.begin(), failures_.end());
  }

  bool went_well() const {
    return static_cast<int>(job_.of_rank.size()) == job_.size &&
           std::ranges::all_of(job_.of_rank,
                               [](const auto& one) { return shut_down_well(one.second); });
  }

  /// The collective that ranks waited for in vain, if that was before anything else: who never came
  /// has not failed before.
  const Meeting* hang() const {
    const auto found = std::ranges::find_if(meetings_, [&](const Meeting& meeting) {
      if (meeting.waited < kLongWait) return false;
      if (failures_.empty() || failures_.front().is_late) return true;
      const FailedRank& first = failures_.front();
      return !first.has_cause && !contains(meeting.behind, first.rank) &&
             first.time - meeting.first >= kLongWait;
    });
    return found == meetings_.end() ? nullptr : &*found;
  }

  std::optional<std::string> died_at_once() const {
    if (failures_.size() < 2 || static_cast<int>(failures_.size()) != job_.size)
      return std::nullopt;
    const auto [least, most] = std::ranges::minmax(failures_, {}, &FailedRank::time);
    const RecordTime first = least.time, last = most.time;
    const std::string how = how_it_ended(*record_of(failures_.front().rank));
    const auto is_another = [&](const FailedRank& failure) {
      return failure.has_cause || how_it_ended(*record_of(failure.rank)) != how;
    };
    if (std::ranges::any_of(failures_, is_another)) return std::nullopt;
    if (last - first > kAtOnce) return std::nullopt;
    // Ranks that horarun ends have not failed; ranks that do the same may well crash together.
    const bool is_killed = record_of(failures_.front().rank)->ended->signal == SIGKILL;
    return fmt::format("all {} ranks ended at once, within {}: each {} {} after the start{}",
                       job_.size, duration_text(last - first), how, at(first),
                       is_killed ? ", so the reason lies outside of them" : "");
  }

  std::string failure_text(const FailedRank& failure) const {
    const FlightRecord& record = *record_of(failure.rank);
    const std::string who = rank_text(job_, failure.rank);
    const std::string when = at(failure.time) + " after the start" + phase_text(record);
    if (failure.has_cause)
      return fmt::format("{} failed first, {}: {}", who, when, record.cause->text);
    const bool alone = job_.of_rank.size() == 1;
    const std::string text = fmt::format("{} {} {}{}", who, how_it_ended(record), when,
                                         alone ? "" : ", as the first of all");
    for (const Meeting& meeting : meetings_) {
      if (meeting.all_came || !contains(meeting.behind, failure.rank)) continue;
      return fmt::format("{}; {} waited for it at {} for up to {}", text,
                         internal::named_ranks(meeting.waiting), name_of(meeting),
                         duration_text(meeting.waited));
    }
    return text;
  }

  /// "node 1 (host b, ranks 2-3)" where those behind are whole nodes; else their ranks.
  std::string behind_text(const Meeting& meeting) const {
    const std::vector<int>& ranks = meeting.behind;
    std::map<int, std::vector<int>> nodes;
    for (const auto& [rank, record] : job_.of_rank) nodes[record.node].push_back(rank);
    std::string text;
    std::size_t covered = 0;
    for (const auto& [node, members] : nodes) {
      if (!std::ranges::includes(ranks, members)) continue;
      covered += members.size();
      text += fmt::format("{}node {} (host {}, {})", text.empty() ? "" : " and ", node,
                          record_of(members.front())->host, internal::named_ranks(members));
    }
    return nodes.size() > 1 && covered == ranks.size() ? text : ranks_text_of(job_, ranks);
  }

  /// Ranks that wait for each other at different collectives.
  std::optional<std::string> crossed_text(const Meeting& meeting) const {
    // One that went past it together with the others has skipped it.
    if (std::ranges::any_of(meeting.behind, [&](int rank) { return went_past(meeting, rank); })) {
      return std::nullopt;
    }
    for (const Meeting& other : meetings_) {
      if (other.all_came || &other == &meeting) continue;
      const auto waits_there = [&](int rank) {
        return std::ranges::binary_search(other.waiting, rank);
      };
      const bool crossed = std::ranges::all_of(meeting.behind, waits_there) &&
                           std::ranges::any_of(meeting.waiting, [&](int rank) {
                             return std::ranges::binary_search(other.behind, rank);
                           });
      if (!crossed) continue;
      return fmt::format(
          "ranks wait for each other at different collectives: {} at {}, {} at {}, for {}; did one "
          "of "
          "them skip a call, or do they differ in order?",
          ranks_text_of(job_, meeting.behind), name_of(other), ranks_text_of(job_, meeting.waiting),
          name_of(meeting), duration_text(meeting.waited));
    }
    return std::nullopt;
  }

  bool went_past(const Meeting& meeting, int rank) const {
    const FlightRecord* const record = record_of(rank);
    return record && std::ranges::any_of(record->collectives, [&](const RecordedCollective& one) {
             return one.set == meeting.set && one.number > 0 && comes_after(job_, meeting, one);
           });
  }

  /// The rank's doings instead of coming; follows "it".
  std::string absence_text(const Meeting& meeting, int rank) const {
    const FlightRecord* const record = record_of(rank);
    if (!record) return "left no record";
    if (record->stopped) return "was stopped" + phase_text(*record);
    if (record->pid == 0) return "had not called hora::init";
    if (record->ended && !record->ended->by_launcher && !record->cause) {
      return fmt::format("{} {} after the start{}", how_it_ended(*record), at(record->ended->time),
                         phase_text(*record));
    }
    if (record->state == RecordState::in_shutdown || record->state == RecordState::shut_down) {
      return "had called Context::shutdown()";
    }
    if (record->collectives.empty()) return "had submitted nothing at all" + phase_text(*record);
    for (const RecordedCollective& one : record->collectives) {
      if (!comes_after(job_, meeting, one)) continue;
      return "went on to " + collective_text(one.kind, one.name, one.set) + phase_text(*record);
    }
    const RecordedCollective& last = record->collectives.back();
    const RecordTime idle = std::max(RecordTime(0), end_of(*record) - last.submitted);
    return fmt::format(
        "{} for {}, after {}{}", waits_undecided(*record, last) ? "waited" : "was in its own code",
        duration_text(idle), collective_text(last.kind, last.name, last.set), phase_text(*record));
  }

  std::string incomplete_text(const Meeting& meeting) const {
    if (auto crossed = crossed_text(meeting)) return *crossed;
    const std::string text = fmt::format(
        "{} never came to {}, for which {} waited {}", behind_text(meeting), name_of(meeting),
        internal::named_ranks(meeting.waiting), duration_text(meeting.waited));
    std::set<std::string> reasons;
    for (const int rank : meeting.behind) reasons.insert(absence_text(meeting, rank));
    // Several ranks that did different things: the table has them.
    if (reasons.size() > 1) return text;
    return text + (meeting.behind.size() == 1 ? ": it " : ": each ") + *reasons.begin();
  }

  std::string meeting_text(const Meeting& meeting) const {
    if (!meeting.all_came) return incomplete_text(meeting);
    std::vector<int> stopped;
    for (const int rank : meeting.behind) {
      if (record_of(rank)->stopped) stopped.push_back(rank);
    }
    return fmt::format("all ranks came to {}, but on {} it was not done within {}{}",
                       name_of(meeting), behind_text(meeting), duration_text(meeting.waited),
                       stopped.empty() ? ": are the nodes cut off from each other?"
                                       : ": " + ranks_text_of(job_, stopped) + " was stopped");
  }

  std::string headline() const {
    if (went_well()) {
      return fmt::format("nothing went wrong: all {} ranks shut hora down", job_.size);
    }
    if (const Meeting* const meeting = hang()) return meeting_text(*meeting);
    if (const auto together = died_at_once()) return *together;
    if (!failures_.empty() && !failures_.front().is_late) return failure_text(failures_.front());
    std::optional<FailedRank> first;
    for (const auto& [rank, record] : job_.of_rank) {
      if (!record.cause) continue;
      const FailedRank failed{rank, false, record.cause->time, true};
      if (!first || failed < *first) first = failed;
    }
    if (first) return failure_text(*first);
    if (!failures_.empty()) return failure_text(failures_.front());
    if (!meetings_.empty()) return meeting_text(meetings_.front());
    if (static_cast<int>(job_.of_rank.size()) < job_.size) {
      return "no rank with a record has failed or waited; the others left none";
    }
    return "no rank has failed, and none waits for another";
  }

  std::string activity_text(const FlightRecord& record) const {
    const RecordedCollective* waits = nullptr;
    const RecordedCollective* last = nullptr;
    for (const RecordedCollective& one : record.collectives) {
      const bool is_open =
          one.outcome == RecordOutcome::open || (one.number == 0 && waits_undecided(record, one));
      if (is_open && (!waits || one.submitted < waits->submitted)) waits = &one;
      if (!last || one.submitted >= last->submitted) last = &one;
    }
    if (waits) {
      return fmt::format("waits for {} {}", collective_text(waits->kind, waits->name, waits->set),
                         duration_text(std::max(RecordTime(0), end_of(record) - waits->submitted)));
    }
    if (!last) return "none";
    return fmt::format("last {} at {}", collective_text(last->kind, last->name, last->set),
                       at(last->submitted));
  }

  std::vector<std::string> notes() const {
    std::vector<std::string> notes;
    for (const auto& [rank, record] : job_.of_rank) {
      if (!record.cause) continue;
      notes.push_back(
          fmt::format("rank {} at {}: {}", rank, at(record.cause->time), record.cause->text));
    }
    std::vector<int> missing;
    for (int rank = 0; rank < job_.size; ++rank) {
      if (!record_of(rank)) missing.push_back(rank);
    }
    if (!missing.empty()) notes.push_back(internal::named_ranks(missing) + ": no record");
    notes.insert(notes.end(), job_.problems.begin(), job_.problems.end());
    return notes;
  }

  JobRecords job_;
  std::vector<Meeting> meetings_;
  std::vector<FailedRank> failures_;  ///< the first one first
  RecordTime begin_{};                ///< of the job
};

}  // namespace

tl::expected<JobRecords, std::string> read_records(const std::string& folder) {
  const auto refuse = [&](const std::string& why) {
    return tl::unexpected(fmt::format(
        "the folder {} {}; give the folder that HORA_RECORD_DIRECTORY named in the job, with the "
        "files of all hosts",
        in_quotes(folder), why));
  };
  std::error_code error;
  std::filesystem::directory_iterator files(folder, error);
  if (error) return refuse("cannot be read: " + error.message());
  JobRecords job;
  std::map<int, std::string> paths;
  for (const std::filesystem::directory_iterator end; files != end; files.increment(error)) {
    if (error) return refuse("cannot be read: " + error.message());
    const std::string name = files->path().filename();
    int rank = -1;
    std::sscanf(name.c_str(), "hora-record.%d", &rank);
    const bool is_record = rank >= 0 && "/" + name == internal::record_file("", rank);
    if (is_record && rank < kMostRecords) paths[rank] = files->path().string();
  }
  if (paths.empty()) return refuse("has no hora-record.<rank>.json");
  for (const auto& [rank, path] : paths) read_one(path, rank, job);
  if (job.of_rank.empty()) return refuse("has no record that can be used: " + job.problems.front());
  return job;
}

Diagnosis diagnose(JobRecords job) {
  return Case(std::move(job)).diagnosis();
}

tl::expected<Diagnosis, std::string> diagnose(const std::string& folder) {
  auto job = read_records(folder);
  if (!job) return tl::unexpected(job.error());
  return diagnose(std::move(*job));
}

std::string to_text(const Diagnosis& diagnosis) {
  std::vector<RankRow> rows{{"rank", "host", "end", "collectives", "phase"}};
  rows.insert(rows.end(), diagnosis.ranks.begin(), diagnosis.ranks.end());
  std::string text = printable(diagnosis.headline) + "\n\n" + aligned(rows, "><<<<");
  if (!diagnosis.notes.empty()) text += "\n";
  for (const std::string& note : diagnosis.notes) text += printable(note) + "\n";
  return text;
}

}  // namespace hora::launch
