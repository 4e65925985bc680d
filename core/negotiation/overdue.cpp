/// Leader's knowledge about tensors that wait too long.
#include <algorithm>
#include <iterator>

#include "core/negotiation/leader.h"
#include "core/negotiation/mismatch.h"
#include "core/tensor_text.h"

namespace hora {
namespace {

/// Ranks complain within a tick of one another; with the time that their reports travel, the root
/// hears them all before it prints, and what they answer to its question.
constexpr Now kGatherTime = kOverdueTick + std::chrono::milliseconds(250);

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

void Leader::note_overdue(const std::string& name, Now now) {
  const auto [entry, fresh] = overdue_.try_emplace(name);
  if (!fresh) return;
  entry->second.report_at = is_root() ? now + kGatherTime : now;
  if (is_root()) to_ask_.push_back(name);
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

std::string Leader::warning_of(const std::string& name, const Overdue& overdue) const {
  const Presence presence = presence_of(name);
  std::vector<int> silent;
  for (const auto& ranks : topology_.ranks_of_node) {
    for (const int rank : ranks) {
      const bool known = std::binary_search(presence.ready.begin(), presence.ready.end(), rank) ||
                         std::binary_search(presence.missing.begin(), presence.missing.end(), rank);
      if (!known) silent.push_back(rank);
    }
  }
  std::sort(silent.begin(), silent.end());
  std::string text = tensor_text(name);
  if (set_ != 0) text += " of process set " + std::to_string(set_);
  text += " is waited for by ranks " + ranks_text(presence.ready) + " and has not been submitted";
  if (!presence.missing.empty()) text += " by ranks " + ranks_text(presence.missing);
  if (!silent.empty()) {
    text += std::string(presence.missing.empty() ? "" : ",") + " by ranks " + ranks_text(silent) +
            " (nothing heard from their nodes about it)";
  }
  for (const auto& [set, ranks] : overdue.elsewhere) {
    std::vector<int> waiting;
    std::set_difference(ranks.begin(), ranks.end(), presence.ready.begin(), presence.ready.end(),
                        std::back_inserter(waiting));
    if (waiting.empty()) continue;
    text += "; ranks " + ranks_text(waiting) + " wait under this name on process set " +
            std::to_string(set) + ": is it meant to be one tensor, on one set?";
  }
  return text + ". Do all ranks call the same collectives? Is one of them slow, stopped or gone?";
}

}  // namespace hora
