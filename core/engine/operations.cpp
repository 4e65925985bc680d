#include "core/engine/operations.h"

#include <hora/printable.h>
#include <spdlog/fmt/fmt.h>

namespace hora::internal {
namespace {

/// The share of a limit by which ranks that know more notice its end first; its least and most.
constexpr int kGraceShare = 16;
constexpr auto kLeastGrace = std::chrono::milliseconds(100);
constexpr auto kLongestGrace = std::chrono::milliseconds(1000);
/// The share of a limit that the root has to ask all leaders, each of which may look only every
/// 100 ms; and the most that is.
constexpr int kNoticeShare = 4;
constexpr Duration kLongestNotice = std::chrono::seconds(2);
static_assert(kLongestNotice <= Expiry::kMostLeft);

/// A root that runs answers a report of an overdue name within this time.
constexpr Duration kAnswerTime = std::chrono::seconds(1);

}  // namespace

TimeLimit TimeLimit::of(std::chrono::milliseconds of_call, std::chrono::milliseconds setting) {
  if (of_call.count() == 0) return {setting, false};
  if (of_call == std::chrono::milliseconds::max()) return {};
  return {of_call, true};
}

Duration TimeLimit::end(Duration submitted, int report_order) const {
  // The least of both in the unit of the longer one: nanoseconds do not hold every length.
  const Duration grace = report_order * Duration(std::clamp<std::chrono::milliseconds>(
                                            length / kGraceShare, kLeastGrace, kLongestGrace));
  const auto longest =
      std::chrono::duration_cast<std::chrono::milliseconds>(Duration::max() - submitted - grace);
  return length.count() == 0 || length >= longest ? Duration::max() : submitted + length + grace;
}

Duration TimeLimit::notice(Duration submitted) const {
  const Duration last = end(submitted);
  if (last == Duration::max()) return last;
  return last - std::min<Duration>(length / kNoticeShare, kLongestNotice);
}

Expiry TimeLimit::expiry(Duration submitted, Duration now) const {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end(submitted) - now);
  return {length, std::clamp(left, std::chrono::milliseconds(0), Expiry::kMostLeft), is_of_call};
}

bool Operation::root_is_silent(Duration time) const {
  return reported_overdue != Duration{} && answered < reported_overdue &&
         time - reported_overdue >= kAnswerTime;
}

std::shared_ptr<Operation> NameTable::enter_again(std::string_view name) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return nullptr;
  NameEntry& entry = found->second;
  const auto spare = std::find_if(entry.spares.begin(), entry.spares.end(),
                                  [](const auto& each) { return each.use_count() == 1; });
  if (entry.operation || spare == entry.spares.end()) return nullptr;
  // The table's is the only reference, so nothing else will touch it. Others were dropped by other
  // threads, each by a decrement that releases; use_count() is relaxed, but the decrement of one
  // more reference acquires what all of them have done with the operation.
  { const std::shared_ptr<Operation> acquired = *spare; }
  entry.operation = std::move(*spare);
  entry.operation->renew();
  entry.operation->entry = &entry;
  return entry.operation;
}

bool NameTable::enter(const std::shared_ptr<Operation>& operation) {
  NameEntry& entry = entries_[operation->name];
  if (entry.operation) return false;
  entry.operation = operation;
  operation->entry = &entry;
  return true;
}

void NameTable::leave(const Operation& operation) {
  NameEntry* const entry = operation.entry;
  if (!entry) return;
  entry->operation->entry = nullptr;
  if (!entry->id) {
    entries_.erase(entries_.find(operation.name));
    return;
  }
  const auto place = std::find(entry->spares.begin(), entry->spares.end(), nullptr);
  std::shared_ptr<Operation> ended = std::move(entry->operation);
  if (place != entry->spares.end()) *place = std::move(ended);
}

std::string NameTable::unnamed(std::string_view prefix) const {
  for (std::size_t k = 0;; ++k) {
    std::string name = fmt::format("{}.{}", prefix, k);
    const auto entry = entries_.find(name);
    if (entry == entries_.end() || !entry->second.operation) return name;
  }
}

std::shared_ptr<Operation> NameTable::assign(const std::string& name, Id id) {
  const auto operation = undecided(name);
  if (!operation) return nullptr;
  learn(name, id, operation->signature);
  operation->id = id;
  operation->last_extents = operation->entry->last_extents;
  return operation;
}

