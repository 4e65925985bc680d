/// Watches what waits too long on this rank: which ranks it waits for and what is known of them,
/// and which rank of a node says so; and counts who comes last.
#pragma once

#include <hora/error.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/process.h"
#include "core/control_block/node_control_block.h"
#include "core/engine/interfaces.h"
#include "core/engine/operations.h"
#include "core/flight/flight_recorder.h"
#include "core/messages/messages.h"
#include "core/negotiation/arrivals.h"

namespace hora::internal {

/// "rank 3 (host b, pid 4711) is stopped (SIGSTOP), and has last submitted tensor "f", 12.0 s ago".
/// Tells apart a rank that is stopped, gone, in its own code, and in hora. Pure.
std::string rank_state_text(const ProcessIdentity& process, ProcessState state,
                            const std::optional<SharedNote::Note>& submitted,
                            const std::optional<SharedNote::Note>& waits_for, Duration now);

/// A collective that waits for ranks, or has run out of time, and what is known of it. Ranks are
/// world ranks, ascending.
struct WaitReport {
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
};

/// A warning of a collective that is not complete after `waited`, and may be some time. Pure.
std::string stall_text(const WaitReport& report, Duration waited);

/// Two or three sentences: the tensor, the time, whom it waits for, and what to do. Pure.
std::string timeout_text(const WaitReport& report);

/// Watches the waits of one set on this rank. While the root answers it logs for all ranks what
/// they have not all submitted (OverdueNames). What has been decided and does not end, join() and
/// shutdown(), and what waits while the root is silent, the lowest local rank that waits logs for
/// its node, at growing intervals: from the control block it sees the other ranks of its node even
/// if they are stopped. Thread rule: the thread that holds the engine's progress lock, but for
/// state_of(): any thread.
class Waits {
 public:
  /// Both outlive it.
  Waits(const SetParts& parts, const EngineParts& engine, ProcessSet id)
      : parts_(parts), engine_(engine), id_(id), warning_(engine.settings.stall_warning) {}

  /// This rank's knowledge of an operation. `unit`: in which it is under way, 0: none. `known`: a
  /// leader's of its name.
  WaitReport report_on(const Operation& operation, std::uint64_t unit,
                       const std::optional<Presence>& known) const;
  /// The root's report on one that has run out of time on some rank.
  WaitReport report_on(const Expired& expired) const;

  /// A stalled operation: its age and warning text.
  struct Stall {
    Duration age;
    std::function<std::string()> text;
  };
  /// The time to look again has come.
  bool is_due(Duration time) const { return warning_.count() > 0 && time >= next_look_; }
  /// The text that this rank of its node is to log, if any.
  std::optional<std::string> look(Duration time, const std::optional<Stall>& stall);
  /// A join in which nothing has happened for this long: which ranks of this node have not called
  /// it; none where all have.
  std::optional<Stall> join_stall(Duration age) const;

  /// A decision says that these world ranks have called shutdown().
  void note_departed(const std::vector<int>& ranks) {
    departed_.insert(ranks.begin(), ranks.end());
  }
  /// Where this rank waits in shutdown() and is the one to say so: it has waited for
  /// HORA_STALL_WARNING, and a rank that has not called it is of its node, or its node has the
  /// lowest rank that has.
  std::optional<Stall> departure_stall(Duration time) const;
  /// A process of this host that has been stopped for HORA_TIMEOUT while this rank waits in
  /// shutdown(). A little later than that: horarun, which sees all hosts, ends the job first.
  std::optional<Error> stopped_rank(Duration time);

  bool is_due_for_processes(Duration time) const {
    return !engine_.processes.empty() && time >= next_check_;
  }
  /// Where something waits (`any_waits`): a rank of this node whose process has ended.
  std::optional<Error> gone_rank(Duration time, bool any_waits);

  /// Describes a rank of this node, by its local rank in the set.
  std::string state_of(int local_rank) const;

 private:
  ProcessIdentity identity_of(int rank) const;
  const std::vector<int>& ranks_of_node() const;
  bool is_of_node(int rank) const;
  bool is_of_host(int rank) const { return identity_of(rank).host == own_identity().host; }
  ProcessIdentity own_identity() const { return identity_of(engine_.rank); }
  Presence presence_of(const Operation& operation) const;
  void note_absent(WaitReport& report, const Presence& presence) const;
  WaitReport known_of(const std::string& name, const TimeLimit& limit, int rank) const;
  void add_remarks(WaitReport& report, const std::vector<int>& ranks) const;
  Duration departed_at() const;
  std::vector<int> not_departed() const;
  Stall call_stall(std::string_view call, Duration waited, std::vector<int> missing) const;

  const SetParts& parts_;
  const EngineParts& engine_;
  const ProcessSet id_;
  const Duration warning_;
  Duration next_look_{};
  Duration waits_since_{};  ///< the first look that found something; zero: none has
  Duration next_check_{};   ///< of processes
  std::set<int> departed_;
  Duration last_stop_look_{};
  std::map<int, Duration> stopped_for_;  ///< as seen in looks, by rank
};

/// Counts, on the root of a set, the ranks that come last, warns of a slow one, and leaves that
/// where `horarun --watch` finds it. Thread rule: the thread that holds the engine's progress lock.
class Stragglers {
 public:
  /// Both outlive it.
  Stragglers(const SetParts& set, const EngineParts& engine, ProcessSet id);

  /// A decision that is about to be carried out: its names have ids from here on.
  void note_names(const Decision& decision);
  /// An id is decided.
  void count(Id id, const LastArrival& last);
  /// Who came last when this id was decided last; of several nodes, where no other rank knows it.
  LastArrival last_of(Id id) const { return last_of_[static_cast<std::size_t>(slot_of(id))]; }

  /// The final report's table.
  std::string text() const;

 private:
  const EngineParts& engine_;
  ArrivalLedger ledger_;
  std::vector<LastArrival> last_of_;  ///< by slot
  RecordWriter record_;               ///< off where nothing is to be left there
  LastArrival::Time recorded_at_{};
  std::vector<RankArrivals> rows_;  ///< used again: count() does not allocate
};

}  // namespace hora::internal
