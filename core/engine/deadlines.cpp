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

Duration next_of(const Submission& submission) {
  return std::min(submission.notice_at, submission.out_of_time_at);
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

bool root_is_silent(const Submission& submission, Duration time) {
  return submission.reported_overdue != Duration{} &&
         submission.answered < submission.reported_overdue &&
         time - submission.reported_overdue >= kAnswerTime;
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

bool Deadlines::begin(Submission& submission, std::chrono::milliseconds timeout, Duration time) {
  submission.submitted = time;
  const bool warns = stall_warning_.count() > 0;
  submission.overdue_at = warns ? time + stall_warning_ : Duration::max();
  if (submission.overdue_at.count() < next_.overdue.load())
    next_.overdue.store(submission.overdue_at.count());
  submission.limit = TimeLimit::of(timeout, timeout_);
  submission.out_of_time_at = submission.limit.end(time, report_order_);
  submission.notice_at = submission.limit.notice(time);
  const Duration next = next_of(submission);
  if (next.count() >= next_.timeout.load(kWakeOrder)) return false;
  next_.timeout.store(next.count(), kWakeOrder);
  return next - time <= kOverdueTick;
}

Deadlines::Due Deadlines::take_due(Duration time) {
  Due due;
  Duration next = Duration::max();
  for (auto& submission : table_.unfinished()) {
    // What is under way on a device is bounded there.
    if (submission->decided && memory_.on_device(submission->signature)) continue;
    if (submission->notice_at <= time) {
      submission->notice_at = Duration::max();
      if (!submission->decided) due.expiring.push_back(submission);
    }
    next = std::min(next, next_of(*submission));
    if (submission->out_of_time_at > time) continue;
    if (!due.timed_out || submission->out_of_time_at < due.timed_out->out_of_time_at) {
      due.timed_out = std::move(submission);
    }
  }
  next_.timeout.store(next.count(), kWakeOrder);
  return due;
}

std::shared_ptr<Submission> Deadlines::stalled(Duration time) const {
  std::shared_ptr<Submission> longest;
  for (auto& submission : table_.unfinished()) {
    if (!submission->announced()) continue;
    const bool is_stalled = submission->decided ? time - submission->decided_at >= stall_warning_ &&
                                                      !memory_.on_device(submission->signature)
                                                : root_is_silent(*submission, time);
    if (!is_stalled) continue;
    if (!longest || submission->submitted < longest->submitted) longest = std::move(submission);
  }
  return longest;
}

bool Deadlines::waits_since(Duration time) const {
  const auto waiting = table_.unfinished();
  return std::ranges::any_of(waiting, [&](const auto& submission) {
    return submission->announced() && submission->submitted <= time;
  });
}

std::vector<std::shared_ptr<Submission>> Deadlines::take_overdue(Duration time) {
  if (time.count() < next_.overdue.load()) return {};
  // What is overdue soon is reported now, too: one message then names them all.
  const Duration soon = time + std::min<Duration>(kOverdueTick, stall_warning_ / 2);
  std::vector<std::shared_ptr<Submission>> waiting;
  Duration first = Duration::max();
  for (auto& submission : table_.unfinished()) {
    if (submission->decided || !submission->announced()) continue;
    first = std::min(first, submission->overdue_at);
    if (submission->overdue_at <= soon) waiting.push_back(std::move(submission));
  }
  const bool is_overdue = first <= time;
  next_.overdue.store((is_overdue ? soon : first).count());
  if (!is_overdue) return {};
  for (const auto& submission : waiting) {
    submission->overdue_at = time + std::max(stall_warning_, time - submission->submitted);
    if (submission->answered >= submission->reported_overdue) submission->reported_overdue = time;
  }
  return waiting;
}

void Deadlines::note_answer(const std::string& name, Duration time) {
  if (const auto submission = table_.undecided(name)) submission->answered = time;
}

}  // namespace hora::internal
