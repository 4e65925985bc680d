#include "core/engine/submissions.h"

#include <hora/printable.h>

#include <algorithm>
#include <utility>

#include "core/base/text.h"

namespace hora::internal {

Submissions::Submissions(const SetParts& parts, const EngineParts& engine,
                         const std::atomic<bool>& poisoned, const Tracer& trace, ProcessSet set)
    : rank_(engine.rank),
      poisoned_(poisoned),
      trace_(trace),
      record_(engine.flight, set, parts.topology.size()),
      control_block_(*parts.control_block),
      status_(engine.world.control_block->status(engine.world.control_block->local_rank())),
      small_blocks_(*parts.memory),
      memory_{.memory = *parts.memory,
              .small = &small_blocks_,
              .volume = &block_volume_,
              .device = engine.device,
              .heap = engine.device_heap,
              .topology = parts.topology,
              .rank = engine.rank,
              .local_rank = control_block_.local_rank(),
              .local_size = control_block_.local_size(),
              .memory_nodes = parts.memory_nodes,
              .is_world = set == kWorld,
              .device_spans_nodes = parts.device_spans_nodes},
      table_(control_block_.id_capacity()),
      times_(SubmissionTimes::Rules::of(parts, engine), table_, memory_, next_times_),
      announcer_(control_block_, memory_.single_node(), trace_),
      proxies_(control_block_, table_, announcer_, undecided_),
      mail_waits_(announcer_.mail_waits()) {}

void Submissions::check_open() const {
  if (closed_) throw detached(*closed_);
}

std::shared_ptr<Submission> Submissions::enter(Request& request) {
  check_open();
  if (auto again = request.name.empty() ? nullptr : table_.enter_again(request.name)) {
    if (again->signature != request.signature) again->signature = std::move(request.signature);
    again->result = std::move(request.result);
    return again;
  }
  auto submission = std::make_shared<Submission>();
  submission->owner = this;
  submission->name = !request.name.empty()
                         ? request.name
                         : table_.unnamed(std::string(kUnnamedPrefix) +
                                          std::string(name_of(request.signature.kind)));
  submission->signature = std::move(request.signature);
  submission->result = std::move(request.result);
  if (!table_.enter(submission)) {
    throw Error(ErrorCode::duplicate_name,
                tensor_text(submission->name) + " is in flight already on rank " +
                    std::to_string(rank_) +
                    ": wait for its handle first, or give this one a name of its own",
                rank_, submission->name);
  }
  return submission;
}

std::shared_ptr<Submission> Submissions::submit(Request&& request, Caller caller) {
  std::shared_ptr<Submission> submission;
  {
    const LockGuard table(table_lock_);
    submission = enter(request);
  }
  try {
    submission->memory.copy_in(memory_, submission->signature, request, caller);
    const LockGuard table(table_lock_);
    check_open();
    if (times_.begin(*submission, request.timeout, now())) {
      // A caller that sleeps, and the engine, which may outlast its turn.
      control_block_.signal(memory_.local_rank);
      control_block_.wakeup_flags().wake_engine();
    }
    record_.submitted(*submission);
    undecided_.fetch_add(1);
    announce(submission);
    status_.submitted.write(submission->name, submission->submitted);
  } catch (...) {
    record_.finished(*submission, true, now());
    release(*submission);
    throw;
  }
  return submission;
}

std::shared_ptr<Submission> Submissions::timed_out(Duration time) {
  if (next_timeout() > time) return nullptr;
  const LockGuard table(table_lock_);
  SubmissionTimes::Due due = times_.take_due(time);
  for (const auto& submission : due.expiring) announcer_.report_expiring(*submission, time);
  return std::move(due.timed_out);
}

std::shared_ptr<Submission> Submissions::stalled(Duration time) const {
  const LockGuard table(table_lock_);
  return times_.stalled(time);
}

bool Submissions::waits_since(Duration time) const {
  const LockGuard table(table_lock_);
  return times_.waits_since(time);
}

void Submissions::note_answer(const std::string& name) {
  const LockGuard table(table_lock_);
  times_.note_answer(name, now());
}

void Submissions::announce(const std::shared_ptr<Submission>& submission) {
  const NameEntry& entry = *submission->entry;
  if (!entry.id || entry.signature != submission->signature) {
    return announcer_.report(*submission);
  }
  const Id id = *entry.id;
  submission->id = id;
  table_.set_waiting(id, submission);
  submission->last_extents = entry.last_extents;
  trace_.marked(submission->name, "ready");
  const Announcer::Arrival arrival = announcer_.arrive(
      id, submission->memory.location(), submission->submitted, submission->is_resized(memory_));
  if (arrival == Announcer::Arrival::complete) trace_.marked(submission->name, "last of the node");
  if (arrival != Announcer::Arrival::stale) return;
  // Reported here, so that the decision that gives the id up does not report it again.
  table_.set_waiting(id, nullptr);
  submission->id.reset();
  announcer_.report(*submission);
}

std::shared_ptr<Submission> Submissions::join() {
  auto submission = std::make_shared<Submission>();
  submission->owner = this;
  submission->name = kJoinName;
  submission->signature.kind = OperationKind::join;
  const LockGuard table(table_lock_);
  check_open();
  if (!table_.enter(submission)) {
    throw Error(ErrorCode::duplicate_name,
                "rank " + std::to_string(rank_) + " has joined this process set already", rank_);
  }
  submission->submitted = now();
  submission->overdue_at = Duration::max();  // others may have data for hours
  record_.submitted(*submission);
  undecided_.fetch_add(1);
  joined_.store(true);
  proxies_.begin();
  status_.submitted.write(submission->name, submission->submitted);
  return submission;
}

std::optional<Duration> Submissions::joined_since() const {
  if (!joined_.load()) return std::nullopt;
  const LockGuard table(table_lock_);
  const auto join = table_.undecided(std::string(kJoinName));
  return join ? std::optional(join->submitted) : std::nullopt;
}

void Submissions::announce_departure() {
  undecided_.fetch_add(1);
  const LockGuard table(table_lock_);
  announcer_.send({.kind = MailKind::departed, .name = {}, .signature = {}, .location = {}});
}

void Submissions::report_stalls() {
  if (!wait_for_peers() || now() < next_times_.overdue()) return;
  const LockGuard table(table_lock_);
  for (const auto& submission : times_.take_overdue(now())) announcer_.report_overdue(*submission);
}

bool Submissions::wait_for_peers(const std::string& name) const {
  const LockGuard table(table_lock_);
  const auto submission = table_.undecided(name);
  return submission && submission->announced();
}

void Submissions::hint_elsewhere(const std::string& name, ProcessSet set) {
  const LockGuard table(table_lock_);
  announcer_.hint_elsewhere(name, set);
}

bool Submissions::flush_mail() {
  if (!mail_waits()) return false;
  const LockGuard table(table_lock_);
  return announcer_.flush();
}

void Submissions::take(const Decision& decision, std::span<const LastRank> last,
                       DecidedBatch& batch) {
  batch.clear();
  batch.local_size = static_cast<std::size_t>(control_block_.local_size());
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::transport,
                "negotiation: rank " + std::to_string(rank_) + " is to run " + what +
                    ", which it has not submitted",
                rank_);
  };
  const auto take = [&](std::shared_ptr<Submission> submission, Duration time,
                        const LastRank& last_rank = {}) {
    submission->decided = true;
    submission->decided_at = time;
    record_.decided(*submission);
    trace_.negotiated(submission->name, submission->submitted, submission->decided_at, last_rank);
    batch.submissions.push_back(std::move(submission));
  };
  const LockGuard table(table_lock_);
  const Duration time = now();
  for (const Id id : decision.retired) {
    proxies_.drop(id);
    if (const auto submission = table_.retire(id)) announcer_.report(*submission);
  }
  for (const Assigned& assigned : decision.assigned) {
    auto submission = table_.assign(assigned.name, assigned.id);
    if (!submission && joined_.load() && assigned.signature) {
      table_.learn(assigned.name, assigned.id, *assigned.signature);
      submission = proxies_.make(assigned.id, *assigned.signature);
    }
    if (!submission) refuse(in_quotes(assigned.name));
    take(std::move(submission), time);
    batch.locations.insert(batch.locations.end(), assigned.locations.begin(),
                           assigned.locations.end());
  }
  for (std::size_t i = 0; i < decision.run.size(); ++i) {
    const Id id = decision.run[i];
    auto submission = table_.take_waiting(id);
    if (submission) {
      for (int r = 0; r < control_block_.local_size(); ++r) {
        batch.locations.push_back(control_block_.location(id, r));
      }
    } else {
      const Signature* const known = joined_.load() ? table_.signature_of(id) : nullptr;
      if (!known) refuse("id " + std::to_string(id));
      // No rank of this node has submitted it.
      submission = proxies_.make(id, *known);
      table_.set_waiting(id, nullptr);
      batch.locations.resize(batch.locations.size() + batch.local_size, kNowhere);
    }
    submission->repeats = std::ranges::find(decision.resized, id) == decision.resized.end();
    take(std::move(submission), time, i < last.size() ? last[i] : LastRank{});
  }
  if (!batch.submissions.empty()) ++statistics_.batches;
  undecided_.fetch_sub(static_cast<int>(batch.submissions.size()));
}

