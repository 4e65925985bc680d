#include "core/engine/submission_times.h"

#include <algorithm>
#include <utility>

#include "core/control_block/atomic.h"
#include "core/engine/name_table.h"
#include "core/engine/parts.h"
#include "core/engine/submission.h"

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

SubmissionTimes::Rules SubmissionTimes::Rules::of(const SetParts& parts,
                                                  const EngineParts& engine) {
  const bool is_root = parts.topology.ranks_of_node.front().front() == engine.rank;
  return {.stall_warning = engine.settings.stall_warning,
          .timeout = engine.settings.timeout,
          .report_order = internal::report_order(is_root, parts.control_block->local_rank() == 0)};
}

bool SubmissionTimes::begin(Submission& submission, std::chrono::milliseconds timeout,
                            Duration time) {
  submission.submitted = time;
  submission.overdue_at = time + rules_.stall_warning;
  submission.limit = TimeLimit::of(timeout, rules_.timeout);
  submission.out_of_time_at = submission.limit.end(time, rules_.report_order);
  submission.notice_at = submission.limit.notice(time);
  const Duration next = next_of(submission);
  if (next.count() >= next_timeout_.load(kWakeOrder)) return false;
  next_timeout_.store(next.count(), kWakeOrder);
  return next - time <= kOverdueTick;
}

SubmissionTimes::Due SubmissionTimes::take_due(Duration time) {
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
  next_timeout_.store(next.count(), kWakeOrder);
  return due;
}

std::shared_ptr<Submission> SubmissionTimes::stalled(Duration time) const {
  std::shared_ptr<Submission> longest;
  for (auto& submission : table_.unfinished()) {
    if (!submission->announced()) continue;
    const bool is_stalled = submission->decided
                                ? time - submission->decided_at >= rules_.stall_warning &&
                                      !memory_.on_device(submission->signature)
                                : root_is_silent(*submission, time);
    if (!is_stalled) continue;
    if (!longest || submission->submitted < longest->submitted) longest = std::move(submission);
  }
  return longest;
}

bool SubmissionTimes::waits_since(Duration time) const {
  const auto waiting = table_.unfinished();
  return std::ranges::any_of(waiting, [&](const auto& submission) {
    return submission->announced() && submission->submitted <= time;
  });
}

std::vector<std::shared_ptr<Submission>> SubmissionTimes::take_overdue(Duration time) {
  if (rules_.stall_warning.count() == 0) return {};
  std::vector<std::shared_ptr<Submission>> waiting;
  bool any_overdue = false;
  for (auto& submission : table_.unfinished()) {
    // What is overdue soon is reported now, too: one message then names them all.
    const bool soon =
        submission->overdue_at <= time + std::min<Duration>(kOverdueTick, rules_.stall_warning / 2);
    if (submission->decided || !submission->announced() || !soon) continue;
    any_overdue |= submission->overdue_at <= time;
    waiting.push_back(std::move(submission));
  }
  if (!any_overdue) return {};
  for (const auto& submission : waiting) {
    submission->overdue_at = time + std::max(rules_.stall_warning, time - submission->submitted);
    if (submission->answered >= submission->reported_overdue) submission->reported_overdue = time;
  }
  return waiting;
}

void SubmissionTimes::note_answer(const std::string& name, Duration time) {
  if (const auto submission = table_.undecided(name)) submission->answered = time;
}

}  // namespace hora::internal
