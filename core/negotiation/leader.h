/// A node leader's part of the negotiation: events in, messages and decisions out; the root's
/// besides: decisions in batches, the same for every rank; tensors that wait too long or run out of
/// time; texts of disagreements. Pure: no clock, no transport, no shared memory.
#pragma once

#include <hora/collectives.h>

#include <deque>
#include <map>
#include <set>
#include <unordered_map>

#include "core/messages/messages.h"
#include "core/negotiation/arrivals.h"
#include "core/negotiation/topology.h"

namespace hora::internal {

/// One sentence: the tensor, what differs, the first eight values with their ranks, what to do.
std::string mismatch_text(const Report& report);

/// "REMARK; REMARK; and 3 more ranks".
std::string remarks_text(std::span<const std::string> remarks);

/// One sentence about all of them, of a set with these ranks (ascending): tensors that wait for the
/// same ranks are named together, and after it what is known of the ranks that lack them.
std::string overdue_text(ProcessSet set, std::span<const Presence> tensors,
                         std::span<const int> ranks);

/// Time since any fixed moment; the caller's clock.
using Duration = std::chrono::nanoseconds;

/// A rank notices at the latest this long after its deadline that a tensor waits for others.
inline constexpr Duration kOverdueTick = std::chrono::milliseconds(500);

/// A tensor that has run out of time on a rank, and what the root knows of all ranks.
struct Expired {
  Expiring expiring;
  Presence presence;
};

/// Names that wait too long, until the next report: to the parent at once, by the root in a warning
/// once the others may have answered. The root's besides: names that run out of time, reported to
/// it a little before, so that all nodes' answers are there. Thread rule: one thread at a time.
class OverdueNames {
 public:
  /// Which ranks are ready for a name, and which local ranks are not, by the leader's own records.
  using Seen = std::function<Presence(const std::string& name)>;

  /// `warning_interval`: between two warnings.
  OverdueNames(bool at_root, Duration warning_interval)
      : at_root_(at_root), warning_interval_(warning_interval) {}

  /// A rank has waited too long for this name.
  void note(const std::string& name, Duration now);
  /// The root's. The rank that runs out of time first stands for a name.
  void note_expiring(const Expiring& expiring, Duration now);
  /// A leader reports that, and what it knows, whose last word holds; an answer is ignored for
  /// names that are neither overdue nor expire.
  void note_presence(const Presence& presence, Duration now) {
    if (!presence.is_answer) note(presence.name, now);
    const auto entry = names_.find(presence.name);
    if (entry != names_.end()) entry->second.add(presence);
  }
  /// The name waits for no rank, or its subtree is complete.
  void settle(const std::string& name) { names_.erase(name); }

  /// When there is something to report, or a name runs out of time.
  std::optional<Duration> deadline() const;
  /// All that is seen and heard of overdue names, at the deadline; the root's is a warning. Forgets
  /// them.
  std::vector<Presence> take_presence(Duration now, const Seen& seen);
  /// The root's: names that have run out of time by now, and their ranks; forgotten here.
  std::vector<Expired> take_expired(Duration now, const Seen& seen);
  /// The root's: names, of about `bytes` bytes, to ask all ranks about.
  std::vector<std::string> take_questions(std::size_t bytes);
  /// `own`; of a name that expires with what has been heard of the ranks that it does not name.
  Presence completed(Presence own) const {
    const auto entry = names_.find(own.name);
    const bool expires = entry != names_.end() && entry->second.expiring;
    return expires ? entry->second.with(own) : std::move(own);
  }

 private:
  struct Heard {
    void add(const Presence& presence);
    /// With what is seen besides.
    Presence with(const Presence& seen) const;

    bool is_overdue = false;
    std::optional<Expiring> expiring = {};
    Duration expires_at{};
    std::map<int, bool> ready = {};  ///< by rank
    std::map<int, std::string> remarks = {};
  };
  void forget_told() {
    std::erase_if(names_, [](const auto& entry) {
      return !entry.second.is_overdue && !entry.second.expiring;
    });
  }