std::shared_ptr<Operation> NameTable::retire(Id id) {
  Slot& slot = this->slot(id);
  if (!slot.named || slot.named->second.id != id) return nullptr;
  auto& [name, entry] = *std::exchange(slot.named, nullptr);
  entry.id.reset();
  const std::shared_ptr<Operation> operation = entry.operation;
  if (!operation) {
    entries_.erase(entries_.find(name));
    return nullptr;
  }
  if (operation->id != id || operation->decided) return nullptr;
  operation->id.reset();
  slot.waiting = nullptr;
  return operation;
}

std::vector<std::shared_ptr<Operation>> NameTable::uncollected() const {
  std::vector<std::shared_ptr<Operation>> result;
  for (const auto& [name, entry] : entries_) {
    if (entry.operation) result.push_back(entry.operation);
  }
  return result;
}

void NameTable::learn(const std::string& name, Id id, const Signature& signature) {
  auto& named = *entries_.try_emplace(name).first;
  NameEntry& entry = named.second;
  if (entry.id && slot(*entry.id).named == &named) slot(*entry.id).named = nullptr;
  slot(id).named = &named;
  entry.id = id;
  entry.signature = signature;
  entry.last_extents =
      extents_may_differ(signature.kind) ? std::make_shared<LastExtents>() : nullptr;
}

Operations::Operations(const SetMember& set, const std::atomic<bool>& aborted)
    : set_(set),
      aborted_(aborted),
      control_block_(*set.parts.control_block),
      status_(set.engine.status()),
      stall_warning_(set.engine.settings.stall_warning),
      report_order_(set.root() == set.rank() ? 0
                    : set.local_rank == 0    ? 1
                                             : 2),
      table_(control_block_.id_capacity()) {}

void Operations::check_open() const {
  if (closed_) throw detached(*closed_);
}

std::shared_ptr<Operation> Operations::enter(Request& request) {
  check_open();
  if (auto again = request.name.empty() ? nullptr : table_.enter_again(request.name)) {
    if (again->signature != request.signature) again->signature = std::move(request.signature);
    again->result = request.result;
    return again;
  }
  auto operation = std::make_shared<Operation>();
  operation->owner = this;
  operation->name =
      !request.name.empty()
          ? request.name
          : table_.unnamed(fmt::format("{}{}", kUnnamedPrefix, name_of(request.signature.kind)));
  operation->signature = std::move(request.signature);
  operation->result = request.result;
  if (!table_.enter(operation)) {
    throw Error(
        ErrorCode::duplicate_name,
        fmt::format("{} is in flight already on rank {}: wait for its handle first, or give "
                    "this one a name of its own",
                    tensor_text(operation->name), set_.rank()),
        set_.rank(), operation->name);
  }
  return operation;
}

void Operations::record(Operation& operation) const {
  operation.record =
      set_.record.submitted(operation.name, set_.id, operation.signature, operation.memory.bytes(),
                            static_cast<std::size_t>(set_.topology().size()), operation.submitted);
}

std::shared_ptr<Operation> Operations::submit(Request&& request, Caller caller) {
  std::shared_ptr<Operation> operation;
  {
    const LockGuard table(table_lock_);
    operation = enter(request);
  }
  try {
    operation->memory.copy_in(set_, operation->signature, request, caller);
    const LockGuard table(table_lock_);
    check_open();
    if (set_deadlines(*operation, request.timeout)) {
      // A caller that sleeps, and the engine, which may outlast its turn.
      control_block_.signal(set_.local_rank);
      control_block_.wakeup_flags().wake_engine();
    }
    record(*operation);
    undecided_.fetch_add(1);
    announce(operation);
    status_.submitted.write(operation->name, operation->submitted, set_.id);
  } catch (...) {
    set_.record.finished(operation->record, RecordOutcome::failed, now());
    release(*operation);
    throw;
  }
  return operation;
}

bool Operations::set_deadlines(Operation& operation, std::chrono::milliseconds timeout) {
  const Duration time = now();
  operation.submitted = time;
  operation.overdue_at = stall_warning_.count() > 0 ? time + stall_warning_ : Duration::max();
  next_overdue_.store(std::min(next_overdue_.load(), operation.overdue_at.count()));
  operation.limit = TimeLimit::of(timeout, set_.engine.settings.timeout);
  operation.out_of_time_at = operation.limit.end(time, report_order_);
  operation.notice_at = operation.limit.notice(time);
  const Duration next = operation.next_timeout();
  if (next >= next_timeout()) return false;
  next_timeout_.store(next.count(), kWakeOrder);
  return next - time <= kOverdueTick;
}

