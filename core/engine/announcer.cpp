#include "core/engine/announcer.h"

#include <bit>
#include <utility>

namespace hora {

Announcer::Arrival Announcer::arrive(Id id, Location where) {
  const Arrival arrival = control_block_.arrive(id, where);
  if (arrival == Arrival::complete) {
    if (single_node_) control_block_.signal_others();
    control_block_.signal(single_node_ ? control_block_.local_rank() : 0);
  } else if (arrival == Arrival::waiting) {
    if (control_block_.watched(id)) control_block_.signal(0);
    for (std::uint64_t left = control_block_.joined_mask(); left != 0; left &= left - 1) {
      control_block_.signal(std::countr_zero(left));
    }
  }
  return arrival;
}

void Announcer::report(const Submission& submission) {
  trace_.marked(submission.name, "reported");
  send({.kind = MailKind::report,
        .name = submission.name,
        .signature = submission.signature,
        .location = submission.memory.location()});
}

void Announcer::send(const Mail& mail) {
  auto bytes = encode(mail);
  if (!outbox_.empty() || !control_block_.push_mail(bytes)) outbox_.push_back(std::move(bytes));
  control_block_.signal(0);
}

void Announcer::try_send(const Mail& mail) {
  if (outbox_.empty() && control_block_.push_mail(encode(mail))) control_block_.signal(0);
}

bool Announcer::flush() {
  bool any = false;
  while (!outbox_.empty() && control_block_.push_mail(outbox_.front())) {
    outbox_.pop_front();
    any = true;
  }
  if (any) control_block_.signal(0);
  return any;
}

}  // namespace hora
