/// A node leader's part of the negotiation: events in, messages and decisions out. Pure: no clock,
/// no transport, no shared memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/messages/messages.h"
#include "core/negotiation/diagnosis.h"
#include "core/negotiation/id_clock.h"
#include "core/negotiation/topology.h"

namespace hora {

/// Time since any fixed moment; the caller's clock.
using Duration = std::chrono::nanoseconds;

/// A rank notices at the latest this long after its deadline that a tensor waits for others.
inline constexpr Duration kOverdueTick = std::chrono::milliseconds(500);

/// A decision names tensors of about this many bytes at most; the rest follows in the next ones.
inline constexpr std::size_t kDecisionBytes = std::size_t{1} << 20;

/// What the leader must ask about ids on its own node's control block.
struct IdUse {
  /// NodeControlBlock::retire.
  std::function<bool(Id, bool only_idle)> retire;
  /// NodeControlBlock::last_run.
  std::function<std::uint64_t(Id)> last_run;
  /// NodeControlBlock::ready_mask.
  std::function<std::uint64_t(Id)> ready_mask;
};

/// What the leader wants done, in this order.
struct LeaderOutput {
  std::vector<Id> watch;              ///< wake the leader at each arrival of these ids
  Up up;                              ///< for the parent; empty() where there is nothing to say
  std::vector<Decision> decisions;    ///< for the children (without locations) and this node's log
  std::vector<std::string> warnings;  ///< for the log; the root's alone
};

/// Readiness goes up the tree: an id or a report is sent up once the leader's whole subtree has it;
/// decisions come down. A rank whose signature of a known name has changed reports it while others
/// set the ready bit of the name's id: then the ready bits count as reports of the id's signature,
/// until the id is given up. Thread rule: one thread at a time.
///
/// A rank joins with nothing in flight, so where all ranks of a node have joined no ready bit is
/// set and no report pending there: such a node is present for every id and name without messages.
class Leader {
 public:
  /// `set`: whose negotiation this is. `warning_interval`: between two warnings.
  Leader(const Topology& topology, int node, int id_capacity, IdUse use, ProcessSet set = kWorld,
         Duration warning_interval = {});

  void on_mail(int local_rank, const Mail& mail, Duration now);
  /// Every local rank is ready for `id` (only in jobs of several nodes).
  void on_node_ready(Id id);
  void on_up(int child, const Up& up, Duration now);
  /// Why this cannot be the next decision, given those before; empty where it can.
  std::string problem_in(const Decision& decision) const;
  /// Of a decision in which there is no problem.
  void on_decision(const Decision& decision);
  /// Looks again at the ready bits of watched ids.
  void on_watched_arrivals();

  /// What there is to do now. More may be left as long as there are decisions.
  LeaderOutput take(Duration now);
  /// When take() wants to be called even if nothing happens.
  std::optional<Duration> deadline() const;

 private:
  /// A name that is reported.
  struct Pending {
    std::vector<std::optional<Signature>> local;  ///< by local rank
    std::vector<Location> locations;              ///< likewise
    std::map<int, Report> below;                  ///< by child
    std::optional<Id> id;                         ///< the name's id where it has one
    std::optional<Report> merged;                 ///< what went up, or was decided by the root
  };
  struct Assignment {
    std::string name;
    Signature signature;
    // Until the id's run is decided:
    bool node_ready = false;
    std::set<int> ready_below;  ///< children
    bool forwarded = false;
  };
  struct Overdue {
    std::set<int> ready;
    std::set<int> missing;
    std::map<ProcessSet, std::set<int>> elsewhere;  ///< who waits there under this name
  };

  bool is_root() const { return parent_ < 0; }
  std::uint64_t local_mask() const;
  std::vector<int> ranks_in_subtree(int node) const;
  Pending& pending(const std::string& name);
  std::uint64_t ready_locally(Id id) const;
  void advance_id(Id id);
  // Ranks that have called join are present for every allreduce, with nothing.
  void note_joined(const std::vector<int>& ranks);
  std::uint64_t joined_locally() const;
  bool all_joined_below(int child) const;
  void add_joined(Report& report, const std::vector<int>& ranks) const;
  void conclude_join();
  void advance_name(const std::string& name);
  bool complete(const Pending& pending) const;
  Report merged(const std::string& name, const Pending& pending) const;
  void decide(const Pending& pending);
  void give_up(Id id);
  std::optional<Id> allocate_id();
  bool give_up_for_another(Id id, bool only_idle);
  void assign_waiting();
  void tell_disagreed();
  void nobody_is_ready(Id id);
  void apply(Decision& decision);
  void note_overdue(const std::string& name, Duration now);
  void note_elsewhere(const Elsewhere& elsewhere);
  void ask_waiting();
  Presence presence_of(const std::string& name) const;
  void report_overdue(Duration now);
  OverdueTensor overdue_tensor(Presence presence, const Overdue& overdue) const;

  Topology topology_;
  int node_;
  int parent_;
  std::vector<int> children_;
  IdUse use_;
  ProcessSet set_;
  Duration warning_interval_;

  std::unordered_map<std::string, Id> names_;
  std::unordered_map<Id, Assignment> assignments_;
  std::map<std::string, Pending> pending_;
  std::map<std::string, Overdue> overdue_;
  Duration report_at_{};                     ///< of what is overdue, where anything is
  Duration quiet_until_{};                   ///< the root's: no warning before
  std::deque<std::string> to_ask_;           ///< the root's: overdue names
  IdClock clock_;                            ///< the root's
  std::vector<std::string> waiting_for_id_;  ///< agreed names, in order of agreement
  std::deque<Failed> disagreed_;             ///< not yet in a decision

  LeaderOutput output_;
  Decision next_;  ///< the root's, under construction
  std::uint64_t decision_number_ = 0;
  std::set<int> departed_;
  std::set<int> joined_;  ///< of the leader's subtree
  int last_joined_ = 0;
};

}  // namespace hora
