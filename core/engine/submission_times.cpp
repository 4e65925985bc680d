#include <algorithm>
#include <utility>

#include "core/engine/deadlines.h"

namespace hora::internal {

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
  const bool warns = rules_.stall_warning.count() > 0;
  submission.overdue_at = warns ? time + rules_.stall_warning : Duration::max();
  if (submission.overdue_at < next_.overdue()) next_.set_overdue(submission.overdue_at);
  submission.limit = TimeLimit::of(timeout, rules_.timeout);
  submission.out_of_time_at = submission.limit.end(time, rules_.report_order);
  submission.notice_at = submission.limit.notice(time);
  const Duration next = next_of(submission);
  if (next >= next_.timeout()) return false;
  next_.set_timeout(next);
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
  next_.set_timeout(next);
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
  if (time < next_.overdue()) return {};
  // What is overdue soon is reported now, too: one message then names them all.
  const Duration soon = time + std::min<Duration>(kOverdueTick, rules_.stall_warning / 2);
  std::vector<std::shared_ptr<Submission>> waiting;
  Duration first = Duration::max();
  for (auto& submission : table_.unfinished()) {
    if (submission->decided || !submission->announced()) continue;
    first = std::min(first, submission->overdue_at);
    if (submission->overdue_at <= soon) waiting.push_back(std::move(submission));
  }
  const bool is_overdue = first <= time;
  next_.set_overdue(is_overdue ? soon : first);
  if (!is_overdue) return {};
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
