/// SetEngine: submitting, and how submissions end. set_engine_progress.cpp: making progress;
/// set_engine_bind.cpp: what then runs.
#include "core/engine/set_engine.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/tensor_text.h"

namespace hora {

SetEngine::SetEngine(const SetParts& parts, EngineShared& shared, ProcessSet id)
    : parts_(parts),
      shared_(shared),
      id_(id),
      trace_(shared_.parts.trace.of_set(id)),
      control_block_(*parts_.control_block),
      set_memory_{.memory = *parts_.memory,
                  .device = shared_.parts.device,
                  .heap = shared_.parts.device_heap,
                  .topology = parts_.topology,
                  .rank = shared_.parts.rank,
                  .local_rank = control_block_.local_rank(),
                  .local_size = control_block_.local_size()},
      single_node_(parts_.topology.nodes() == 1),
      log_limits_(message_limits(parts_.topology, control_block_.id_capacity(),
                                 static_cast<std::size_t>(control_block_.local_size()))),
      table_(control_block_.id_capacity()),
      shares_device_(id_ != 0) {
  if (control_block_.local_rank() == 0) {
    leader_io_.emplace(parts_.topology, parts_.topology.node_of(shared_.parts.rank),
                       control_block_.id_capacity(), control_block_, parts_.tree, id_,
                       shared_.parts.settings.stall_warning);
  }
}

std::shared_ptr<Submission> SetEngine::submit(Request request, Caller caller) {
  auto submission = std::make_shared<Submission>();
  submission->set = this;
  submission->signature = std::move(request.signature);
  submission->result = request.result;
  {
    const LockGuard table(table_lock_);
    if (closed_) throw detached(*closed_);
    submission->name = !request.name.empty()
                           ? std::move(request.name)
                           : table_.unnamed(std::string(kUnnamedPrefix) +
                                            std::string(name_of(submission->signature.kind)));
    if (!table_.enter(submission)) {
      throw Error(ErrorCode::duplicate_name,
                  tensor_text(submission->name) + " is in flight already on rank " +
                      std::to_string(shared_.parts.rank) +
                      ": wait for its handle first, or give this one a name of its own",
                  shared_.parts.rank, submission->name);
    }
  }
  try {
    submission->memory.copy_in(set_memory_, submission->signature, request, caller);
    const LockGuard table(table_lock_);
    if (closed_) throw detached(*closed_);
    submission->submitted = now();
    submission->overdue_at = submission->submitted + shared_.parts.settings.stall_warning;
    undecided_.fetch_add(1);
    announce(submission);
  } catch (...) {
    release(*submission);
    throw;
  }
  return submission;
}

void SetEngine::announce(const std::shared_ptr<Submission>& submission) {
  const NameTable::Entry& entry = table_.at(submission->name);
  if (!entry.id || entry.signature != submission->signature) return report(*submission);
  const Id id = *entry.id;
  submission->id = id;
  table_.set_waiting(id, submission);
  trace_.marked(submission->name, "ready");
  const NodeControlBlock::Arrival arrival = arrive(id, submission->memory.location());
  if (arrival == NodeControlBlock::Arrival::complete)
    trace_.marked(submission->name, "last of the node");
  if (arrival != NodeControlBlock::Arrival::stale) return;
  // Reported here, so that the decision that gives the id up does not report it again.
  table_.set_waiting(id, nullptr);
  submission->id.reset();
  report(*submission);
}

NodeControlBlock::Arrival SetEngine::arrive(Id id, Location where) {
  const NodeControlBlock::Arrival arrival = control_block_.arrive(id, where);
  if (arrival == NodeControlBlock::Arrival::complete) {
    if (single_node_) control_block_.signal_others();
    control_block_.signal(single_node_ ? control_block_.local_rank() : 0);
  } else if (arrival == NodeControlBlock::Arrival::waiting) {
    if (control_block_.watched(id)) control_block_.signal(0);
    for (std::uint64_t left = control_block_.joined_mask(); left != 0; left &= left - 1) {
      control_block_.signal(std::countr_zero(left));
    }
  }
  return arrival;
}

void SetEngine::report(Submission& submission) {
  trace_.marked(submission.name, "reported");
  send_mail({.kind = MailKind::report,
             .name = submission.name,
             .signature = submission.signature,
             .location = submission.memory.location()});
}

void SetEngine::send_mail(const Mail& mail) {
  auto bytes = encode(mail);
  if (!outbox_.empty() || !control_block_.push_mail(bytes)) outbox_.push_back(std::move(bytes));
  control_block_.signal(0);
}

void SetEngine::announce_departure() {
  const LockGuard table(table_lock_);
  send_mail({.kind = MailKind::departed, .name = {}, .signature = {}, .location = {}});
}

void SetEngine::report_stalls() {
  const Duration interval = shared_.parts.settings.stall_warning;
  if (!waits_for_peers() || interval.count() == 0) return;
  const LockGuard table(table_lock_);
  const Duration time = now();
  std::vector<std::shared_ptr<Submission>> waiting;
  bool any_overdue = false;
  for (auto& submission : table_.unfinished()) {
    // What is overdue soon is reported now, too: one message then names them all.
    const bool soon =
        submission->overdue_at <= time + std::min<Duration>(kOverdueTick, interval / 2);
    if (submission->decided || !submission->announced() || !soon) continue;
    any_overdue |= submission->overdue_at <= time;
    waiting.push_back(std::move(submission));
  }
  if (!any_overdue) return;
  for (const auto& submission : waiting) {
    submission->overdue_at = time + interval;
    trace_.marked(submission->name, "overdue");
    send_mail(
        {.kind = MailKind::overdue, .name = submission->name, .signature = {}, .location = {}});
  }
}

bool SetEngine::waits_for_peers(const std::string& name) const {
  const LockGuard table(table_lock_);
  const auto submission = table_.undecided(name);
  return submission && submission->announced();
}

void SetEngine::collect(Submission& submission) {
  const bool done = submission.state.load(std::memory_order_acquire) == Submission::kDone;
  try {
    if (done) submission.memory.copy_out(set_memory_);
  } catch (...) {
    release(submission);
    throw;
  }
  release(submission);
  if (!done) throw detached(*submission.error);
}

void SetEngine::release(Submission& submission) {
  if (shared_.poisoned.load()) {
    submission.memory.leave_in_place();
  } else {
    submission.memory.release(set_memory_);
  }
  const LockGuard table(table_lock_);
  table_.leave(submission);
}

void SetEngine::orphan(const std::shared_ptr<Submission>& submission) {
  {
    const LockGuard table(table_lock_);
    if (!submission->finished()) {
      submission->orphaned = true;
      return;
    }
  }
  release(*submission);
}

std::vector<std::shared_ptr<Submission>> SetEngine::unfinished() const {
  const LockGuard table(table_lock_);
  return table_.unfinished();
}

std::optional<std::string> SetEngine::open_name() const {
  const LockGuard table(table_lock_);
  return table_.taken();
}

void SetEngine::close(const Error& error) {
  const LockGuard table(table_lock_);
  if (!closed_) closed_ = detached(error);
}

Statistics SetEngine::statistics() const {
  const LockGuard table(table_lock_);
  return statistics_;
}

}  // namespace hora
