/// A node leader's part of the negotiation: events in, messages and decisions out. Pure: no clock,
/// no transport, no shared memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/messages/messages.h"
#include "core/negotiation/joined_ranks.h"
#include "core/negotiation/known_names.h"
#include "core/negotiation/overdue_names.h"
#include "core/negotiation/root_decisions.h"
#include "core/negotiation/topology.h"

namespace hora::internal {

/// What the leader wants done, in this order.
struct LeaderOutput {
  std::vector<Id> watch;              ///< wake the leader at each arrival of these ids
  Up up;                              ///< for the parent; empty() where there is nothing to say
  std::vector<Decision> decisions;    ///< for the children (without locations) and this node's log
  std::vector<std::string> warnings;  ///< for the log; the root's alone
  /// The root's: what has run out of time on some rank, which ends the job.
  std::vector<Expired> expired = {};
  /// The root's: ids that run, and who came last; in the order of these arrivals.
  std::vector<std::pair<Id, LastArrival>> arrivals = {};
};

/// Readiness goes up the tree: an id or a report is sent up once the leader's whole subtree has it;
/// decisions come down. A rank whose signature of a known name has changed reports it while others
/// set the ready bit of the name's id: then the ready bits count as reports of the id's signature,
/// until the id is given up. Ranks that have called join are present for every name, with nothing.
/// Thread rule: one thread at a time.
class Leader {
 public:
  /// `set`: whose negotiation this is. `warning_interval`: between two warnings.
  Leader(const Topology& topology, int node, int id_capacity, IdUse use, ProcessSet set = kWorld,
         Duration warning_interval = {});

  void on_mail(int local_rank, const Mail& mail, Duration now);
  /// Every local rank is ready for `id` (only in jobs of several nodes). `resized`: see
  /// Up::resized.
  void on_node_ready(Id id, const LastArrival& last = {}, bool resized = false);
  void on_up(int child, const Up& up, Duration now);
  /// Why this cannot be the next decision, given those before; empty where it can.
  std::string problem_in(const Decision& decision) const { return names_.problem_in(decision); }
  /// Of a decision in which there is no problem.
  void on_decision(const Decision& decision);
  /// Looks again at the ready bits of watched ids.
  void on_watched_arrivals();

  /// What there is to do now. More may be left as long as there are decisions.
  LeaderOutput take(Duration now);
  /// Of what has happened before the last take() nothing is left to be decided.
  bool is_idle() const { return !root_ || root_->empty(); }
  /// When take() wants to be called even if nothing happens.
  std::optional<Duration> deadline() const;
  /// Who has submitted the name, and who has not, as far as this leader knows: of its own node and
  /// of complete subtrees; the root, of a name that is about to run out of time, what it has heard.
  Presence presence_of(const std::string& name) const {
    return expiring_.completed(own_presence_of(name));
  }

 private:
  ReportedName& reported(const std::string& name);
  void note_joined(const std::vector<int>& ranks);
  void note_departed(const std::vector<int>& ranks);
  void note_elsewhere(const Elsewhere& elsewhere);
  void note_presence(const Presence& presence, Duration now);
  void note_expiring(const Expiring& expiring, Duration now);
  void settle(const std::string& name);
  void advance_id(Id id);
  void advance_name(const std::string& name);
  void apply(Decision& decision);
  void adopt(Assigned& assigned);
  void decide();
  void report_overdue(Duration now);
  void answer(const std::vector<std::string>& names);
  Presence own_presence_of(const std::string& name) const;
  OverdueNames::Seen remarking() const;

  TreePosition position_;
  IdUse use_;
  KnownNames names_;
  JoinedRanks joined_;
  OverdueNames overdue_;
  ExpiringNames expiring_;
  std::optional<RootDecisions> root_;  ///< where this leader is the root
  LeaderOutput output_;
};

}  // namespace hora::internal
