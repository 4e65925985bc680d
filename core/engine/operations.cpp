#include "core/engine/operations.h"

#include <hora/printable.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

#include "core/base/text.h"
#include "core/control_block/atomic.h"

namespace hora::internal {

std::shared_ptr<Submission> NameTable::enter_again(std::string_view name) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return nullptr;
  NameEntry& entry = found->second;
  const auto spare = std::find_if(entry.spares.begin(), entry.spares.end(),
                                  [](const auto& each) { return each.use_count() == 1; });
  if (entry.submission || spare == entry.spares.end()) return nullptr;
  // The table's is the only reference, so nothing else will touch it. Others were dropped by other
  // threads, each by a decrement that releases; use_count() is relaxed, but the decrement of one
  // more reference acquires what all of them have done with the submission.
  { const std::shared_ptr<Submission> acquired = *spare; }
  entry.submission = std::move(*spare);
  entry.submission->renew();
  entry.submission->entry = &entry;
  return entry.submission;
}

bool NameTable::enter(const std::shared_ptr<Submission>& submission) {
  NameEntry& entry = entries_[submission->name];
  if (entry.submission) return false;
  entry.submission = submission;
  submission->entry = &entry;
  return true;
}

void NameTable::leave(const Submission& submission) {
  NameEntry* const entry = submission.entry;
  if (!entry) return;
  entry->submission->entry = nullptr;
  if (!entry->id) {
    entries_.erase(entries_.find(submission.name));
    return;
  }
  const auto place = std::find(entry->spares.begin(), entry->spares.end(), nullptr);
  std::shared_ptr<Submission> ended = std::move(entry->submission);
  if (place != entry->spares.end()) *place = std::move(ended);
}

std::string NameTable::unnamed(std::string_view prefix) const {
  for (std::size_t k = 0;; ++k) {
    std::string name = fmt::format("{}.{}", prefix, k);
    const auto entry = entries_.find(name);
    if (entry == entries_.end() || !entry->second.submission) return name;
  }
}

std::shared_ptr<Submission> NameTable::waiting_for(Id id) const {
  const auto& submission = in_flight_[static_cast<std::size_t>(slot_of(id))];
  return submission && submission->id == id ? submission : nullptr;
}

std::shared_ptr<Submission> NameTable::take_waiting(Id id) {
  auto& submission = in_flight_[static_cast<std::size_t>(slot_of(id))];
  return submission && submission->id == id ? std::move(submission) : nullptr;
}

void NameTable::set_waiting(Id id, std::shared_ptr<Submission> submission) {
  in_flight_[static_cast<std::size_t>(slot_of(id))] = std::move(submission);
}

std::shared_ptr<Submission> NameTable::undecided(const std::string& name) const {
  const auto entry = entries_.find(name);
  if (entry == entries_.end() || !entry->second.submission) return nullptr;
  const auto& submission = entry->second.submission;
  return submission->decided || submission->finished() ? nullptr : submission;
}

std::shared_ptr<Submission> NameTable::assign(const std::string& name, Id id) {
  const auto submission = undecided(name);
  if (!submission) return nullptr;
  learn(name, id, submission->signature);
  submission->id = id;
  submission->last_extents = submission->entry->last_extents;
  return submission;
}

std::shared_ptr<Submission> NameTable::retire(Id id) {
  const auto named = names_of_ids_.extract(id);
  if (named.empty()) return nullptr;
  const auto entry = entries_.find(named.mapped());
  if (entry == entries_.end() || entry->second.id != id) return nullptr;
  entry->second.id.reset();
  const std::shared_ptr<Submission> submission = entry->second.submission;
  if (!submission) {
    entries_.erase(entry);
    return nullptr;
  }
  if (submission->id != id || submission->decided) return nullptr;
  submission->id.reset();
  set_waiting(id, nullptr);
  return submission;
}

std::shared_ptr<Submission> NameTable::take_undecided(const std::string& name) {
  const auto submission = undecided(name);
  if (submission && submission->id) set_waiting(*submission->id, nullptr);
  return submission;
}

