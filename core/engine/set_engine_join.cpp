/// SetEngine: a rank that has joined takes part, with nothing, in what other ranks submit.
#include <algorithm>

#include "core/engine/set_engine.h"
#include "core/tensor_text.h"

namespace hora {
std::shared_ptr<Submission> SetEngine::join() {
  auto submission = std::make_shared<Submission>();
  submission->set = this;
  submission->name = kJoinName;
  submission->signature.kind = OperationKind::join;
  const LockGuard table(table_lock_);
  if (closed_) throw detached(*closed_);
  if (!table_.enter(submission)) {
    throw Error(
        ErrorCode::duplicate_name,
        "rank " + std::to_string(shared_.parts.rank) + " has joined this process set already",
        shared_.parts.rank);
  }
  submission->submitted = now();
  submission->overdue_at = Duration::max();  // others may have data for hours
  undecided_.fetch_add(1);
  joined_.store(true);
  control_block_.set_joined(true);
  send_mail({.kind = MailKind::joined, .name = {}, .signature = {}, .location = {}});
  control_block_.signal(control_block_.local_rank());
  return submission;
}

/// Others are ready for it, and this rank is not.
bool SetEngine::is_wanted(Id id) const {
  const std::uint64_t ready = control_block_.ready_mask(id);
  const std::uint64_t mine = std::uint64_t{1} << control_block_.local_rank();
  return ready != 0 && (ready & mine) == 0 && !refused_.contains(id);
}

bool SetEngine::may_submit_joined_proxies() const {
  if (!joined_.load()) return false;
  const LockGuard table(table_lock_);
  const auto& known = table_.names_of_ids();
  return std::any_of(known.begin(), known.end(), [&](const auto& k) {
    table_lock_.assert_held();
    return is_wanted(k.first);
  });
}

bool SetEngine::submit_joined_proxies() {
  if (!may_submit_joined_proxies()) return false;
  // A rank that is ready may have read the end of the join already.
  if (control_block_.log_has_pending_work()) return true;
  const LockGuard table(table_lock_);
  bool any = false;
  for (const auto& [id, name] : table_.names_of_ids()) {
    if (is_wanted(id)) any |= submit_joined_proxy(id, name);
  }
  return any;
}

bool SetEngine::submit_joined_proxy(Id id, const std::string& name) {
  const Signature* signature = table_.signature_of(id);
  if (!signature) return false;
  if (!allows_joined(signature->kind)) {
    refused_.insert(id);
    Mail mail{.kind = MailKind::report, .name = name, .signature = {}, .location = kNowhere};
    mail.signature.kind = OperationKind::join;
    send_mail(mail);
    return true;
  }
  table_.set_waiting(id, joined_proxy(id, *signature));
  if (arrive(id, kNowhere) == NodeControlBlock::Arrival::stale) drop_joined_proxy(id);
  return true;
}

std::shared_ptr<Submission> SetEngine::joined_proxy(Id id, const Signature& signature) {
  auto submission = std::make_shared<Submission>();
  submission->set = this;
  submission->signature = signature;
  submission->memory.contribute_nothing(signature.bytes());
  submission->id = id;
  submission->is_joined_proxy = true;
  undecided_.fetch_add(1);
  return submission;
}

void SetEngine::drop_joined_proxy(Id id) {
  refused_.erase(id);
  const auto submission = table_.waiting_for(id);
  if (!submission || !submission->is_joined_proxy) return;
  table_.set_waiting(id, nullptr);
  undecided_.fetch_sub(1);
}

void SetEngine::end_join(int last_joined) {
  std::shared_ptr<Submission> submission;
  {
    const LockGuard table(table_lock_);
    for (const auto& [id, name] : table_.names_of_ids()) {
      const auto waiting = table_.waiting_for(id);
      if (!waiting || !waiting->is_joined_proxy) continue;
      control_block_.withdraw(id);
      drop_joined_proxy(id);
    }
    refused_.clear();
    submission = table_.take_undecided(std::string(kJoinName));
  }
  joined_.store(false);
  control_block_.set_joined(false);
  if (!submission) return;
  undecided_.fetch_sub(1);
  submission->number = last_joined;
  finish(submission, std::nullopt);
}

}  // namespace hora
