/// Engine: making progress.
#include <algorithm>
#include <utility>
#include <variant>

#include "core/engine/engine.h"
#include "core/engine/trace_hooks.h"
#include "core/log.h"
#include "core/negotiation/mismatch.h"

namespace hora {

bool Engine::drive(bool network) {
  if (poisoned_.load(std::memory_order_relaxed)) return false;
  try {
    return make_progress(network);
  } catch (const Error& error) {
    poison(error);
  } catch (const std::exception& error) {
    poison(Error(ErrorCode::transport, std::string("hora's engine failed: ") + error.what(),
                 parts_.rank));
  }
  return true;
}

bool Engine::make_progress(bool network) {
  bool progress = flush_outbox();
  if (desk_ && (network || single_node_)) progress |= desk_->work(now());
  while (const auto batch = board_.next_batch()) {
    execute(*batch);
    progress = true;
  }
  progress |= parts_.data_path->advance();
  progress |= fulfil();
  if (parts_.device) device_busy_ = parts_.device->check();
  return progress;
}

bool Engine::flush_outbox() {
  if (undecided_.load(std::memory_order_relaxed) == 0) return false;
  const std::lock_guard table(table_lock_);
  bool any = false;
  while (!outbox_.empty() && board_.push_mail(outbox_.front())) {
    outbox_.pop_front();
    any = true;
  }
  if (any) board_.signal(0);
  return any;
}

void Engine::execute(const LogBatch& batch) {
  if (batch.kind == LogBatch::Kind::control) {
    const auto message = decode(batch.payload);
    const Decision* decision = message ? std::get_if<Decision>(&*message) : nullptr;
    if (!decision) {
      throw Error(ErrorCode::transport,
                  "negotiation: the node's log holds something that is no "
                  "decision: do all ranks run the same build of hora?");
    }
    execute_decision(*decision);
    return;
  }
  Decision runs;
  runs.run = batch.ids;
  execute_decision(runs);
}

void Engine::execute_decision(const Decision& decision) {
  Batch batch;
  const auto take = [&](std::shared_ptr<Submission> submission, const std::string& what) {
    if (!submission) {
      throw Error(ErrorCode::transport,
                  "negotiation: rank " + std::to_string(parts_.rank) + " is told to run " + what +
                      ", which it has not submitted",
                  parts_.rank);
    }
    submission->decided = true;
    submission->decided_at = now();
    trace_decided(parts_.trace, *submission);
    batch.submissions.push_back(std::move(submission));
  };
  {
    const std::lock_guard table(table_lock_);
    for (const Id id : decision.retired) {
      if (const auto submission = table_.retire(id)) report(*submission);
    }
    for (const Assigned& assigned : decision.assigned) {
      take(table_.assign(assigned.name, assigned.id), "\"" + assigned.name + "\"");
      batch.locations.push_back(assigned.locations);
    }
    for (const Id id : decision.run) {
      take(table_.waiting_for(id), "id " + std::to_string(id));
      auto& locations = batch.locations.emplace_back();
      for (int r = 0; r < board_.local_size(); ++r) locations.push_back(board_.location(id, r));
      table_.set_waiting(id, nullptr);
    }
    if (!batch.submissions.empty()) ++statistics_.batches;
  }
  undecided_.fetch_sub(static_cast<int>(batch.submissions.size()));
  for (const Failed& failed : decision.failed) {
    std::shared_ptr<Submission> submission;
    {
      const std::lock_guard table(table_lock_);
      submission = table_.take_undecided(failed.name);
    }
    if (!submission) continue;
    undecided_.fetch_sub(1);
    trace_failed(parts_.trace, *submission);
    finish(submission, Error(ErrorCode::mismatch, failed.text, -1, failed.name));
  }
  run(batch);
  if (!decision.departed.empty()) {
    const Error gone(ErrorCode::shut_down,
                     "rank " + ranks_text(decision.departed) +
                         " has called shutdown(): no collective can complete any more",
                     decision.departed.front());
    fail_undecided(gone);
  }
  if (decision.finished) all_departed_.store(true);
}

void Engine::run(const Batch& batch) {
  std::vector<const Signature*> signatures;
  signatures.reserve(batch.submissions.size());
  for (const auto& submission : batch.submissions) signatures.push_back(&submission->signature);
  const PlanLimits limits{.fusion_bytes = parts_.settings.fusion_threshold,
                          .alone_bytes = single_node_ ? kAloneBytes : 0,
                          .chunk_bytes = single_node_ ? 0 : parts_.settings.chunk_size};
  for (Unit& unit : plan(signatures, limits)) {
    Unfulfilled& entry = unfulfilled_.emplace_back();
    entry.unit = ++units_started_;
    for (const UnitTensor& tensor : unit.tensors) {
      entry.submissions.push_back(batch.submissions[tensor.index]);
    }
    trace_unit(parts_.trace, entry.unit, unit, entry.submissions);
    parts_.data_path->start(bind(std::move(unit), batch));
  }
}

BoundUnit Engine::bind(Unit unit, const Batch& batch) {
  BoundUnit bound;
  bound.number = units_started_;
  bound.scale = unit.op == ReduceOp::average ? 1.0 / parts_.topology.size() : 1.0;
  bound.root_node = node_of_rank_[static_cast<std::size_t>(unit.root)];
  bound.root_local = local_rank_of_rank_[static_cast<std::size_t>(unit.root)];
  bound.local_size = board_.local_size();
  for (const UnitTensor& tensor : unit.tensors) {
    const Submission& mine = *batch.submissions[tensor.index];
    if (mine.work) bound.work.push_back(mine.work);
    for (int r = 0; r < bound.local_size; ++r) {
      std::byte* address = mine.direct.bytes > 0 ? mine.user_data : mine.block;
      if (r != board_.local_rank() && mine.bytes > 0 && !mine.work) {
        address =
            parts_.memory->address(r, batch.locations[tensor.index][static_cast<std::size_t>(r)]);
      }
      bound.memory.push_back(address);
    }
  }
  bound.unit = std::move(unit);
  return bound;
}

bool Engine::fulfil() {
  if (unfulfilled_.empty()) return false;
  const std::uint64_t completed = parts_.data_path->completed();
  bool any = false;
  while (!unfulfilled_.empty() && unfulfilled_.front().unit <= completed) {
    parts_.trace.completed(unfulfilled_.front().unit);
    for (const auto& submission : unfulfilled_.front().submissions) {
      finish(submission, std::nullopt);
    }
    unfulfilled_.pop_front();
    any = true;
  }
  return any;
}

void Engine::finish(const std::shared_ptr<Submission>& submission, std::optional<Error> error) {
  bool orphaned = false;
  {
    const std::lock_guard table(table_lock_);
    if (submission->finished()) return;
    if (!error) {
      ++statistics_.operations;
      statistics_.bytes += submission->bytes;
      statistics_.in_flight += now() - submission->decided_at;
    }
    submission->error = std::move(error);
    submission->state.store(submission->error ? Submission::kFailed : Submission::kDone,
                            std::memory_order_release);
    orphaned = submission->orphaned;
  }
  submission->state.notify_all();
  if (orphaned) release(*submission);
}

void Engine::fail_undecided(const Error& error) {
  std::vector<std::shared_ptr<Submission>> open;
  {
    const std::lock_guard table(table_lock_);
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

void Engine::poison(const Error& error) {
  log().error("rank {}: {}", parts_.rank, error.what());
  std::vector<std::shared_ptr<Submission>> open;
  {
    const std::lock_guard table(table_lock_);
    closed_ = detached(error);
    open = table_.unfinished();
  }
  poisoned_.store(true);
  // First, for whoever is told of the error may free the memory that a device works on.
  if (parts_.device) parts_.device->abort();
  for (const auto& submission : open) finish(submission, detached(error));
}

bool Engine::has_news() const {
  if (poisoned_.load(std::memory_order_relaxed)) return false;
  return board_.log_has_news() || (desk_ && board_.leader_has_news()) ||
         (!unfulfilled_.empty() && unfulfilled_.front().unit <= parts_.data_path->completed());
}

}  // namespace hora
