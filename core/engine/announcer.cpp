#include <algorithm>
#include <utility>

#include "core/control_block/atomic.h"
#include "core/engine/operations.h"

namespace hora::internal {

Announcer::Arrival Announcer::arrive(Id id, Location where, Duration time, bool resized) {
  const Arrival arrival = control_block_.arrive(id, where, time, resized && !single_node_);
  if (arrival == Arrival::complete) {
    if (single_node_) control_block_.signal_others();
    control_block_.signal(single_node_ ? control_block_.local_rank() : 0);
  } else if (arrival == Arrival::waiting) {
    if (control_block_.watched(id)) control_block_.signal(0);
    if (control_block_.any_joined()) signal_joined();
  }
  return arrival;
}

void Announcer::signal_joined() {
  const LocalRanks joined = control_block_.joined_ranks();
  for (int r = 0; r < control_block_.local_size(); ++r) {
    if (joined[static_cast<std::size_t>(r)]) control_block_.signal(r);
  }
}

void Announcer::report(const Submission& submission) {
  trace_.marked(submission.name, "reported");
  send({.kind = MailKind::report,
        .name = submission.name,
        .signature = submission.signature,
        .location = submission.memory.location()});
}

void Announcer::report_overdue(const Submission& submission) {
  trace_.marked(submission.name, "overdue");
  send({.kind = MailKind::overdue, .name = submission.name, .signature = {}, .location = {}});
}

void Announcer::report_expiring(const Submission& submission, Duration time) {
  Mail mail{.kind = MailKind::expiring, .name = submission.name, .signature = {}, .location = {}};
  mail.expiry = submission.limit.expiry(submission.submitted, time);
  send(mail);
}

void Announcer::hint_elsewhere(const std::string& name, ProcessSet set) {
  const Mail mail{.kind = MailKind::elsewhere,
                  .name = name,
                  .signature = {},
                  .location = {},
                  .process_set = set};
  if (outbox_.empty() && control_block_.push_mail(encode(mail))) control_block_.signal(0);
}

void Announcer::send(const Mail& mail) {
  auto bytes = encode(mail);
  if (!outbox_.empty() || !control_block_.push_mail(bytes)) {
    outbox_.push_back(std::move(bytes));
    mail_waits_.store(true, kWakeOrder);
    // It polls from now on: no rank says that there is room.
    control_block_.signal(control_block_.local_rank());
  }
  control_block_.signal(0);
}

bool Announcer::flush() {
  bool any = false;
  while (!outbox_.empty() && control_block_.push_mail(outbox_.front())) {
    outbox_.pop_front();
    any = true;
  }
  if (outbox_.empty()) mail_waits_.store(false, kWakeOrder);
  if (any) control_block_.signal(0);
  return any;
}

void JoinedProxies::begin() {
  control_block_.set_joined(true);
  announcer_.send({.kind = MailKind::joined, .name = {}, .signature = {}, .location = {}});
  control_block_.signal(control_block_.local_rank());
}

/// Other ranks are ready for the id, and this rank is not.
bool JoinedProxies::is_wanted(Id id) const {
  const LocalRanks ready = control_block_.ready_ranks(id);
  const auto own = static_cast<std::size_t>(control_block_.local_rank());
  return ready.any() && !ready[own] && !refused_.contains(id);
}

bool JoinedProxies::are_wanted() const {
  const auto& known = table_.names_of_ids();
  return std::any_of(known.begin(), known.end(), [&](const auto& k) { return is_wanted(k.first); });
}

bool JoinedProxies::submit() {
  bool any = false;
  for (const auto& [id, name] : table_.names_of_ids()) {
    if (!is_wanted(id)) continue;
    // The ranks that are ready may have read of the end of the join already: then the log says so.
    // Looked at after their bits, for each id: what was answered last may have let them go on.
    if (control_block_.log_has_pending_work()) return true;
    any |= submit(id, name);
  }
  return any;
}

bool JoinedProxies::submit(Id id, const std::string& name) {
  const Signature* signature = table_.signature_of(id);
  if (!signature) return false;
  if (!allows_joined(signature->kind)) {
    refused_.insert(id);
    Mail mail{.kind = MailKind::report, .name = name, .signature = {}, .location = kNowhere};
    mail.signature.kind = OperationKind::join;
    announcer_.send(mail);
    return true;
  }
  table_.set_waiting(id, make(id, *signature));
  if (announcer_.arrive(id, kNowhere) == Announcer::Arrival::stale) drop(id);
  return true;
}

std::shared_ptr<Submission> JoinedProxies::make(Id id, const Signature& signature) {
  auto submission = std::make_shared<Submission>();
  submission->signature = signature;
  submission->memory.contribute_nothing(signature.bytes());
  submission->id = id;
  submission->is_joined_proxy = true;
  undecided_.fetch_add(1);
  return submission;
}

void JoinedProxies::drop(Id id) {
  refused_.erase(id);
  const auto submission = table_.waiting_for(id);
  if (!submission || !submission->is_joined_proxy) return;
  table_.set_waiting(id, nullptr);
  undecided_.fetch_sub(1);
}

void JoinedProxies::end() {
  for (const auto& [id, name] : table_.names_of_ids()) {
    const auto waiting = table_.waiting_for(id);
    if (!waiting || !waiting->is_joined_proxy) continue;
    control_block_.withdraw(id);
    drop(id);
  }
  refused_.clear();
  control_block_.set_joined(false);
}

}  // namespace hora::internal
