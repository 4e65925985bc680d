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
  submission->overdue_at = Now::max();  // others may have data for hours
  undecided_.fetch_add(1);
  joined_.store(true);
  board_.set_joined(true);
  send_mail({.kind = MailKind::joined, .name = {}, .signature = {}, .location = {}});
  board_.signal(board_.local_rank());
  return submission;
}

/// Others are ready for it, and this rank is not.
bool SetEngine::is_wanted(Id id) const {
  const std::uint64_t ready = board_.ready_mask(id);
  const std::uint64_t mine = std::uint64_t{1} << board_.local_rank();
  return ready != 0 && (ready & mine) == 0 && !refused_.contains(id);
}

bool SetEngine::may_stand_in() const {
  if (!joined_.load()) return false;
  const LockGuard table(table_lock_);
  const auto& known = table_.names_of_ids();
  return std::any_of(known.begin(), known.end(), [&](const auto& k) {
    table_lock_.assert_held();
    return is_wanted(k.first);
  });
}

bool SetEngine::stand_in() {
  if (!may_stand_in()) return false;
  // A rank that is ready may have read the end of the join already.
  if (board_.log_has_news()) return true;
  const LockGuard table(table_lock_);
  bool any = false;
  for (const auto& [id, name] : table_.names_of_ids()) {
    if (is_wanted(id)) any |= stand_in_for(id, name);
  }
  return any;
}

bool SetEngine::stand_in_for(Id id, const std::string& name) {
  const Signature* signature = table_.signature_of(id);
  if (!signature) return false;
  if (!allows_joined(signature->kind)) {
    refused_.insert(id);
    Mail mail{.kind = MailKind::report, .name = name, .signature = {}, .location = kNowhere};
    mail.signature.kind = OperationKind::join;
    send_mail(mail);
    return true;
  }
  table_.set_waiting(id, stand_in_submission(id, *signature));
  if (arrive(id, kNowhere) == NodeBoard::Arrival::stale) drop_stand_in(id);
  return true;
}

std::shared_ptr<Submission> SetEngine::stand_in_submission(Id id, const Signature& signature) {
  auto submission = std::make_shared<Submission>();
  submission->set = this;
  submission->signature = signature;
  submission->bytes = signature.bytes();
  submission->location = kNowhere;
  submission->id = id;
  submission->stands_in = true;
  undecided_.fetch_add(1);
  return submission;
}

void SetEngine::drop_stand_in(Id id) {
  refused_.erase(id);
  const auto submission = table_.waiting_for(id);
  if (!submission || !submission->stands_in) return;
  table_.set_waiting(id, nullptr);
  undecided_.fetch_sub(1);
}

void SetEngine::end_join(int last_joined) {
  std::shared_ptr<Submission> submission;
  {
    const LockGuard table(table_lock_);
    for (const auto& [id, name] : table_.names_of_ids()) {
      const auto waiting = table_.waiting_for(id);
      if (!waiting || !waiting->stands_in) continue;
      board_.withdraw(id);
      drop_stand_in(id);
    }
    refused_.clear();
    submission = table_.take_undecided(std::string(kJoinName));
  }
  joined_.store(false);
  board_.set_joined(false);
  if (!submission) return;
  undecided_.fetch_sub(1);
  submission->number = last_joined;
  finish(submission, std::nullopt);
}

}  // namespace hora