void Submissions::fail(const Failed& failed) {
  std::shared_ptr<Submission> submission;
  {
    const LockGuard table(table_lock_);
    if (failed.has_id) proxies_.drop(failed.id);
    submission = table_.take_undecided(failed.name);
  }
  if (!submission) return;
  undecided_.fetch_sub(1);
  trace_.negotiated(submission->name, submission->submitted, now());
  trace_.marked(submission->name, "mismatch");
  finish(submission, Error(ErrorCode::mismatch, failed.text, -1, failed.name));
}

bool Submissions::proxies_are_wanted() const {
  if (!joined_.load()) return false;
  const LockGuard table(table_lock_);
  return proxies_.are_wanted();
}

bool Submissions::submit_proxies() {
  if (!proxies_are_wanted()) return false;
  const LockGuard table(table_lock_);
  return proxies_.submit();
}

void Submissions::end_join(int last_joined) {
  std::shared_ptr<Submission> submission;
  {
    const LockGuard table(table_lock_);
    proxies_.end();
    submission = table_.take_undecided(std::string(kJoinName));
  }
  joined_.store(false);
  if (!submission) return;
  undecided_.fetch_sub(1);
  submission->number = last_joined;
  finish(submission, std::nullopt);
}

void Submissions::finish(const std::shared_ptr<Submission>& submission, std::optional<Error> error,
                         Duration time) {
  bool orphaned = false;
  {
    const LockGuard table(table_lock_);
    if (submission->finished()) return;
    if (!error) {
      ++statistics_.operations;
      statistics_.bytes += submission->memory.bytes();
      statistics_.in_flight += time - submission->decided_at;
    }
    record_.finished(*submission, error.has_value(), time);
    // Before the state is set: the caller's reference is the last, dropped while its stream lives.
    submission->result.reset();
    submission->error = std::move(error);
    submission->state.store(submission->error ? Submission::kFailed : Submission::kDone,
                            std::memory_order_release);
    orphaned = submission->orphaned;
  }
  submission->state.notify_all();
  if (orphaned) release(*submission);
}

