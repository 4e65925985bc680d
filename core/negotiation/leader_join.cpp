/// Leader's part in join: ranks that have run out of data.
#include <algorithm>

#include "core/negotiation/leader.h"

namespace hora {

void Leader::note_joined(const std::vector<int>& ranks) {
  if (ranks.empty()) return;
  joined_.insert(ranks.begin(), ranks.end());
  last_joined_ = ranks.back();
  if (!is_root()) {
    output_.up.joined.insert(output_.up.joined.end(), ranks.begin(), ranks.end());
  }
  std::vector<std::string> names;
  for (const auto& [name, entry] : pending_) names.push_back(name);
  for (const std::string& name : names) advance_name(name);
  std::vector<Id> ids;
  for (const auto& [id, assignment] : assignments_) {
    if (assignment.node_ready || !assignment.ready_below.empty()) ids.push_back(id);
  }
  for (const Id id : ids) advance_id(id);
}

std::uint64_t Leader::joined_locally() const {
  const auto& ranks = topology_.ranks_of_node[static_cast<std::size_t>(node_)];
  std::uint64_t mask = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (joined_.contains(ranks[r])) mask |= std::uint64_t{1} << r;
  }
  return mask;
}

bool Leader::all_joined_below(int child) const {
  if (joined_.empty()) return false;
  const auto ranks = ranks_in_subtree(child);
  return std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return joined_.contains(rank); });
}

/// A rank that has joined can add nothing to a sum, but cannot take part in other operations.
void Leader::add_joined(Report& report, const std::vector<int>& ranks) const {
  const bool allowed =
      std::all_of(report.values.begin(), report.values.end(),
                  [](const Value& value) { return allows_joined(value.signature.kind); });
  if (ranks.empty() || allowed) return;
  Signature signature;
  signature.kind = OperationKind::join;
  report.values.push_back({signature, ranks});
}

void Leader::conclude_join() {
  if (joined_.size() != static_cast<std::size_t>(topology_.size())) return;
  next_.all_joined = true;
  next_.last_joined = last_joined_;
}

}  // namespace hora
