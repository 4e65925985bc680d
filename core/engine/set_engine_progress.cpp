/// SetEngine: making progress.
#include <hora/printable.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "core/engine/set_engine.h"
#include "core/engine/trace_hooks.h"
#include "core/negotiation/mismatch.h"

namespace hora {
namespace {

/// Of a collective that the data path has completed without carrying it out.
std::optional<Error> refusal_of(const Submission& submission) {
  if (!submission.result || !submission.result->refusal()) return std::nullopt;
  const Error& why = *submission.result->refusal();
  return Error(why.code(), why.what(), why.rank(), submission.name);
}

}  // namespace

bool SetEngine::make_progress() {
  bool progress = flush_outbox();
  if (leader_io_) progress |= leader_io_->work(now());
  while (const auto batch = control_block_.next_batch()) {
    execute(*batch);
    progress = true;
  }
  progress |= submit_joined_proxies();
  progress |= parts_.data_path->advance();
  progress |= complete_units();
  return progress;
}

bool SetEngine::flush_outbox() {
  if (undecided_.load(std::memory_order_relaxed) == 0) return false;
  const LockGuard table(table_lock_);
  bool any = false;
  while (!outbox_.empty() && control_block_.push_mail(outbox_.front())) {
    outbox_.pop_front();
    any = true;
  }
  if (any) control_block_.signal(0);
  return any;
}

/// In what it returns, all ids, ranks and signatures are within the set's limits.
Decision SetEngine::decision_in(const LogBatch& batch) const {
  const auto refuse = [&](const std::string& problem) {
    throw Error(ErrorCode::transport,
                "negotiation: the node's log holds something that is no decision: " + problem +
                    ". Do all ranks run the same build of hora?",
                shared_.parts.rank);
  };
  Decision decision;
  if (batch.kind == LogBatch::Kind::run) {
    decision.run = batch.ids;
    const std::string problem = problem_in(decision, log_limits_);
    if (!problem.empty()) refuse(problem);
    return decision;
  }
  auto message = decode(batch.payload, log_limits_);
  if (!message) refuse(message.error());
  Decision* const decided = std::get_if<Decision>(&*message);
  if (!decided) refuse("a message of another kind");
  return std::move(*decided);
}

void SetEngine::execute(const LogBatch& batch) {
  execute_decision(decision_in(batch));
}

void SetEngine::execute_decision(const Decision& decision) {
  Batch batch;
  const auto take = [&](std::shared_ptr<Submission> submission, const std::string& what) {
    if (!submission) {
      throw Error(ErrorCode::transport,
                  "negotiation: rank " + std::to_string(shared_.parts.rank) + " is told to run " +
                      what + ", which it has not submitted",
                  shared_.parts.rank);
    }
    submission->decided = true;
    submission->decided_at = now();
    trace_decided(trace_, *submission);
    batch.submissions.push_back(std::move(submission));
  };
  {
    const LockGuard table(table_lock_);
    for (const Id id : decision.retired) {
      drop_joined_proxy(id);
      if (const auto submission = table_.retire(id)) report(*submission);
    }
    for (const Assigned& assigned : decision.assigned) {
      auto submission = table_.assign(assigned.name, assigned.id);
      if (!submission && joined_.load() && assigned.signature) {
        table_.learn(assigned.name, assigned.id, *assigned.signature);
        submission = joined_proxy(assigned.id, *assigned.signature);
      }
      take(std::move(submission), in_quotes(assigned.name));
      batch.locations.push_back(assigned.locations);
    }
    for (const Id id : decision.run) {
      auto submission = table_.waiting_for(id);
      auto& locations = batch.locations.emplace_back();
      for (int r = 0; r < control_block_.local_size(); ++r)
        locations.push_back(control_block_.location(id, r));
      if (const Signature* known = table_.signature_of(id);
          !submission && joined_.load() && known) {
        // No rank of this node has submitted it.
        submission = joined_proxy(id, *known);
        std::fill(locations.begin(), locations.end(), kNowhere);
      }
      take(std::move(submission), "id " + std::to_string(id));
      table_.set_waiting(id, nullptr);
    }
    if (!batch.submissions.empty()) ++statistics_.batches;
  }
  undecided_.fetch_sub(static_cast<int>(batch.submissions.size()));
  for (const Failed& failed : decision.failed) {
    std::shared_ptr<Submission> submission;
    {
      const LockGuard table(table_lock_);
      if (failed.has_id) drop_joined_proxy(failed.id);
      submission = table_.take_undecided(failed.name);
    }
    if (!submission) continue;
    undecided_.fetch_sub(1);
    trace_failed(trace_, *submission);
    finish(submission, Error(ErrorCode::mismatch, failed.text, -1, failed.name));
  }
  run(batch);
  if (decision.all_joined) end_join(decision.last_joined);
  if (!decision.departed.empty()) {
    fail_undecided(Error(
        ErrorCode::shut_down,
        ranks_have(decision.departed) + " called shutdown(): no collective can complete any more",
        decision.departed.front()));
  }
  for (const std::string& name : decision.asked) answer(name);
  if (decision.finished) all_departed_.store(true);
}

/// Other ranks of this set wait for a name: if this rank waits under it on another set, one of them
/// may have named a wrong set. A hint, which is left out where the mailbox is full.
void SetEngine::answer(const std::string& asked) {
  if (waits_for_peers(asked)) return;
  for (const ProcessSet set : shared_.waits_on(asked)) {
    const LockGuard table(table_lock_);
    const Mail mail{.kind = MailKind::elsewhere,
                    .name = asked,
                    .signature = {},
                    .location = {},
                    .process_set = set};
    if (outbox_.empty() && control_block_.push_mail(encode(mail))) control_block_.signal(0);
  }
}

bool SetEngine::complete_units() {
  if (started_units_.empty()) return false;
  const std::uint64_t completed = parts_.data_path->completed();
  bool any = false;
  while (!started_units_.empty() && started_units_.front().unit <= completed) {
    trace_.completed(started_units_.front().unit);
    for (const auto& submission : started_units_.front().submissions) {
      if (changes_sets(submission->signature.kind)) {
        shared_.sets_change(submission);
      } else {
        finish(submission, refusal_of(*submission));
      }
    }
    started_units_.pop_front();
    any = true;
  }
  return any;
}

void SetEngine::finish(const std::shared_ptr<Submission>& submission, std::optional<Error> error) {
  bool orphaned = false;
  {
    const LockGuard table(table_lock_);
    if (submission->finished()) return;
    if (!error) {
      ++statistics_.operations;
      statistics_.bytes += submission->memory.bytes();
      statistics_.in_flight += now() - submission->decided_at;
    }
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

void SetEngine::fail_undecided(const Error& error) {
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

void SetEngine::fail_all(const Error& error) {
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

bool SetEngine::polls() const {
  return parts_.data_path->polls();
}

bool SetEngine::has_pending_work() const {
  return control_block_.log_has_pending_work() ||
         (leader_io_ && control_block_.leader_has_pending_work()) ||
         (!started_units_.empty() &&
          started_units_.front().unit <= parts_.data_path->completed()) ||
         may_submit_joined_proxies();
}

}  // namespace hora
