/// How long a collective may take on this rank, and which of its operations have run out of time,
/// are overdue, or do not go on.
#pragma once

#include <hora/collectives.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "core/control_block/atomic.h"
#include "core/engine/interfaces.h"
#include "core/negotiation/overdue_names.h"

namespace hora::internal {

class NameTable;
struct SetMemory;
struct Operation;

/// From the operation to the end. Pure.
struct TimeLimit {
  std::chrono::milliseconds length{0};  ///< 0: none
  bool is_of_call = false;              ///< else that of HORA_TIMEOUT

  /// `of_call`: 0: HORA_TIMEOUT holds; milliseconds::max(): no limit.
  static TimeLimit of(std::chrono::milliseconds of_call, std::chrono::milliseconds setting);
  /// The end of what was submitted at this time; Duration::max() where there is none. The first
  /// rank to notice reports it for the whole job: ranks that know less, which are later in
  /// `report_order`, give those before them a little time.
  Duration end(Duration submitted, int report_order = 0) const;
  /// When that end is reported to the root, so that it knows of all ranks by then; Duration::max()
  /// where there is none.
  Duration notice(Duration submitted) const;
  /// The report to it then.
  Expiry expiry(Duration submitted, Duration now) const;
};

/// The order in which ranks report the end of a limit (TimeLimit::end): 0 on the rank that decides,
/// 1 on other leaders, 2 on the ranks of their nodes.
int report_order(bool is_root, bool is_leader);

/// The root has not answered that it is overdue.
bool root_is_silent(const Operation& operation, Duration time);

/// When something is due next; max(): nothing is. May be earlier than it is, never later.
/// Thread rule: written under the table lock, read by any thread.
struct NextTimes {
  std::atomic<Duration::rep> timeout{Duration::max().count()};  ///< in kWakeOrder
  std::atomic<Duration::rep> overdue{Duration::max().count()};
};

/// The deadlines of one rank's operations to one process set. Thread rule: guarded by the table
/// lock of Operations.
class Deadlines {
 public:
  /// `table`, `memory`, `next` outlive it.
  Deadlines(const SetParts& parts, const EngineParts& engine, const NameTable& table,
            const SetMemory& memory, NextTimes& next);

  /// It is submitted now; `timeout`: of its call. True where a thread that sleeps would notice its
  /// end too late: it looks again within a tick.
  bool begin(Operation& operation, std::chrono::milliseconds timeout, Duration time);
  struct Due {
    std::shared_ptr<Operation> timed_out;              ///< the first one that is, or null
    std::vector<std::shared_ptr<Operation>> expiring;  ///< wait for others; reported once each
  };
  /// Returns what has run out of time by now, and what will soon.
  Due take_due(Duration time);
  /// The one that waits longest of those that a rank must log itself: decided and under way on the
  /// host for longer than HORA_STALL_WARNING, or overdue while the root is silent; or null.
  std::shared_ptr<Operation> stalled(Duration time) const;
  /// Something has waited for other ranks for this long.
  bool waits_since(Duration time) const;
  /// Returns what is to be reported as overdue now; again at growing intervals.
  std::vector<std::shared_ptr<Operation>> take_overdue(Duration time);
  /// The root asks all ranks about this name.
  void note_answer(const std::string& name, Duration time);

 private:
  const Duration stall_warning_;  ///< zero: nothing is overdue
  const std::chrono::milliseconds timeout_;
  const int report_order_;
  const NameTable& table_;
  const SetMemory& memory_;
  NextTimes& next_;
};

}  // namespace hora::internal