std::shared_ptr<Operation> Operations::timed_out(Duration time) {
  if (next_timeout() > time) return nullptr;
  const LockGuard table(table_lock_);
  std::shared_ptr<Operation> first;
  Duration next = Duration::max();
  for (auto& operation : table_.unfinished()) {
    // The device bounds what is under way there.
    if (operation->decided && set_.on_device(operation->signature)) continue;
    if (operation->notice_at <= time) {
      operation->notice_at = Duration::max();
      if (!operation->decided) {
        send({.kind = MailKind::expiring,
              .name = operation->name,
              .expiry = operation->limit.expiry(operation->submitted, time)});
      }
    }
    next = std::min(next, operation->next_timeout());
    if (operation->out_of_time_at > time) continue;
    if (!first || operation->out_of_time_at < first->out_of_time_at) first = std::move(operation);
  }
  next_timeout_.store(next.count(), kWakeOrder);
  return first;
}

std::shared_ptr<Operation> Operations::stalled(Duration time) const {
  const LockGuard table(table_lock_);
  std::shared_ptr<Operation> longest;
  for (auto& operation : table_.unfinished()) {
    if (!operation->announced()) continue;
    const bool is_stalled = operation->decided ? time - operation->decided_at >= stall_warning_ &&
                                                     !set_.on_device(operation->signature)
                                               : operation->root_is_silent(time);
    if (!is_stalled) continue;
    if (!longest || operation->submitted < longest->submitted) longest = std::move(operation);
  }
  return longest;
}

void Operations::report_stalls(Duration time) {
  if (!wait_for_peers() || time.count() < next_overdue_.load()) return;
  const LockGuard table(table_lock_);
  // Reports now, too, what is overdue soon: one message then names them all.
  const Duration soon = time + std::min<Duration>(kOverdueTick, stall_warning_ / 2);
  std::vector<std::shared_ptr<Operation>> waiting;
  Duration first = Duration::max();
  for (auto& operation : table_.unfinished()) {
    if (operation->decided || !operation->announced()) continue;
    first = std::min(first, operation->overdue_at);
    if (operation->overdue_at <= soon) waiting.push_back(std::move(operation));
  }
  const bool is_overdue = first <= time;
  next_overdue_.store((is_overdue ? soon : first).count());
  if (!is_overdue) return;
  for (const auto& operation : waiting) {
    operation->overdue_at = time + std::max(stall_warning_, time - operation->submitted);
    if (operation->answered >= operation->reported_overdue) operation->reported_overdue = time;
    set_.trace.marked(operation->name, "overdue");
    send(MailKind::overdue, operation->name);
  }
}

void Operations::announce(const std::shared_ptr<Operation>& operation) {
  const NameEntry& entry = *operation->entry;
  if (!entry.id || entry.signature != operation->signature || control_block_.any_joined()) {
    return report(*operation);
  }
  const Id id = *entry.id;
  operation->id = id;
  table_.set_waiting(id, operation);
  operation->last_extents = entry.last_extents;
  set_.trace.marked(operation->name, "ready");
  const bool single_node = set_.single_node();
  using Arrival = NodeControlBlock::Arrival;
  const Arrival arrival =
      control_block_.arrive(id, operation->memory.location(), operation->submitted,
                            !single_node && operation->is_resized(set_));
  if (arrival == Arrival::complete) {
    if (single_node) control_block_.signal_others();
    control_block_.signal(single_node ? control_block_.local_rank() : 0);
    set_.trace.marked(operation->name, "last of the node");
  } else if (arrival == Arrival::waiting && control_block_.any_joined()) {
    control_block_.signal(0);
  }
  if (arrival != Arrival::stale) return;
  // Reported here, so that the decision that gives the id up does not report it again.
  table_.set_waiting(id, nullptr);
  operation->id.reset();
  report(*operation);
}

void Operations::report(const Operation& operation) {
  set_.trace.marked(operation.name, "reported");
  send({.kind = MailKind::report,
        .name = operation.name,
        .signature = operation.signature,
        .location = operation.memory.location()});
}