  bool at_root_;
  Duration warning_interval_;
  std::map<std::string, Heard> names_;
  Duration report_at_{};            ///< where there are overdue names
  Duration quiet_until_{};          ///< the root's: no warning before
  std::deque<std::string> to_ask_;  ///< the root's
};

/// The ranks of a leader's subtree that have joined, until all ranks have. A rank joins with
/// nothing in flight, so a node all of whose ranks have joined is present for every id and name
/// without messages. Pure. Thread rule: one thread at a time.
class JoinedRanks {
 public:
  /// World ranks, at least one, in the order in which they have joined.
  void add(const std::vector<int>& ranks) {
    ranks_.insert(ranks.begin(), ranks.end());
    last_ = ranks.back();
  }
  /// All ranks have joined: from now on none has.
  void clear() { ranks_.clear(); }

  bool empty() const { return ranks_.empty(); }
  std::size_t size() const { return ranks_.size(); }
  /// The one that joined last of all that were added.
  int last() const { return last_; }
  /// The local ranks that have joined.
  LocalRanks of_node(const TreePosition& position) const {
    LocalRanks joined;
    if (ranks_.empty()) return joined;
    const std::vector<int>& ranks = position.local_ranks();
    for (std::size_t r = 0; r < ranks.size(); ++r) joined[r] = ranks_.contains(ranks[r]);
    return joined;
  }
  /// True where all ranks of the subtree but these local ones and these children's have.
  bool complete(const LocalRanks& local, const auto& children, const TreePosition& position) const {
    return (of_node(position) | local) == position.whole_node() &&
           std::ranges::all_of(position.children(), [&](int child) {
             return children.contains(child) || all_below(child, position);
           });
  }

 private:
  bool all_below(int child, const TreePosition& position) const {
    return !ranks_.empty() && std::ranges::includes(ranks_, position.ranks_in_subtree(child));
  }

  std::set<int> ranks_;
  int last_ = 0;
};

/// Ids whose data travel with the readiness, where each leader sends all others its node's sum
/// (NodeSum): a round is complete once all are there. A name becomes eager by a decision to run it,
/// for its next rounds, until its id is given up. A leader is at most one round ahead of another.
/// Pure. Thread rule: one thread at a time.
class EagerIds {
 public:
  explicit EagerIds(int nodes) : nodes_(static_cast<std::size_t>(nodes)) {}

  std::size_t size() const { return rounds_.size(); }
  bool contains(Id id) const { return rounds_.contains(id); }
  void insert(Id id) { rounds_[id].sums.resize(nodes_); }
  void erase(Id id) { rounds_.erase(id); }
  void clear() { rounds_.clear(); }
  /// False where the node is further ahead than it can be.
  bool add(int node, NodeSum sum) {
    auto& sums = rounds_.at(sum.id).sums[static_cast<std::size_t>(node)];
    sums.push_back(std::move(sum));
    return sums.size() <= 2;
  }
  /// The node is ready for the id's next round.
  bool is_ready(Id id, int node) const {
    return !rounds_.at(id).sums[static_cast<std::size_t>(node)].empty();
  }
  /// The sums of the next round, by node, where all are there; else none.
  std::vector<NodeSum> take_complete(Id id);
  std::vector<Rounds> complete() const;
  /// These rounds are complete, or their ids are given up.
  bool reached(std::span<const Rounds> rounds) const;

 private:
  struct State {
    std::uint32_t complete = 0;
    std::vector<std::deque<NodeSum>> sums = {};  ///< by node
  };
  std::size_t nodes_;
  std::map<Id, State> rounds_;
};

/// Sums up and spreads the tensors of eager ids.
struct EagerUse {
  std::size_t most_bytes = 0;  ///< of a tensor; 0: there are none
  /// The sum of the node's ranks, which are ready for the id.
  std::function<std::vector<std::uint8_t>(Id)> node_sum = {};
  /// Writes the sum of all nodes' sums, in their order, to all ranks of the node.
  std::function<void(std::span<const NodeSum>)> spread = {};
};

/// Questions of a leader to its own node's control block.
struct IdUse {
  /// NodeControlBlock::retire.
  std::function<bool(Id, bool only_idle)> retire;
  /// NodeControlBlock::ready_ranks.
  std::function<LocalRanks(Id)> ready_ranks;
  /// Remark on a local rank that lacks what others wait for; may be null.
  std::function<std::string(int local_rank)> remark = {};
  EagerUse eager = {};
};

/// The tensor behind an id.
struct KnownId {
  std::string name;
  Signature signature;
  // Until the id's run is decided:
  bool node_ready = false;         ///< every local rank has announced it
  std::set<int> ready_below = {};  ///< children
  LastArrival last = {};           ///< of those that are ready
  bool resized = false;            ///< see Up::resized
  bool forwarded = false;          ///< sent to the parent; by the root: its run is decided
  bool disputed = false;           ///< it is to be given up
  int runs_alone = 0;              ///< in a row, as the root has decided

