/// The names that a leader knows: those that have ids, and those that are reported because they
/// have none, or have it with another signature.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/control_block/tensor_id.h"
#include "core/messages/messages.h"
#include "core/negotiation/arrivals.h"
#include "core/negotiation/joined_ranks.h"
#include "core/negotiation/signature.h"
#include "core/negotiation/topology.h"

namespace hora::internal {

/// What a leader must ask about ids on its own node's control block.
struct IdUse {
  /// NodeControlBlock::retire.
  std::function<bool(Id, bool only_idle)> retire;
  /// NodeControlBlock::last_run.
  std::function<std::uint64_t(Id)> last_run;
  /// NodeControlBlock::ready_ranks.
  std::function<LocalRanks(Id)> ready_ranks;
  /// What is to be said of a local rank that lacks what others wait for; may be null.
  std::function<std::string(int local_rank)> remark = {};
};

/// What an id stands for.
struct KnownId {
  std::string name;
  Signature signature;
  // Until the id's run is decided:
  bool node_ready = false;         ///< every local rank has announced it
  std::set<int> ready_below = {};  ///< children
  LastArrival last = {};           ///< of those that are ready
  bool resized = false;            ///< see Up::resized
  bool forwarded = false;          ///< sent to the parent; by the root: its run is decided

  bool anyone_ready() const { return node_ready || !ready_below.empty(); }
  /// All ranks of the subtree are ready or have joined.
  bool complete(const JoinedRanks& joined, const TreePosition& position) const;
  /// All ranks of the subtree are ready.
  bool all_came(const TreePosition& position) const {
    return node_ready && ready_below.size() == position.children().size();
  }
};

/// Those of a leader's subtree that are ready for an id while others report its name.
struct ReadyById {
  Id id;
  LocalRanks local;
  const KnownId& known;  ///< of the table
};

/// Ids assigned and not yet given up. Pure. Thread rule: one thread at a time.
class IdTable {
 public:
  /// The name's id where it has one.
  std::optional<Id> id_of(const std::string& name) const;
  /// Null for an id that no name has.
  KnownId* find(Id id);
  const KnownId* find(Id id) const;
  /// Of an id that a name has.
  const KnownId& at(Id id) const { return ids_.at(id); }
  /// The ranks that are ready for an id of a name.
  ReadyById ready_by(Id id, const IdUse& use, const TreePosition& position) const;
  /// Ids for which a node or a child is ready.
  std::vector<Id> ready_ids() const;

  void assign(Id id, const std::string& name, Signature signature);
  /// The name that had it; nothing where none had.
  std::optional<std::string> give_up(Id id);
  /// No rank is ready for the id any more: it has run, or failed.
  void clear_ready(Id id);

 private:
  std::unordered_map<std::string, Id> names_;
  std::unordered_map<Id, KnownId> ids_;
};

/// What a leader's subtree has reported of one name. Where the name has an id, ready bits of that
/// id count as reports of the id's signature, until the id is given up.
struct ReportedName {
  std::vector<std::optional<Signature>> local;  ///< by local rank
  std::vector<Location> locations;              ///< likewise
  std::map<int, Report> below = {};             ///< by child
  std::optional<Id> id = std::nullopt;          ///< the name's id where it has one
  std::optional<Report> merged = std::nullopt;  ///< what went up, or was decided by the root

  /// Local ranks that have reported it.
  LocalRanks local_ranks() const;
  /// Every rank of the subtree has reported it, is ready for its id (`by_id`: of a name that has
  /// one) or has joined.
  bool complete(const ReadyById* by_id, const JoinedRanks& joined,
                const TreePosition& position) const;
};

/// All signatures of a name that is complete(), with their ranks; a rank that has neither reported
/// it nor is ready for its id has joined.
Report merged_report(const std::string& name, const ReportedName& reported, const ReadyById* by_id,
                     const TreePosition& position);

/// Reported names that are not yet decided. Pure. Thread rule: one thread at a time.
class NameReports {
 public:
  /// Null for a name that no rank has reported.
  ReportedName* find(const std::string& name);
  const ReportedName* find(const std::string& name) const;
  /// A name that has none, with its id where it has one.
  ReportedName& add(const std::string& name, std::size_t local_size, std::optional<Id> id);
  void erase(const std::string& name) { names_.erase(name); }
  /// Erases it, too.
  std::optional<ReportedName> take(const std::string& name);
  /// The name's id is given up: ranks that were ready for it report by name once they read this, so
  /// whatever counted them as ready is void.
  void uncount(const std::string& name, Id id);

  std::vector<std::string> names() const;
  /// Those that have ids.
  std::vector<std::string> names_with_ids() const;

 private:
  std::map<std::string, ReportedName> names_;
};

/// A name may be in both: some ranks report it, others are ready for its id. Pure. Thread rule: one
/// thread at a time.
struct KnownNames {
  IdTable ids;
  NameReports reports;

  /// Does nothing for an id that no name has.
  void give_up(Id id);
  /// Why this cannot be the next decision, given those before; empty where it can.
  std::string problem_in(const Decision& decision) const;
};

}  // namespace hora::internal