void Operations::send(const Mail& mail) {
  auto bytes = encode(mail);
  if (!outbox_.empty() || !control_block_.push_mail(bytes)) {
    outbox_.push_back(std::move(bytes));
    mail_waits_.store(true, kWakeOrder);
    // It polls from now on: no rank says that there is room.
    control_block_.signal(control_block_.local_rank());
  }
  control_block_.signal(0);
}

std::shared_ptr<Operation> Operations::join() {
  auto operation = std::make_shared<Operation>();
  operation->owner = this;
  operation->name = kJoinName;
  operation->signature.kind = OperationKind::join;
  const LockGuard table(table_lock_);
  check_open();
  if (!table_.enter(operation)) {
    throw Error(ErrorCode::duplicate_name,
                fmt::format("rank {} has joined this process set already", set_.rank()),
                set_.rank());
  }
  operation->submitted = now();
  operation->overdue_at = Duration::max();  // others may have data for hours
  record(*operation);
  undecided_.fetch_add(1);
  joined_.store(true);
  // From now on peers report by name, before the leader hears of it.
  control_block_.set_joined(true);
  send(MailKind::joined);
  control_block_.signal(control_block_.local_rank());
  status_.submitted.write(operation->name, operation->submitted, set_.id);
  return operation;
}

bool Operations::flush_mail() {
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

void Operations::take(const Decision& decision, std::span<const LastArrival> last,
                      std::vector<std::shared_ptr<Operation>>& decided, bool complete) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::transport,
                fmt::format("negotiation: rank {} is to run {}, which it has not submitted",
                            set_.rank(), what),
                set_.rank());
  };
  const auto take = [&](std::shared_ptr<Operation> operation, Duration time,
                        const LastArrival& last_arrival = {}) {
    operation->decided = true;
    operation->decided_at = time;
    set_.record.decided(operation->record, ++decided_, time);
    const bool is_alone = last_arrival.late == LastArrival::kAlone;
    set_.trace.negotiated(operation->name, operation->submitted, operation->decided_at,
                          is_alone ? -1 : last_arrival.rank, last_arrival.late);
    decided.push_back(std::move(operation));
  };
  const LockGuard table(table_lock_);
  const Duration time = now();
  for (const Id id : decision.retired) {
    if (const auto operation = table_.retire(id)) report(*operation);
  }
  for (const Assigned& assigned : decision.assigned) {
    auto operation = table_.assign(assigned.name, assigned.id);
    if (!operation && joined_.load() && assigned.signature) {
      table_.learn(assigned.name, assigned.id, *assigned.signature);
      operation = make_proxy(assigned.id, *assigned.signature);
    }
    if (!operation) refuse(in_quotes(assigned.name));
    operation->locations = assigned.locations;
    take(std::move(operation), time);
  }
  for (std::size_t i = 0; i < decision.run.size(); ++i) {
    const Id id = decision.run[i];
    auto operation = table_.take_waiting(id);
    if (operation) {
      operation->locations.clear();
      for (int r = 0; r < set_.local_size && !complete; ++r) {
        operation->locations.push_back(control_block_.location(id, r));
      }
    } else {
      const Signature* const known = joined_.load() ? table_.signature_of(id) : nullptr;
      if (!known) refuse(fmt::format("id {}", id));
      // No rank of this node has submitted it.
      operation = make_proxy(id, *known);
      table_.set_waiting(id, nullptr);
      operation->locations.resize(static_cast<std::size_t>(set_.local_size), kNowhere);
    }
    operation->repeats = std::ranges::find(decision.resized, id) == decision.resized.end();
    take(std::move(operation), time, i < last.size() ? last[i] : LastArrival{});
  }
  if (!decided.empty()) ++statistics_.batches;
  undecided_.fetch_sub(static_cast<int>(decided.size()));
}

std::shared_ptr<Operation> Operations::take_undecided(const std::string& name) {
  const LockGuard table(table_lock_);
  auto operation = table_.take_undecided(name);
  if (operation) undecided_.fetch_sub(1);
  return operation;
}

void Operations::fail(const Failed& failed) {
  const auto operation = take_undecided(failed.name);
  if (!operation) return;
  set_.trace.negotiated(operation->name, operation->submitted, now());
  set_.trace.marked(operation->name, "mismatch");
  finish(operation, Error(ErrorCode::mismatch, failed.text, -1, failed.name));
}

std::shared_ptr<Operation> Operations::make_proxy(Id id, const Signature& signature) {
  auto operation = std::make_shared<Operation>();
  operation->signature = signature;
  operation->memory.contribute_nothing(signature.bytes());
  operation->id = id;
  undecided_.fetch_add(1);
  return operation;
}

