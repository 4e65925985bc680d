/// Names that have ids, and who of a leader's subtree is ready for them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/control_block/id.h"
#include "core/negotiation/joined_ranks.h"
#include "core/negotiation/signature.h"
#include "core/negotiation/tree_position.h"

namespace hora {

/// What a leader must ask about ids on its own node's control block.
struct IdUse {
  /// NodeControlBlock::retire.
  std::function<bool(Id, bool only_idle)> retire;
  /// NodeControlBlock::last_run.
  std::function<std::uint64_t(Id)> last_run;
  /// NodeControlBlock::ready_mask.
  std::function<std::uint64_t(Id)> ready_mask;
};

/// What an id stands for.
struct KnownId {
  std::string name;
  Signature signature;
  // Until the id's run is decided:
  bool node_ready = false;         ///< every local rank has announced it
  std::set<int> ready_below = {};  ///< children
  bool forwarded = false;          ///< told to the parent; by the root: its run is decided

  bool anyone_ready() const { return node_ready || !ready_below.empty(); }
  /// Everyone of the subtree is ready or has joined.
  bool complete(const JoinedRanks& joined, const TreePosition& position) const;
  /// Everyone of the subtree is ready.
  bool all_came(const TreePosition& position) const {
    return node_ready && ready_below.size() == position.children().size();
  }
};

/// Those of a leader's subtree that are ready for an id while others report its name.
struct ReadyById {
  Id id;
  std::uint64_t local;   ///< local ranks
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
  /// Who is ready for an id that a name has.
  ReadyById ready_by(Id id, const IdUse& use, const TreePosition& position) const;
  /// Ids for which a node or a child is ready.
  std::vector<Id> ready_ids() const;

  void assign(Id id, const std::string& name, Signature signature);
  /// The name that had it; nothing where none had.
  std::optional<std::string> give_up(Id id);
  /// What was ready has run, or failed.
  void nobody_is_ready(Id id);

 private:
  std::unordered_map<std::string, Id> names_;
  std::unordered_map<Id, KnownId> ids_;
};

}  // namespace hora