void Submissions::collect(Submission& submission) {
  const bool done = submission.state.load(std::memory_order_acquire) == Submission::kDone;
  try {
    if (done) submission.memory.copy_out(memory_);
  } catch (...) {
    release(submission);
    throw;
  }
  release(submission);
  if (!done) throw detached(*submission.error);
}

void Submissions::release(Submission& submission) {
  if (poisoned_.load()) {
    submission.memory.leave_in_place();
  } else {
    submission.memory.release(memory_);
  }
  const LockGuard table(table_lock_);
  table_.leave(submission);
}

void Submissions::orphan(const std::shared_ptr<Submission>& submission) {
  {
    const LockGuard table(table_lock_);
    if (!submission->finished()) {
      submission->orphaned = true;
      return;
    }
  }
  release(*submission);
}

void Submissions::close(const Error& error) {
  const LockGuard table(table_lock_);
  if (!closed_) closed_ = detached(error);
}

void Submissions::fail_undecided(const Error& error) {
  std::vector<std::shared_ptr<Submission>> open;
  {
    const LockGuard table(table_lock_);
    if (!closed_) closed_ = detached(error);
    open = table_.unfinished();
    std::erase_if(open, [](const auto& submission) {
      return submission->decided || !submission->announced();
    });
  }
  for (const auto& submission : open) {
    undecided_.fetch_sub(1);
    finish(submission, Error(error.code(), error.what(), error.rank(), submission->name));
  }
}

void Submissions::fail_all(const Error& error) {
  std::vector<std::shared_ptr<Submission>> open;
  {
    const LockGuard table(table_lock_);
    closed_ = detached(error);
    open = table_.unfinished();
    for (const auto& submission : open) {
      if (submission->result) retained_on_failure_.push_back(submission->result);
    }
  }
  for (const auto& submission : open) finish(submission, detached(error));
}

std::vector<std::shared_ptr<Submission>> Submissions::unfinished() const {
  const LockGuard table(table_lock_);
  return table_.unfinished();
}

std::vector<std::shared_ptr<Submission>> Submissions::uncollected() const {
  const LockGuard table(table_lock_);
  std::vector<std::shared_ptr<Submission>> open = table_.uncollected();
  std::erase_if(open, [](const auto& submission) { return submission->orphaned; });
  return open;
}

}  // namespace hora::internal
