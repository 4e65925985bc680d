#include "core/engine/deadlines.h"

#include <algorithm>
#include <utility>

#include "core/engine/operations.h"

namespace hora::internal {
namespace {

/// The share of a limit that a rank that knows more has to notice its end first, and for its
/// message to arrive; and the least and the most that is.
constexpr int kGraceShare = 16;
constexpr auto kLeastGrace = std::chrono::milliseconds(100);
constexpr Duration kLongestGrace = std::chrono::seconds(1);
/// The share of a limit that the root has to ask all leaders, each of which may look only every
/// 100 ms; and the most that is.
constexpr int kNoticeShare = 4;
constexpr Duration kLongestNotice = std::chrono::seconds(2);
static_assert(kLongestNotice <= Expiry::kMostLeft);

/// A root that runs answers a report of an overdue name within this time.
constexpr Duration kAnswerTime = std::chrono::seconds(1);

Duration next_of(const Operation& operation) {
  return std::min(operation.notice_at, operation.out_of_time_at);
}

}  // namespace

TimeLimit TimeLimit::of(std::chrono::milliseconds of_call, std::chrono::milliseconds setting) {
  if (of_call.count() == 0) return {setting, false};
  if (of_call == std::chrono::milliseconds::max()) return {};
  return {of_call, true};
}

Duration TimeLimit::end(Duration submitted, int report_order) const {
  // The least of both in the unit of the longer one: nanoseconds do not hold every length.
  const Duration grace =
      report_order * Duration(std::clamp<std::chrono::milliseconds>(
                         length / kGraceShare, kLeastGrace,
                         std::chrono::ceil<std::chrono::milliseconds>(kLongestGrace)));
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

int report_order(bool is_root, bool is_leader) {
  return is_root ? 0 : is_leader ? 1 : 2;
}

bool root_is_silent(const Operation& operation, Duration time) {
  return operation.reported_overdue != Duration{} &&
         operation.answered < operation.reported_overdue &&
         time - operation.reported_overdue >= kAnswerTime;
}

Deadlines::Deadlines(const SetParts& parts, const EngineParts& engine, const NameTable& table,
                     const SetMemory& memory, NextTimes& next)
    : stall_warning_(engine.settings.stall_warning),
      timeout_(engine.settings.timeout),
      report_order_(
          internal::report_order(parts.topology.ranks_of_node.front().front() == engine.rank,
                                 parts.control_block->local_rank() == 0)),
      table_(table),
      memory_(memory),
      next_(next) {}

bool Deadlines::begin(Operation& operation, std::chrono::milliseconds timeout, Duration time) {
  operation.submitted = time;
  const bool warns = stall_warning_.count() > 0;
  operation.overdue_at = warns ? time + stall_warning_ : Duration::max();
  const Duration::rep overdue = operation.overdue_at.count();
  if (overdue < next_.overdue.load()) next_.overdue.store(overdue);
  operation.limit = TimeLimit::of(timeout, timeout_);
  operation.out_of_time_at = operation.limit.end(time, report_order_);
  operation.notice_at = operation.limit.notice(time);
  const Duration next = next_of(operation);
  if (next.count() >= next_.timeout.load(kWakeOrder)) return false;
  next_.timeout.store(next.count(), kWakeOrder);
  return next - time <= kOverdueTick;
}

Deadlines::Due Deadlines::take_due(Duration time) {
  Due due;
  Duration next = Duration::max();
  for (auto& operation : table_.unfinished()) {
    // What is under way on a device is bounded there.
    if (operation->decided && memory_.on_device(operation->signature)) continue;
    if (operation->notice_at <= time) {
      operation->notice_at = Duration::max();
      if (!operation->decided) due.expiring.push_back(operation);
    }
    next = std::min(next, next_of(*operation));
    if (operation->out_of_time_at > time) continue;
    if (!due.timed_out || operation->out_of_time_at < due.timed_out->out_of_time_at) {
      due.timed_out = std::move(operation);
    }
  }
  next_.timeout.store(next.count(), kWakeOrder);
  return due;
}

std::shared_ptr<Operation> Deadlines::stalled(Duration time) const {
  std::shared_ptr<Operation> longest;
  for (auto& operation : table_.unfinished()) {
    if (!operation->announced()) continue;
    const bool is_stalled = operation->decided ? time - operation->decided_at >= stall_warning_ &&
                                                     !memory_.on_device(operation->signature)
                                               : root_is_silent(*operation, time);
    if (!is_stalled) continue;
    if (!longest || operation->submitted < longest->submitted) longest = std::move(operation);
  }
  return longest;
}

bool Deadlines::waits_since(Duration time) const {
  const auto waiting = table_.unfinished();
  return std::ranges::any_of(waiting, [&](const auto& operation) {
    return operation->announced() && operation->submitted <= time;
  });
}

std::vector<std::shared_ptr<Operation>> Deadlines::take_overdue(Duration time) {
  if (time.count() < next_.overdue.load()) return {};
  // What is overdue soon is reported now, too: one message then names them all.
  const Duration soon = time + std::min<Duration>(kOverdueTick, stall_warning_ / 2);
  std::vector<std::shared_ptr<Operation>> waiting;
  Duration first = Duration::max();
  for (auto& operation : table_.unfinished()) {
    if (operation->decided || !operation->announced()) continue;
    first = std::min(first, operation->overdue_at);
    if (operation->overdue_at <= soon) waiting.push_back(std::move(operation));
  }
  const bool is_overdue = first <= time;
  next_.overdue.store((is_overdue ? soon : first).count());
  if (!is_overdue) return {};
  for (const auto& operation : waiting) {
    operation->overdue_at = time + std::max(stall_warning_, time - operation->submitted);
    if (operation->answered >= operation->reported_overdue) operation->reported_overdue = time;
  }
  return waiting;
}

void Deadlines::note_answer(const std::string& name, Duration time) {
  if (const auto operation = table_.undecided(name)) operation->answered = time;
}

}  // namespace hora::internal
