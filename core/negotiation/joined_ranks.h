/// Ranks that have run out of data: those that have called join.
#pragma once

#include <algorithm>
#include <cstddef>
#include <set>
#include <vector>

#include "core/control_block/tensor_id.h"
#include "core/negotiation/topology.h"

namespace hora::internal {

/// The ranks of a leader's subtree that have joined, until all ranks have. A rank joins with
/// nothing in flight, so where all ranks of a node have joined no ready bit is set and no report
/// pending there: such a node is present for every id and name without messages. Pure. Thread rule:
/// one thread at a time.
class JoinedRanks {
 public:
  /// World ranks, at least one, in the order in which they have joined.
  void add(const std::vector<int>& ranks) {
    ranks_.insert(ranks.begin(), ranks.end());
    last_ = ranks.back();
  }
  /// All ranks have joined: from now on none has.
  void clear() { ranks_.clear(); }

  bool contains(int rank) const { return ranks_.contains(rank); }
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
  /// True where all ranks of a child's subtree have.
  bool all_below(int child, const TreePosition& position) const {
    if (ranks_.empty()) return false;
    const auto ranks = position.ranks_in_subtree(child);
    return std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return ranks_.contains(rank); });
  }

 private:
  std::set<int> ranks_;
  int last_ = 0;
};

}  // namespace hora::internal