std::vector<std::shared_ptr<Submission>> NameTable::unfinished() const {
  std::vector<std::shared_ptr<Submission>> result = uncollected();
  std::erase_if(result, [](const auto& submission) { return submission->finished(); });
  return result;
}

std::vector<std::shared_ptr<Submission>> NameTable::uncollected() const {
  std::vector<std::shared_ptr<Submission>> result;
  for (const auto& [name, entry] : entries_) {
    if (entry.submission) result.push_back(entry.submission);
  }
  return result;
}

void NameTable::learn(const std::string& name, Id id, const Signature& signature) {
  NameEntry& entry = entries_[name];
  if (entry.id) names_of_ids_.erase(*entry.id);
  entry.id = id;
  entry.signature = signature;
  entry.last_extents =
      extents_may_differ(signature.kind) ? std::make_shared<LastExtents>() : nullptr;
  names_of_ids_[id] = name;
}

const Signature* NameTable::signature_of(Id id) const {
  const auto name = names_of_ids_.find(id);
  if (name == names_of_ids_.end()) return nullptr;
  const NameEntry& entry = entries_.at(name->second);
  return entry.id == id ? &entry.signature : nullptr;
}

std::optional<std::string> NameTable::taken() const {
  for (const auto& [name, entry] : entries_) {
    if (entry.submission) return name;
  }
  return std::nullopt;
}

Submissions::Submissions(const SetParts& parts, const EngineParts& engine,
                         const std::atomic<bool>& poisoned, const Tracer& trace, ProcessSet set)
    : rank_(engine.rank),
      poisoned_(poisoned),
      trace_(trace),
      record_(engine.flight, set, parts.topology.size()),
      control_block_(*parts.control_block),
      status_(engine.world.control_block->status(engine.world.control_block->local_rank())),
      small_blocks_(*parts.memory),
      memory_{.set = parts,
              .device = engine.device,
              .heap = engine.device_heap,
              .rank = engine.rank,
              .local_rank = control_block_.local_rank(),
              .local_size = control_block_.local_size(),
              .small = &small_blocks_,
              .volume = &block_volume_,
              .is_world = set == kWorld},
      table_(control_block_.id_capacity()),
      deadlines_(parts, engine, table_, memory_, next_times_) {}

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
  submission->name =
      !request.name.empty()
          ? request.name
          : table_.unnamed(fmt::format("{}{}", kUnnamedPrefix, name_of(request.signature.kind)));
  submission->signature = std::move(request.signature);
  submission->result = std::move(request.result);
  if (!table_.enter(submission)) {
    throw Error(
        ErrorCode::duplicate_name,
        fmt::format("{} is in flight already on rank {}: wait for its handle first, or give "
                    "this one a name of its own",
                    tensor_text(submission->name), rank_),
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
    if (deadlines_.begin(*submission, request.timeout, now())) {
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
  Deadlines::Due due = deadlines_.take_due(time);
  for (const auto& submission : due.expiring) {
    send({.kind = MailKind::expiring,
          .name = submission->name,
          .signature = {},
          .location = {},
          .expiry = submission->limit.expiry(submission->submitted, time)});
  }
  return std::move(due.timed_out);
}

std::shared_ptr<Submission> Submissions::stalled(Duration time) const {
  const LockGuard table(table_lock_);
  return deadlines_.stalled(time);
}

bool Submissions::waits_since(Duration time) const {
  const LockGuard table(table_lock_);
  return deadlines_.waits_since(time);
}

void Submissions::note_answer(const std::string& name) {
  const LockGuard table(table_lock_);
  deadlines_.note_answer(name, now());
}

void Submissions::announce(const std::shared_ptr<Submission>& submission) {
  const NameEntry& entry = *submission->entry;
  if (!entry.id || entry.signature != submission->signature) {
    return report(*submission);
  }
  const Id id = *entry.id;
  submission->id = id;
  table_.set_waiting(id, submission);
  submission->last_extents = entry.last_extents;
  trace_.marked(submission->name, "ready");
  const Arrival arrival = arrive(id, submission->memory.location(), submission->submitted,
                                 submission->is_resized(memory_));
  if (arrival == Arrival::complete) trace_.marked(submission->name, "last of the node");
  if (arrival != Arrival::stale) return;
  // Reported here, so that the decision that gives the id up does not report it again.
  table_.set_waiting(id, nullptr);
  submission->id.reset();
  report(*submission);
}

Submissions::Arrival Submissions::arrive(Id id, Location where, Duration time, bool resized) {
  const bool single_node = memory_.single_node();
  const Arrival arrival = control_block_.arrive(id, where, time, resized && !single_node);
  if (arrival == Arrival::complete) {
    if (single_node) control_block_.signal_others();
    control_block_.signal(single_node ? control_block_.local_rank() : 0);
  } else if (arrival == Arrival::waiting) {
    if (control_block_.watched(id)) control_block_.signal(0);
    if (!control_block_.any_joined()) return arrival;
    const LocalRanks joined = control_block_.joined_ranks();
    for (int r = 0; r < control_block_.local_size(); ++r) {
      if (joined[static_cast<std::size_t>(r)]) control_block_.signal(r);
    }
  }
  return arrival;
}

void Submissions::report(const Submission& submission) {
  trace_.marked(submission.name, "reported");
  send({.kind = MailKind::report,
        .name = submission.name,
        .signature = submission.signature,
        .location = submission.memory.location()});
}

void Submissions::send(const Mail& mail) {
  auto bytes = encode(mail);
  if (!outbox_.empty() || !control_block_.push_mail(bytes)) {
    outbox_.push_back(std::move(bytes));
    mail_waits_.store(true, kWakeOrder);
    // It polls from now on: no rank says that there is room.
    control_block_.signal(control_block_.local_rank());
  }
  control_block_.signal(0);
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
                fmt::format("rank {} has joined this process set already", rank_), rank_);
  }
  submission->submitted = now();
  submission->overdue_at = Duration::max();  // others may have data for hours
  record_.submitted(*submission);
  undecided_.fetch_add(1);
  joined_.store(true);
  // From now on peers wake this rank when they become ready for something.
  control_block_.set_joined(true);
  send({.kind = MailKind::joined, .name = {}, .signature = {}, .location = {}});
  control_block_.signal(control_block_.local_rank());
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
  send({.kind = MailKind::departed, .name = {}, .signature = {}, .location = {}});
}

