/// What one rank has submitted to one process set, from the call to completion.
#pragma once

#include <hora/context.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/sync.h"
#include "core/engine/announcer.h"
#include "core/engine/name_table.h"
#include "core/engine/parts.h"
#include "core/engine/submission.h"
#include "core/engine/submission_times.h"
#include "core/flight/flight_recorder.h"
#include "core/flight/record_writer.h"
#include "core/messages/messages.h"

namespace hora::internal {

/// Decided submissions of this rank, and where each local rank keeps its part.
struct DecidedBatch {
  std::vector<std::shared_ptr<Submission>> submissions;
  std::vector<Location> locations;  ///< [position in submissions * local_size + local rank]
  std::size_t local_size = 1;

  std::span<const Location> locations_of(std::size_t position) const {
    return std::span(locations).subspan(position * local_size, local_size);
  }
  void clear() {
    submissions.clear();
    locations.clear();
  }
};

/// A set's part of its rank's flight record. Thread rule: decided() and started(): the thread that
/// makes progress; the rest: any thread.
class SetRecord {
 public:
  SetRecord(const FlightRecorder* flight, ProcessSet set, int peers)
      : writer_(flight ? flight->writer() : RecordWriter()),
        set_(set),
        peers_(static_cast<std::size_t>(peers)) {}

  bool on() const { return writer_.on(); }
  /// Before it is announced.
  void submitted(Submission& submission) const {
    submission.record = writer_.submitted(submission.name, set_, submission.signature,
                                          submission.memory.bytes(), peers_, submission.submitted);
  }
  /// Each one that the set decides, in its order.
  void decided(const Submission& submission) {
    writer_.decided(submission.record, ++decided_, submission.decided_at);
  }
  void started(const Submission& submission, Duration time) const {
    writer_.started(submission.record, time);
  }
  void finished(const Submission& submission, bool failed, Duration time) const {
    writer_.finished(submission.record, failed ? RecordOutcome::failed : RecordOutcome::done, time);
  }
  /// A thread begins or ends to wait for a result.
  void blocked(bool begins) const { writer_.blocked(begins); }

 private:
  RecordWriter writer_;
  ProcessSet set_;
  std::size_t peers_;
  std::uint64_t decided_ = 0;
};

/// Thread rule, beside each part. The *table* lock guards names and submissions, and is held
/// briefly.
class Submissions {
 public:
  /// All outlive it. `poisoned`: peers may still touch memory, so that none is freed.
  Submissions(const SetParts& parts, const EngineParts& engine, const std::atomic<bool>& poisoned,
              const Tracer& trace, ProcessSet set);
  Submissions(const Submissions&) = delete;
  Submissions& operator=(const Submissions&) = delete;

  const SetMemory& memory() const { return memory_; }
  const Tracer& trace() const { return trace_; }
  const SetRecord& record() const { return record_; }

  // Any thread.
  /// Copies data that peers cannot see to where they can, and announces it.
  std::shared_ptr<Submission> submit(Request&& request, Caller caller);
  /// Announces that this rank, which has nothing in flight, has no more data. The submission is
  /// finished when all ranks have joined; its number is the last one.
  std::shared_ptr<Submission> join();
  /// Copies the results of a finished submission out, or throws its error. Frees the name.
  void collect(Submission& submission);
  /// Releases a submission whose handle an exception has dropped.
  void orphan(const std::shared_ptr<Submission>& submission);
  std::vector<std::shared_ptr<Submission>> unfinished() const;
  /// Submissions, finished or not, whose handles have not been waited for.
  std::vector<std::shared_ptr<Submission>> uncollected() const;
  /// A name whose handle is open, if any.
  std::optional<std::string> open_name() const {
    const LockGuard table(table_lock_);
    return table_.taken();
  }
  Statistics statistics() const {
    const LockGuard table(table_lock_);
    return statistics_;
  }
  /// No more can be submitted. The first cause stays.
  void close(const Error& error);
  /// This rank has called shutdown(), and waits for peers though nothing is submitted.
  void announce_departure();
  /// Since when this rank waits in join() for others; none where it does not.
  std::optional<Duration> joined_since() const;
  bool wait_for_peers() const { return undecided_.load() > 0; }
  /// This rank's submission of this name waits for others.
  bool wait_for_peers(const std::string& name) const;
  void report_stalls();
  /// timed_out() has nothing to do before; Duration::max() where it never has.
  Duration next_timeout() const { return next_times_.timeout(); }

  // The thread that makes progress.
  /// The submission that has run out of time first by now, or null; reports those that
  /// will soon to the leader.
  std::shared_ptr<Submission> timed_out(Duration time);
  // These three as SubmissionTimes has them.
  std::shared_ptr<Submission> stalled(Duration time) const;
  bool waits_since(Duration time) const;
  void note_answer(const std::string& name);
  /// Sends mail that has found the mailbox full; true if any went.
  bool flush_mail();
  /// There is such mail. Any thread.
  bool mail_waits() const { return mail_waits_.load(kWakeOrder); }
  /// Carries out what a decision says of names and ids; what runs is not undecided any more.
  /// Throws Error(transport) where this rank has not submitted what it is to run. `last`: for
  /// the timeline, of each of the ids that run; or none. Into `batch`, whose memory is used again.
  void take(const Decision& decision, std::span<const LastRank> last, DecidedBatch& batch);
  /// The ranks disagree on this name.
  void fail(const Failed& failed);
  /// Joined, and others wait for this rank's proxies.
  bool proxies_are_wanted() const;
  bool submit_proxies();
  void end_join(int last_joined);
  /// A hint to the leader: this rank waits under this name on `set`. Left out where the mailbox is
  /// full.
  void hint_elsewhere(const std::string& name, ProcessSet set);
  void finish(const std::shared_ptr<Submission>& submission, std::optional<Error> error,
              Duration time = now());
  /// Fails what waits for other ranks, and what is submitted from now on.
  void fail_undecided(const Error& error);
  /// Fails everything.
  void fail_all(const Error& error);

 private:
  std::shared_ptr<Submission> enter(Request& request) HORA_REQUIRES(table_lock_);
  void announce(const std::shared_ptr<Submission>& submission) HORA_REQUIRES(table_lock_);
  void check_open() const HORA_REQUIRES(table_lock_);
  void release(Submission& submission);

  const int rank_;  ///< in the world
  const std::atomic<bool>& poisoned_;
  const Tracer& trace_;
  SetRecord record_;
  NodeControlBlock& control_block_;
  RankStatus& status_;  ///< of this rank
  SmallBlocks small_blocks_;
  BlockVolume block_volume_;
  const SetMemory memory_;
  std::atomic<int> undecided_{0};  ///< this rank's submissions that wait for others
  std::atomic<bool> joined_{false};
  NextTimes next_times_;

  mutable BriefMutex table_lock_;
  NameTable table_ HORA_GUARDED_BY(table_lock_);
  SubmissionTimes times_ HORA_GUARDED_BY(table_lock_);
  Announcer announcer_ HORA_GUARDED_BY(table_lock_);
  JoinedProxies proxies_ HORA_GUARDED_BY(table_lock_);
  const std::atomic<bool>& mail_waits_;                       ///< the announcer's
  std::optional<Error> closed_ HORA_GUARDED_BY(table_lock_);  ///< why nothing more can be submitted
  /// Results of exchanges that were under way when all failed: peers may still write there, so they
  /// are not freed.
  std::vector<std::shared_ptr<ExchangeResult>> retained_on_failure_ HORA_GUARDED_BY(table_lock_);
  Statistics statistics_ HORA_GUARDED_BY(table_lock_);
};

}  // namespace hora::internal
