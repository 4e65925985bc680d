/// How long a collective may take on this rank, and what is said of one that has taken longer.
#pragma once

#include <hora/collectives.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "core/negotiation/overdue_names.h"

namespace hora::internal {

/// From the submission to the end. Pure.
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
  /// What is reported to it then.
  Expiry expiry(Duration submitted, Duration now) const;
};

/// The order in which ranks report the end of a limit (TimeLimit::end): 0 on the rank that decides,
/// 1 on other leaders, 2 on the ranks of their nodes.
int report_order(bool is_root, bool is_leader);

/// What is known of a collective that has run out of time. Ranks are world ranks, ascending.
struct TimedOut {
  std::string name;
  ProcessSet set;
  TimeLimit limit;
  int rank = 0;      ///< that has submitted it
  int root = 0;      ///< the rank that decides, and warns of HORA_STALL_WARNING
  int reporter = 0;  ///< the rank that knows this: the root, or `rank`
  bool decided = false;
  // Where it is not decided:
  std::vector<int> missing = {};  ///< have not submitted it
  std::vector<int> unknown = {};  ///< may have
  // Where it is under way:
  std::vector<int> unfinished = {};  ///< of this rank's node: have not finished it
  bool has_other_nodes = false;
  // In either case:
  std::vector<std::string> remarks = {};  ///< on ranks that it waits for (rank_state_text)
  bool root_is_silent = false;            ///< it has not answered a report
  /// Where the root is silent: since the node has heard from the leader above it.
  std::optional<Duration> unheard = std::nullopt;
};

/// A warning of a collective that is not complete after `waited`, and may be some time.
std::string stall_text(const TimedOut& facts, Duration waited);

/// Two or three sentences: the tensor, the time, whom it waits for, and what to do.
std::string timeout_text(const TimedOut& timed_out);

}  // namespace hora::internal
