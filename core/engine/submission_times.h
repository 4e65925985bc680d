/// What of a rank's submissions has run out of time, is overdue, or does not go on.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "core/control_block/atomic.h"
#include "core/engine/deadlines.h"
#include "core/engine/interfaces.h"
#include "core/engine/operations.h"

namespace hora::internal {

/// A root that runs answers a report of an overdue name within this time.
inline constexpr Duration kAnswerTime = std::chrono::seconds(1);

/// The root has not answered that it is overdue.
bool root_is_silent(const Submission& submission, Duration time);

/// When something is due next; max(): nothing is. May be earlier than it is, never later.
/// Thread rule: written under the table lock, read by any thread.
class NextTimes {
 public:
  Duration timeout() const { return Duration(timeout_.load(kWakeOrder)); }
  Duration overdue() const { return Duration(overdue_.load(std::memory_order_relaxed)); }
  void set_timeout(Duration time) { timeout_.store(time.count(), kWakeOrder); }
  void set_overdue(Duration time) { overdue_.store(time.count(), std::memory_order_relaxed); }

 private:
  std::atomic<Duration::rep> timeout_{Duration::max().count()};
  std::atomic<Duration::rep> overdue_{Duration::max().count()};
};

/// The deadlines of one rank's submissions to one process set. Thread rule: guarded by the table
/// lock of Submissions.
class SubmissionTimes {
 public:
  struct Rules {
    Duration stall_warning;  ///< zero: nothing is overdue
    std::chrono::milliseconds timeout;
    int report_order;  ///< TimeLimit::end

    static Rules of(const SetParts& parts, const EngineParts& engine);
  };

  /// All outlive it.
  SubmissionTimes(const Rules& rules, const NameTable& table, const SetMemory& memory,
                  NextTimes& next)
      : rules_(rules), table_(table), memory_(memory), next_(next) {}

  /// It is submitted now; `timeout`: of its call. True where a thread that sleeps would notice its
  /// end too late: it looks again within a tick.
  bool begin(Submission& submission, std::chrono::milliseconds timeout, Duration time);
  struct Due {
    std::shared_ptr<Submission> timed_out;              ///< the first one that is, or null
    std::vector<std::shared_ptr<Submission>> expiring;  ///< wait for others; reported once each
  };
  /// What has run out of time by now, and what will soon.
  Due take_due(Duration time);
  /// What waits longest of what a rank must log itself: decided and under way on the host for
  /// longer than HORA_STALL_WARNING, or overdue while the root is silent; or null.
  std::shared_ptr<Submission> stalled(Duration time) const;
  /// Something has waited for other ranks for this long.
  bool waits_since(Duration time) const;
  /// What is to be reported as overdue now; again at growing intervals.
  std::vector<std::shared_ptr<Submission>> take_overdue(Duration time);
  /// The root asks all ranks about this name.
  void note_answer(const std::string& name, Duration time);

 private:
  static Duration next_of(const Submission& submission) {
    return std::min(submission.notice_at, submission.out_of_time_at);
  }

  const Rules rules_;
  const NameTable& table_;
  const SetMemory& memory_;
  NextTimes& next_;
};

}  // namespace hora::internal