void Operations::end_join(int last_joined) {
  control_block_.set_joined(false);
  joined_.store(false);
  const auto operation = take_undecided(std::string(kJoinName));
  if (!operation) return;
  operation->number = last_joined;
  finish(operation, std::nullopt);
}

void Operations::finish(const std::shared_ptr<Operation>& operation, std::optional<Error> error,
                        Duration time) {
  bool is_detached = false;
  {
    const LockGuard table(table_lock_);
    if (operation->finished()) return;
    if (!error) {
      ++statistics_.operations;
      statistics_.bytes += operation->memory.bytes();
      statistics_.in_flight += time - operation->decided_at;
    }
    set_.record.finished(operation->record, error ? RecordOutcome::failed : RecordOutcome::done,
                         time);
    // Before the state is set: the caller's reference is the last, dropped while its stream lives.
    operation->result.reset();
    operation->error = std::move(error);
    operation->state.store(operation->error ? Operation::kFailed : Operation::kDone,
                           std::memory_order_release);
    is_detached = operation->is_detached;
  }
  operation->state.notify_all();
  if (is_detached) release(*operation);
}

void Operations::collect(Operation& operation) {
  const bool done = operation.state.load(std::memory_order_acquire) == Operation::kDone;
  try {
    if (done) operation.memory.copy_out(set_);
  } catch (...) {
    release(operation);
    throw;
  }
  release(operation);
  if (!done) throw detached(*operation.error);
}

void Operations::release(Operation& operation) {
  if (aborted_.load()) {
    operation.memory.leave_in_place();
  } else {
    operation.memory.release(set_);
  }
  const LockGuard table(table_lock_);
  table_.leave(operation);
}

void Operations::detach(const std::shared_ptr<Operation>& operation) {
  {
    const LockGuard table(table_lock_);
    if (!operation->finished()) {
      operation->is_detached = true;
      return;
    }
  }
  release(*operation);
}

void Operations::fail_undecided(const Error& error) {
  std::vector<std::shared_ptr<Operation>> open;
  {
    const LockGuard table(table_lock_);
    if (!closed_) closed_ = detached(error);
    open = table_.unfinished();
    std::erase_if(
        open, [](const auto& operation) { return operation->decided || !operation->announced(); });
  }
  for (const auto& operation : open) {
    undecided_.fetch_sub(1);
    finish(operation, Error(error.code(), error.what(), error.rank(), operation->name));
  }
}

void Operations::fail_all(const Error& error) {
  std::vector<std::shared_ptr<Operation>> open;
  {
    const LockGuard table(table_lock_);
    closed_ = detached(error);
    open = table_.unfinished();
    for (const auto& operation : open) {
      if (operation->result) retained_on_failure_.push_back(operation->result);
    }
  }
  for (const auto& operation : open) finish(operation, detached(error));
}

std::vector<std::shared_ptr<Operation>> Operations::uncollected() const {
  const LockGuard table(table_lock_);
  std::vector<std::shared_ptr<Operation>> open = table_.uncollected();
  std::erase_if(open, [](const auto& operation) { return operation->is_detached; });
  return open;
}