  bool anyone_ready() const { return node_ready || !ready_below.empty(); }
  /// All ranks of the subtree are ready or have joined.
  bool complete(const JoinedRanks& joined, const TreePosition& position) const {
    return joined.complete(node_ready ? position.whole_node() : LocalRanks(), ready_below,
                           position);
  }
  /// All ranks of the subtree are ready.
  bool all_came(const TreePosition& position) const {
    return node_ready && ready_below.size() == position.children().size();
  }
};

/// Null for a key that the map does not have.
template <class Map, class Key>
auto* find_value(Map& map, const Key& key) {
  const auto found = map.find(key);
  return found == map.end() ? nullptr : &found->second;
}

/// The reports of one name in a leader's subtree.
struct ReportedName {
  std::vector<std::optional<Signature>> local;  ///< by local rank
  std::vector<Location> locations;              ///< likewise
  std::map<int, Report> below = {};             ///< by child
  std::optional<Report> merged = std::nullopt;  ///< what went up, or was decided by the root

  /// Local ranks that have reported it.
  LocalRanks local_ranks() const {
    LocalRanks ranks;
    for (std::size_t r = 0; r < local.size(); ++r) ranks[r] = local[r].has_value();
    return ranks;
  }
  /// Every rank of the subtree has reported it or has joined.
  bool complete(const JoinedRanks& joined, const TreePosition& position) const {
    return joined.complete(local_ranks(), below, position);
  }
};

/// All signatures of a complete() name, with ranks; those that have not reported it have joined.
Report merged_report(const std::string& name, const ReportedName& reported,
                     const TreePosition& position);

/// Ids for new names: of free slots, else that of the oldest one, given up. Others than the root
/// need not agree on it. Pure. Thread rule: one thread at a time.
class IdRing {
 public:
  explicit IdRing(int capacity) : capacity_(static_cast<std::size_t>(capacity)) {}

  /// The id's slot is free.
  void release(Id id) { free_.push_back(id); }
  /// An id of a free slot, or of one that was never in use; else the successor of the first for
  /// which give_up(id) is true; nothing after one round.
  template <class GiveUp>
  std::optional<Id> next(GiveUp&& give_up) {
    if (!free_.empty()) {
      const Id id = free_.back();
      free_.pop_back();
      return succeed(id);
    }
    if (ids_.size() < capacity_)
      return ids_.emplace_back(make_id(static_cast<int>(ids_.size()), 0));
    for (std::size_t step = 0; step < ids_.size(); ++step) {
      const Id id = ids_[std::exchange(hand_, (hand_ + 1) % ids_.size())];
      if (give_up(id)) return succeed(id);
    }
    return std::nullopt;
  }

 private:
  Id succeed(Id id) {
    const auto slot = static_cast<std::size_t>(slot_of(id));
    return ids_[slot] = make_id(slot_of(id), (generation_of(id) + 1) & 0xffffu);
  }