void Submissions::report_stalls() {
  if (!wait_for_peers() || now().count() < next_times_.overdue.load()) return;
  const LockGuard table(table_lock_);
  for (const auto& submission : deadlines_.take_overdue(now())) {
    trace_.marked(submission->name, "overdue");
    send({.kind = MailKind::overdue, .name = submission->name, .signature = {}, .location = {}});
  }
}

bool Submissions::wait_for_peers(const std::string& name) const {
  const LockGuard table(table_lock_);
  const auto submission = table_.undecided(name);
  return submission && submission->announced();
}

void Submissions::hint_elsewhere(const std::string& name, ProcessSet set) {
  const LockGuard table(table_lock_);
  const Mail mail{.kind = MailKind::elsewhere,
                  .name = name,
                  .signature = {},
                  .location = {},
                  .process_set = set};
  if (outbox_.empty() && control_block_.push_mail(encode(mail))) control_block_.signal(0);
}

bool Submissions::flush_mail() {
  if (!mail_waits()) return false;
  const LockGuard table(table_lock_);
  bool any = false;
  while (!outbox_.empty() && control_block_.push_mail(outbox_.front())) {
    outbox_.pop_front();
    any = true;
  }
  if (outbox_.empty()) mail_waits_.store(false, kWakeOrder);
  if (any) control_block_.signal(0);
  return any;
}

