/// Leader's reports of names: complete once its whole subtree has one, and merged then.
#include <algorithm>
#include <utility>

#include "core/negotiation/diagnosis.h"
#include "core/negotiation/leader.h"

namespace hora {
namespace {

void add_value(Report& report, const Signature& signature, const std::vector<int>& ranks) {
  auto same = std::find_if(report.values.begin(), report.values.end(),
                           [&](const Value& value) { return value.signature == signature; });
  if (same == report.values.end()) same = report.values.insert(same, {signature, {}});
  same->ranks.insert(same->ranks.end(), ranks.begin(), ranks.end());
  std::sort(same->ranks.begin(), same->ranks.end());
}

}  // namespace

/// Local ranks that are ready for the id. All of them at once are not, until the last has announced
/// it: its arrival would else be taken for one of the next time.
std::uint64_t Leader::ready_locally(Id id) const {
  if (assignments_.at(id).node_ready) return local_mask();
  const std::uint64_t mask = use_.ready_mask(id);
  return mask == local_mask() ? 0 : mask;
}

bool Leader::complete(const Pending& entry) const {
  std::uint64_t local = (entry.id ? ready_locally(*entry.id) : 0) | joined_locally();
  for (std::size_t r = 0; r < entry.local.size(); ++r) {
    if (entry.local[r]) local |= std::uint64_t{1} << r;
  }
  const auto present = [&](int child) {
    return entry.below.contains(child) || all_joined_below(child) ||
           (entry.id && assignments_.at(*entry.id).ready_below.contains(child));
  };
  return local == local_mask() && std::all_of(children_.begin(), children_.end(), present);
}

Report Leader::merged(const std::string& name, const Pending& entry) const {
  Report report{name, {}, std::nullopt};
  const auto add_ready = [&](const std::vector<int>& ranks_ready) {
    add_value(report, assignments_.at(*entry.id).signature, ranks_ready);
    report.counted = entry.id;
  };
  const auto& ranks = topology_.ranks_of_node[static_cast<std::size_t>(node_)];
  const std::uint64_t ready = entry.id ? ready_locally(*entry.id) : 0;
  std::vector<int> joined;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (entry.local[r]) {
      add_value(report, *entry.local[r], {ranks[r]});
    } else if (ready >> r & 1) {
      add_ready({ranks[r]});
    } else {
      joined.push_back(ranks[r]);
    }
  }
  for (const int child : children_) {
    const auto reported = entry.below.find(child);
    if (reported == entry.below.end()) {
      const auto subtree = ranks_in_subtree(child);
      if (entry.id && assignments_.at(*entry.id).ready_below.contains(child)) {
        add_ready(subtree);
      } else {
        joined.insert(joined.end(), subtree.begin(), subtree.end());
      }
      continue;
    }
    for (const Value& value : reported->second.values) {
      add_value(report, value.signature,
                value.ranks.empty() ? ranks_in_subtree(child) : value.ranks);
    }
    if (reported->second.counted) report.counted = reported->second.counted;
  }
  add_joined(report, joined);
  // The text of an error depends on which rank reported what, not on the order.
  std::sort(report.values.begin(), report.values.end(),
            [](const Value& a, const Value& b) { return a.ranks.front() < b.ranks.front(); });
  return report;
}

void Leader::advance_name(const std::string& name) {
  const auto found = pending_.find(name);
  if (found == pending_.end() || found->second.merged || !complete(found->second)) return;
  found->second.merged = merged(name, found->second);
  overdue_.erase(name);
  if (is_root()) {
    decide(found->second);
    return;
  }
  Report report = *found->second.merged;
  if (report.values.front().ranks.size() == ranks_in_subtree(node_).size()) {
    report.values.front().ranks.clear();
  }
  output_.up.reports.push_back(std::move(report));
}

void Leader::decide(const Pending& entry) {
  const Report& report = *entry.merged;
  if (report.values.size() == 1) {
    waiting_for_id_.push_back(report.name);
    return;
  }
  disagreed_.push_back({.name = report.name,
                        .text = mismatch_text(report),
                        .has_id = entry.id.has_value(),
                        .id = entry.id.value_or(0)});
}

}  // namespace hora