  std::size_t capacity_;
  std::vector<Id> ids_;  ///< by slot: the last one of those that were ever in use
  std::vector<Id> free_;
  std::size_t hand_ = 0;
};

/// A decision names tensors of about this many bytes at most; the rest follows in the next ones.
inline constexpr std::size_t kDecisionBytes = std::size_t{1} << 20;

/// Actions that the leader wants, in this order.
struct LeaderOutput {
  std::vector<NodeSum> sums;  ///< for all other leaders
  /// Eager rounds that are complete: by node, for this node's ranks.
  std::vector<std::vector<NodeSum>> complete;
  Up up;                              ///< for the parent; empty() where there is nothing to say
  std::vector<Decision> decisions;    ///< for the children (without locations) and this node's log
  std::vector<std::string> warnings;  ///< for the log; the root's alone
  /// The root's: what has run out of time on some rank, which ends the job.
  std::vector<Expired> expired = {};
  /// The root's: ids that run, and who came last; in the order of these arrivals.
  std::vector<std::pair<Id, LastArrival>> arrivals = {};
};

/// Readiness goes up the tree once the leader's whole subtree has an id or a report; decisions come
/// down. Where a rank's signature of a known name has changed, its id is given up, and all report.
/// Ranks that have joined are present for all names, with nothing. Thread rule: one at a time.
class Leader {
 public:
  /// `set`: whose negotiation this is. `warning_interval`: between two warnings.
  Leader(const Topology& topology, int node, int id_capacity, IdUse use, ProcessSet set = kWorld,
         Duration warning_interval = {});

  void on_mail(int local_rank, const Mail& mail, Duration now);
  /// Every local rank is ready for `id` (jobs of several nodes alone). `resized`: Up::resized.
  void on_node_ready(Id id, const LastArrival& last = {}, bool resized = false);
  void on_up(int child, const Up& up, Duration now);
  /// False where it is not of the tensor's length, or of a round that cannot have begun.
  [[nodiscard]] bool on_sum(int node, NodeSum sum, Duration now);
  /// `after` of an Up or a Decision allows that it is read.
  bool reached(std::span<const Rounds> after) const { return eager_.reached(after); }
  /// Why this cannot be the next decision, given those before; empty where it can.
  std::string problem_in(const Decision& decision) const;
  /// Precondition: there is no problem in the decision.
  void on_decision(const Decision& decision);
  /// Ranks of this node have joined, and set no ready bits, and others have set some since
  /// on_joined_arrivals(), which disputes these ids; true if there were any.
  bool has_joined_arrivals() const { return !joined_arrivals().empty(); }
  bool on_joined_arrivals();

  /// Returns what is to be done now. More may be left as long as there are decisions.
  LeaderOutput take(Duration now);
  /// Everything that has happened before the last take() is decided.
  bool is_idle() const {
    return !root_ || (output_.up.empty() && root_->disputed.empty() && root_->waiting.empty());
  }
  /// When take() wants to be called even if nothing happens.
  std::optional<Duration> deadline() const { return overdue_.deadline(); }
  /// Who has submitted the name, and who has not, as far as this leader knows: of its own node and
  /// of complete subtrees; the root, of a name that is about to run out of time, what it has heard.
  Presence presence_of(const std::string& name) const {
    return overdue_.completed(own_presence_of(name));
  }

 private:
  struct Root {
    IdRing id_ring;
    std::size_t entry_bytes;                ///< of a name in a decision, beside its text
    std::size_t most_eager;                 ///< ids: others can be given up whatever waits
    std::vector<Id> disputed = {};          ///< to be given up
    std::vector<std::string> waiting = {};  ///< names to be decided, in order
    std::set<int> departed = {};
  };
  std::vector<Id> joined_arrivals() const;
  ReportedName& reported(const std::string& name);
  void note_joined(const std::vector<int>& ranks);
  void dispute(Id id);
  void advance_id(Id id);
  void advance_name(const std::string& name);
  bool add_sum(int node, NodeSum sum);
  void give_up(Id id);
  void apply(Decision& decision);
  void adopt(Assigned& assigned);
  void decide(Duration now);
  void decide_names(Decision& next);
  void choose_eager(Decision& next);
  Presence own_presence_of(const std::string& name, std::set<int>* said = nullptr) const;
  OverdueNames::Seen remarking() const;

  TreePosition position_;
  IdUse use_;
  ProcessSet set_;
  std::unordered_map<std::string, Id> ids_;
  std::unordered_map<Id, KnownId> known_;
  EagerIds eager_;
  /// Those that have no id, or one with another signature, which is given up.
  std::map<std::string, ReportedName> reports_;
  JoinedRanks joined_;
  OverdueNames overdue_;
  std::optional<Root> root_;  ///< where this leader is the root, whose parent is itself
  LeaderOutput output_;
};

}  // namespace hora::internal