namespace {

/// Longest result that is expected to be even: where it is not, the memory is wasted.
constexpr std::size_t kLongestExpected = std::size_t{64} << 20;

/// Copies all of [0, bytes) but `left_out`.
void copy_around(const SetMember& set, Range left_out, std::byte* target, const std::byte* source,
                 std::size_t bytes, bool past_caches) {
  const auto copy = [&](std::size_t begin, std::size_t length) {
    if (past_caches) {
      set.memory().copy_past_caches(target + begin, source + begin, length);
    } else {
      std::memcpy(target + begin, source + begin, length);
    }
  };
  copy(0, left_out.begin);
  copy(left_out.end(), bytes - left_out.end());
}

MemoryWay way_of(const MemoryFacts& facts) {
  if (facts.runs_on_device) return MemoryWay::device;
  if (facts.bytes == 0) return MemoryWay::nothing;
  if (facts.is_on_device) return MemoryWay::through_host;
  if (facts.in_windows) return MemoryWay::windows;
  if (facts.caller == Caller::goes_on) {
    // As long as there is a handle, parts that peers do not touch are not copied.
    if (facts.kind == OperationKind::allreduce && facts.own.bytes > 0) return MemoryWay::around;
    return facts.has_place ? MemoryWay::result : MemoryWay::block;
  }
  if (facts.own.bytes == facts.bytes) return MemoryWay::in_place;
  if (facts.single_node) {
    if (may_push(facts.kind)) return MemoryWay::in_place;
    if (!facts.brings_data && facts.own.bytes == 0) return MemoryWay::fetched;
    if (facts.kind == OperationKind::broadcast && facts.brings_data && is_followed(facts.bytes)) {
      return MemoryWay::published;
    }
  }
  return is_exchange(facts.kind) || facts.own.bytes > 0 ? MemoryWay::around : MemoryWay::block;
}

/// In one node: where peers can write this rank's result, if all of them give as much.
std::optional<NodeMemory::MemoryBlock> expect_result(const SetMember& set,
                                                     const Signature& signature,
                                                     const Request& request) {
  const auto ranks = static_cast<std::size_t>(set.local_size);
  const OperationKind kind = signature.kind;
  if (!set.single_node() || ranks == 1 || !may_push(kind) || !is_even(request.rows)) {
    return std::nullopt;
  }
  const std::size_t copies = kind == OperationKind::allgather ? ranks : 1;
  if (request.bytes == 0 || request.bytes > kLongestExpected / copies) return std::nullopt;
  std::byte* const result = request.result->expect(copies * request.bytes);
  if (!result) return std::nullopt;
  return NodeMemory::MemoryBlock{result, *set.memory().find(result, request.bytes)};
}

}  // namespace

TensorBlocks::~TensorBlocks() {
  for (const NodeMemory::MemoryBlock& block : small_) memory_.release(block.data);
}

NodeMemory::MemoryBlock TensorBlocks::take(std::size_t bytes) {
  NodeMemory::MemoryBlock block;
  if (bytes <= kSmall) {
    const LockGuard lock(mutex_);
    if (!small_.empty()) {
      block = small_.back();
      small_.pop_back();
    }
  }
  if (!block.data) block = memory_.allocate(std::max(bytes, kSmall));
  in_flight_.fetch_add(bytes, std::memory_order_relaxed);
  return block;
}

void TensorBlocks::put_back(const NodeMemory::MemoryBlock& block, std::size_t bytes) {
  in_flight_.fetch_sub(bytes, std::memory_order_relaxed);
  if (bytes > kSmall) return memory_.release(block.data);
  const LockGuard lock(mutex_);
  small_.push_back(block);
}

MemoryPlan plan_memory(const MemoryFacts& facts) {
  MemoryPlan plan{.way = way_of(facts)};
  if (plan.way == MemoryWay::in_place) plan.own = {0, facts.bytes};
  if (plan.way == MemoryWay::around) plan.own = facts.own;
  const bool has_block = plan.way == MemoryWay::around || plan.way == MemoryWay::block ||
                         plan.way == MemoryWay::through_host;
  const bool changes =
      !is_exchange(facts.kind) && (facts.kind != OperationKind::broadcast || !facts.brings_data);
  plan.copies_in = has_block && facts.brings_data;
  plan.copies_out = has_block && changes;
  return plan;
}

Range own_part(const SetMember& set, const Signature& signature, std::size_t bytes,
               std::span<const std::int64_t> rows) {
  if (set.local_size == 1) return {0, bytes};
  if (is_exchange(signature.kind)) {
    if (signature.kind == OperationKind::reduce_scatter && !set.single_node()) return {};
    return rows_to_rank(signature.kind, rows, set.topology().size(),
                        set.topology().index_of(set.rank()), signature.row_bytes());
  }
  if (!set.single_node() || bytes < kAloneBytes) return {};
  if (set.parts.memory_nodes.sum_apart(signature, bytes)) return {};
  const Range slice = slice_range({0, align_up(bytes)}, set.local_rank, set.local_size);
  if (slice.bytes == 0) return {};
  return {slice.begin, std::min(slice.bytes, bytes - slice.begin)};
}

void TensorMemory::copy_in(const SetMember& set, const Signature& signature, const Request& request,
                           Caller caller) {
  stream_ = request.stream;
  output_stream_ = request.output_stream;
  if (request.location) return set_location(*request.location);
  if (!is_exchange(signature.kind)) {
    bytes_ = signature.bytes();
    return take(set, signature, request, caller, std::nullopt);
  }
  bytes_ = request.bytes;
  const auto result =
      set.on_device(signature) ? std::nullopt : expect_result(set, signature, request);
  take(set, signature, request, caller, result);
  const NodeMemory::MemoryBlock header =
      set.memory().allocate(ExchangeHeader::bytes_for(request.rows.size()));
  header_ = header.data;
  ExchangeHeader::write(header_, location_, result ? result->location : kNowhere, bytes_,
                        request.rows);
  location_ = header.location;
}

