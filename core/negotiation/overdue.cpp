/// Leader's part in reporting tensors that wait too long.
#include <algorithm>
#include <iterator>
#include <utility>

#include "core/negotiation/diagnosis.h"
#include "core/negotiation/leader.h"

namespace hora {
namespace {

/// Ranks report overdue names within a tick of one another; the rest is for the reports, and the
/// answers to the root's question, to arrive before it prints.
constexpr Duration kGatherTime = kOverdueTick + std::chrono::milliseconds(250);

}  // namespace

Presence Leader::presence_of(const std::string& name) const {
  const auto& ranks = topology_.ranks_of_node[static_cast<std::size_t>(node_)];
  std::set<int> ready;
  std::set<int> missing;
  std::uint64_t local = joined_locally();
  std::set<int> below;
  if (const auto entry = pending_.find(name); entry != pending_.end()) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (entry->second.local[r]) local |= std::uint64_t{1} << r;
    }
    for (const auto& [child, report] : entry->second.below) below.insert(child);
  }
  if (const auto known = names_.find(name); known != names_.end()) {
    const Assignment& assignment = assignments_.at(known->second);
    local |= assignment.node_ready ? local_mask() : use_.ready_mask(known->second);
    below.insert(assignment.ready_below.begin(), assignment.ready_below.end());
  }
  for (std::size_t r = 0; r < ranks.size(); ++r)
    (local >> r & 1 ? ready : missing).insert(ranks[r]);
  for (const int child : below) {
    const auto subtree = ranks_in_subtree(child);
    ready.insert(subtree.begin(), subtree.end());
  }
  if (const auto heard = overdue_.find(name); heard != overdue_.end()) {
    ready.insert(heard->second.ready.begin(), heard->second.ready.end());
    missing.insert(heard->second.missing.begin(), heard->second.missing.end());
  }
  for (const int rank : ready) missing.erase(rank);
  return {name, {ready.begin(), ready.end()}, {missing.begin(), missing.end()}};
}

void Leader::note_overdue(const std::string& name, Duration now) {
  const bool first = overdue_.empty();
  if (!overdue_.try_emplace(name).second) return;
  if (is_root()) to_ask_.push_back(name);
  if (first) report_at_ = is_root() ? std::max(now + kGatherTime, quiet_until_) : now;
}

void Leader::ask_waiting() {
  for (std::size_t bytes = 0; !to_ask_.empty() && bytes < kDecisionBytes / 2; to_ask_.pop_front()) {
    bytes += to_ask_.front().size();
    next_.asked.push_back(std::move(to_ask_.front()));
  }
}

void Leader::note_elsewhere(const Elsewhere& elsewhere) {
  if (!is_root()) {
    output_.up.elsewhere.push_back(elsewhere);
  } else if (const auto heard = overdue_.find(elsewhere.name); heard != overdue_.end()) {
    heard->second.elsewhere[elsewhere.process_set].insert(elsewhere.rank);
  }
}

void Leader::report_overdue(Duration now) {
  if (overdue_.empty() || report_at_ > now) return;
  std::vector<OverdueTensor> tensors;
  for (const auto& [name, overdue] : overdue_) {
    Presence presence = presence_of(name);
    if (presence.ready.empty()) continue;  // decided meanwhile
    if (is_root()) {
      tensors.push_back(overdue_tensor(std::move(presence), overdue));
    } else {
      output_.up.presence.push_back(std::move(presence));
    }
  }
  overdue_.clear();
  if (tensors.empty()) return;
  output_.warnings.push_back(overdue_text(set_, tensors));
  quiet_until_ = now + warning_interval_;
}

OverdueTensor Leader::overdue_tensor(Presence presence, const Overdue& overdue) const {
  OverdueTensor tensor{.name = std::move(presence.name),
                       .ready = std::move(presence.ready),
                       .missing = std::move(presence.missing),
                       .silent = {}};
  for (const auto& ranks : topology_.ranks_of_node) {
    for (const int rank : ranks) {
      const bool known = std::binary_search(tensor.ready.begin(), tensor.ready.end(), rank) ||
                         std::binary_search(tensor.missing.begin(), tensor.missing.end(), rank);
      if (!known) tensor.silent.push_back(rank);
    }
  }
  std::sort(tensor.silent.begin(), tensor.silent.end());
  for (const auto& [set, ranks] : overdue.elsewhere) {
    std::vector<int> waiting;
    std::set_difference(ranks.begin(), ranks.end(), tensor.ready.begin(), tensor.ready.end(),
                        std::back_inserter(waiting));
    if (!waiting.empty()) tensor.elsewhere.emplace(set, std::move(waiting));
  }
  return tensor;
}

}  // namespace hora
