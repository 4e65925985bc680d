#include "core/engine/set_engine.h"

#include <utility>
#include <variant>

#include "core/tensor_text.h"

namespace hora {
namespace {

/// Of a collective that the data path has completed without carrying it out.
std::optional<Error> refusal_of(const Submission& submission) {
  if (!submission.result || !submission.result->refusal()) return std::nullopt;
  const Error& why = *submission.result->refusal();
  return Error(why.code(), why.what(), why.rank(), submission.name);
}

}  // namespace

SetEngine::SetEngine(const SetParts& parts, EngineShared& shared, ProcessSet id)
    : parts_(parts),
      shared_(shared),
      id_(id),
      trace_(shared_.parts.trace.of_set(id)),
      control_block_(*parts_.control_block),
      log_limits_(message_limits(parts_.topology, control_block_.id_capacity(),
                                 static_cast<std::size_t>(control_block_.local_size()))),
      submissions_(parts_, shared_.parts, shared_.poisoned, trace_),
      units_(parts_, shared_.parts, submissions_.memory(), trace_, id_) {
  if (control_block_.local_rank() == 0) {
    leader_io_.emplace(parts_.topology, parts_.topology.node_of(shared_.parts.rank),
                       control_block_.id_capacity(), control_block_, parts_.tree, id_,
                       shared_.parts.settings.stall_warning);
  }
}

bool SetEngine::make_progress() {
  bool progress = submissions_.flush_mail();
  if (leader_io_) progress |= leader_io_->work(now());
  while (const auto batch = control_block_.next_batch()) {
    execute(decision_in(*batch));
    progress = true;
  }
  progress |= submissions_.submit_proxies();
  progress |= parts_.data_path->advance();
  progress |= finish_completed();
  return progress;
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

void SetEngine::execute(const Decision& decision) {
  const DecidedBatch batch = submissions_.take(decision);
  for (const Failed& failed : decision.failed) submissions_.fail(failed);
  units_.start(batch);
  if (decision.all_joined) submissions_.end_join(decision.last_joined);
  if (!decision.departed.empty()) {
    submissions_.fail_undecided(Error(
        ErrorCode::shut_down,
        ranks_have(decision.departed) + " called shutdown(): no collective can complete any more",
        decision.departed.front()));
  }
  for (const std::string& name : decision.asked) answer(name);
  if (decision.finished) all_departed_.store(true);
}

/// Other ranks of this set wait for a name: if this rank waits under it on another set, one of them
/// may have named a wrong set.
void SetEngine::answer(const std::string& asked) {
  if (submissions_.wait_for_peers(asked)) return;
  for (const ProcessSet set : shared_.waits_on(asked)) submissions_.hint_elsewhere(asked, set);
}

bool SetEngine::finish_completed() {
  bool any = false;
  while (units_.has_completed()) {
    for (const auto& submission : units_.take_completed()) {
      if (changes_sets(submission->signature.kind)) {
        shared_.sets_change(submission);
      } else {
        submissions_.finish(submission, refusal_of(*submission));
      }
    }
    any = true;
  }
  return any;
}

bool SetEngine::has_pending_work() const {
  return control_block_.log_has_pending_work() ||
         (leader_io_ && control_block_.leader_has_pending_work()) || units_.has_completed() ||
         submissions_.proxies_are_wanted();
}

}  // namespace hora