void TensorMemory::take(const SetMember& set, const Signature& signature, const Request& request,
                        Caller caller, const std::optional<NodeMemory::MemoryBlock>& result) {
  const bool exchanges = is_exchange(signature.kind);
  MemoryFacts facts{.kind = signature.kind,
                    .bytes = bytes_,
                    .caller = caller,
                    .brings_data = set.brings_data(signature),
                    .runs_on_device = set.on_device(signature),
                    .is_on_device = signature.device != DeviceKind::cpu,
                    .has_place = result && signature.kind == OperationKind::allgather,
                    .single_node = set.single_node()};
  std::optional<Location> found;
  if (bytes_ > 0 && !facts.runs_on_device && !facts.is_on_device) {
    found = set.memory().find(request.data, bytes_);
    facts.in_windows = found.has_value();
    const bool may_stay = caller == Caller::waits || signature.kind == OperationKind::allreduce;
    if (may_stay && !found) {
      facts.own = own_part(set, signature, bytes_, request.rows);
    }
  }
  const MemoryPlan plan = plan_memory(facts);
  data_ = request.data;
  switch (plan.way) {
    case MemoryWay::nothing:
      data_ = nullptr;
      break;
    case MemoryWay::windows:
      location_ = *found;
      break;
    case MemoryWay::result: {
      const std::size_t offset = static_cast<std::size_t>(set.local_rank) * bytes_;
      data_ = result->data + offset;
      location_ = result->location;
      location_.offset += offset;
      set.memory().copy_past_caches(data_, request.data, bytes_);
      break;
    }
    case MemoryWay::in_place:
    case MemoryWay::fetched:
      if (set.local_size > 1) location_ = kNowhere;
      break;
    case MemoryWay::around:
    case MemoryWay::block:
    case MemoryWay::published:
    case MemoryWay::through_host:
      block_ = set.blocks.take(bytes_);
      location_ = block_.location;
      break;
    case MemoryWay::device: {
      const std::byte* const in_place = set.id == kWorld && !exchanges ? data_ : nullptr;
      BegunOnDevice begun = set.engine.device->begin(in_place, stream_, output_stream_);
      work_ = std::move(begun.work);
      location_ = begun.place;
      break;
    }
  }
  plan_ = plan;
  if (!plan_.copies_in) return;
  if (plan_.way == MemoryWay::through_host) {
    set.engine.device_heap->to_host(block_.data, data_, bytes_, stream_);
  } else {
    const bool peers_write = signature.kind == OperationKind::allreduce;
    copy_around(set, plan_.own, block_.data, data_, bytes_,
                !peers_write || set.blocks.exceed_caches());
  }
}

void TensorMemory::copy_out(const SetMember& set) {
  if (work_) {
    work_->wait_done(stream_);
    if (output_stream_) work_->wait_done(*output_stream_);
  }
  if (!plan_.copies_out) return;
  if (plan_.way == MemoryWay::through_host) {
    set.engine.device_heap->to_device(data_, block_.data, bytes_, stream_);
  } else {
    copy_around(set, plan_.own, data_, block_.data, bytes_, set.blocks.exceed_caches());
  }
}

void TensorMemory::release(const SetMember& set) {
  if (block_.data) set.blocks.put_back(std::exchange(block_, {}), bytes_);
  if (header_) set.memory().release(std::exchange(header_, nullptr));
}

bool TensorMemory::cancel() {
  if (plan_.way != MemoryWay::around) return true;
  if (in_messages_) return false;
  std::memcpy(block_.data + plan_.own.begin, data_ + plan_.own.begin, plan_.own.bytes);
  plan_ = {.way = MemoryWay::block};
  return true;
}

std::byte* TensorMemory::own_data() const {
  switch (plan_.way) {
    case MemoryWay::block:
    case MemoryWay::published:
    case MemoryWay::through_host:
      return block_.data;
    case MemoryWay::fetched:
      return nullptr;
    default:
      return data_;
  }
}

}  // namespace hora::internal