void Submissions::take(const Decision& decision, std::span<const LastRank> last,
                       DecidedBatch& batch) {
  batch.clear();
  batch.local_size = static_cast<std::size_t>(control_block_.local_size());
  const auto refuse = [&](const std::string& what) {
    throw Error(
        ErrorCode::transport,
        fmt::format("negotiation: rank {} is to run {}, which it has not submitted", rank_, what),
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
    drop_proxy(id);
    if (const auto submission = table_.retire(id)) report(*submission);
  }
  for (const Assigned& assigned : decision.assigned) {
    auto submission = table_.assign(assigned.name, assigned.id);
    if (!submission && joined_.load() && assigned.signature) {
      table_.learn(assigned.name, assigned.id, *assigned.signature);
      submission = make_proxy(assigned.id, *assigned.signature);
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
      if (!known) refuse(fmt::format("id {}", id));
      // No rank of this node has submitted it.
      submission = make_proxy(id, *known);
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
    if (failed.has_id) drop_proxy(failed.id);
    submission = table_.take_undecided(failed.name);
  }
  if (!submission) return;
  undecided_.fetch_sub(1);
  trace_.negotiated(submission->name, submission->submitted, now());
  trace_.marked(submission->name, "mismatch");
  finish(submission, Error(ErrorCode::mismatch, failed.text, -1, failed.name));
}

/// Other ranks of the node are ready for the id, and this rank is not.
bool Submissions::is_wanted(Id id) const {
  const LocalRanks ready = control_block_.ready_ranks(id);
  const auto own = static_cast<std::size_t>(control_block_.local_rank());
  return ready.any() && !ready[own] && !refused_.contains(id);
}

bool Submissions::submit_proxy(Id id, const std::string& name) {
  const Signature* signature = table_.signature_of(id);
  if (!signature) return false;
  if (!allows_joined(signature->kind)) {
    refused_.insert(id);
    Mail mail{.kind = MailKind::report, .name = name, .signature = {}, .location = kNowhere};
    mail.signature.kind = OperationKind::join;
    send(mail);
    return true;
  }
  table_.set_waiting(id, make_proxy(id, *signature));
  if (arrive(id, kNowhere) == Arrival::stale) drop_proxy(id);
  return true;
}

std::shared_ptr<Submission> Submissions::make_proxy(Id id, const Signature& signature) {
  auto submission = std::make_shared<Submission>();
  submission->signature = signature;
  submission->memory.contribute_nothing(signature.bytes());
  submission->id = id;
  submission->is_joined_proxy = true;
  undecided_.fetch_add(1);
  return submission;
}

/// The id was decided otherwise, or given up.
void Submissions::drop_proxy(Id id) {
  refused_.erase(id);
  const auto submission = table_.waiting_for(id);
  if (!submission || !submission->is_joined_proxy) return;
  table_.set_waiting(id, nullptr);
  undecided_.fetch_sub(1);
}

bool Submissions::proxies_are_wanted() const {
  if (!joined_.load()) return false;
  const LockGuard table(table_lock_);
  return std::ranges::any_of(table_.names_of_ids(), [this](const auto& known) {
    table_lock_.assert_held();
    return is_wanted(known.first);
  });
}

bool Submissions::submit_proxies() {
  if (!proxies_are_wanted()) return false;
  const LockGuard table(table_lock_);
  bool any = false;
  for (const auto& [id, name] : table_.names_of_ids()) {
    if (!is_wanted(id)) continue;
    // The ranks that are ready may have read of the end of the join already: then the log says so.
    // Looked at after their bits, for each id: what was answered last may have let them go on.
    if (control_block_.log_has_pending_work()) return true;
    any |= submit_proxy(id, name);
  }
  return any;
}

void Submissions::end_join(int last_joined) {
  std::shared_ptr<Submission> submission;
  {
    const LockGuard table(table_lock_);
    for (const auto& [id, name] : table_.names_of_ids()) {
      const auto waiting = table_.waiting_for(id);
      if (!waiting || !waiting->is_joined_proxy) continue;
      control_block_.withdraw(id);
      drop_proxy(id);
    }
    refused_.clear();
    control_block_.set_joined(false);
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
