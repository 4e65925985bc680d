#include "core/negotiation/known_names.h"

#include <hora/printable.h>

#include <algorithm>
#include <utility>

namespace hora::internal {
namespace {

void add_value(Report& report, const Signature& signature, const std::vector<int>& ranks) {
  auto same =
      std::find_if(report.values.begin(), report.values.end(),
                   [&](const ReportedSignature& value) { return value.signature == signature; });
  if (same == report.values.end()) same = report.values.insert(same, {signature, {}});
  same->ranks.insert(same->ranks.end(), ranks.begin(), ranks.end());
  std::sort(same->ranks.begin(), same->ranks.end());
}

/// A rank that has joined can add nothing to a sum, but cannot take part in other operations.
void add_joined(Report& report, const std::vector<int>& ranks) {
  const bool allowed = std::all_of(
      report.values.begin(), report.values.end(),
      [](const ReportedSignature& value) { return allows_joined(value.signature.kind); });
  if (ranks.empty() || allowed) return;
  Signature signature;
  signature.kind = OperationKind::join;
  report.values.push_back({signature, ranks});
}

std::string id_text(Id id) {
  return "id " + std::to_string(id);
}

/// True where all ranks of the subtree have reported the name, none of them by an id of `retired`.
bool agreed(const ReportedName& reported, const std::set<Id>& retired) {
  if (!reported.merged) return false;
  const std::optional<Id>& counted = reported.merged->counted;
  return !(counted && retired.contains(*counted));
}

}  // namespace

bool KnownId::complete(const JoinedRanks& joined, const TreePosition& position) const {
  const auto present = [&](int child) {
    return ready_below.contains(child) || joined.all_below(child, position);
  };
  return (node_ready || joined.of_node(position) == position.whole_node()) &&
         std::all_of(position.children().begin(), position.children().end(), present);
}

std::optional<Id> IdTable::id_of(const std::string& name) const {
  const auto known = names_.find(name);
  return known == names_.end() ? std::nullopt : std::optional(known->second);
}

/// All local ranks at once are not ready, until the last has announced it: its arrival would else
/// be taken for one of the next time.
ReadyById IdTable::ready_by(Id id, const IdUse& use, const TreePosition& position) const {
  const KnownId& known = ids_.at(id);
  const LocalRanks all = position.whole_node();
  if (known.node_ready) return {id, all, known};
  const LocalRanks ready = use.ready_ranks(id);
  return {id, ready == all ? LocalRanks() : ready, known};
}

std::vector<Id> IdTable::ready_ids() const {
  std::vector<Id> ids;
  for (const auto& [id, known] : ids_) {
    if (known.anyone_ready()) ids.push_back(id);
  }
  return ids;
}

void IdTable::assign(Id id, const std::string& name, Signature signature) {
  names_[name] = id;
  ids_[id] = {.name = name, .signature = std::move(signature)};
}

std::optional<std::string> IdTable::give_up(Id id) {
  const auto known = ids_.find(id);
  if (known == ids_.end()) return std::nullopt;
  std::string name = std::move(known->second.name);
  names_.erase(name);
  ids_.erase(known);
  return name;
}

void IdTable::clear_ready(Id id) {
  KnownId* const known = find(id);
  if (!known) return;
  known->node_ready = false;
  known->ready_below.clear();
  known->last = {};
  known->resized = known->forwarded = false;
}

LocalRanks ReportedName::local_ranks() const {
  LocalRanks ranks;
  for (std::size_t r = 0; r < local.size(); ++r) ranks[r] = local[r].has_value();
  return ranks;
}

bool ReportedName::complete(const ReadyById* by_id, const JoinedRanks& joined,
                            const TreePosition& position) const {
  LocalRanks here = joined.of_node(position) | local_ranks();
  if (by_id) here |= by_id->local;
  const auto present = [&](int child) {
    return below.contains(child) || joined.all_below(child, position) ||
           (by_id && by_id->known.ready_below.contains(child));
  };
  return here == position.whole_node() &&
         std::all_of(position.children().begin(), position.children().end(), present);
}

Report merged_report(const std::string& name, const ReportedName& reported, const ReadyById* by_id,
                     const TreePosition& position) {
  Report report{name, {}, std::nullopt};
  const auto add_ready = [&](const std::vector<int>& ranks_ready) {
    add_value(report, by_id->known.signature, ranks_ready);
    report.counted = by_id->id;
  };
  const std::vector<int>& ranks = position.local_ranks();
  const LocalRanks ready = by_id ? by_id->local : LocalRanks();
  std::vector<int> joined;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (reported.local[r]) {
      add_value(report, *reported.local[r], {ranks[r]});
    } else if (ready[r]) {
      add_ready({ranks[r]});
    } else {
      joined.push_back(ranks[r]);
    }
  }
  for (const int child : position.children()) {
    const auto from_child = reported.below.find(child);
    if (from_child == reported.below.end()) {
      const auto subtree = position.ranks_in_subtree(child);
      if (by_id && by_id->known.ready_below.contains(child)) {
        add_ready(subtree);
      } else {
        joined.insert(joined.end(), subtree.begin(), subtree.end());
      }
      continue;
    }
    for (const ReportedSignature& value : from_child->second.values) {
      add_value(report, value.signature,
                value.ranks.empty() ? position.ranks_in_subtree(child) : value.ranks);
    }
    if (from_child->second.counted) report.counted = from_child->second.counted;
  }
  add_joined(report, joined);
  // The text of an error depends on which rank reported what, not on the order.
  std::sort(report.values.begin(), report.values.end(),
            [](const ReportedSignature& a, const ReportedSignature& b) {
              return a.ranks.front() < b.ranks.front();
            });
  return report;
}

ReportedName& NameReports::add(const std::string& name, std::size_t local_size,
                               std::optional<Id> id) {
  ReportedName& reported = names_[name];
  reported.local.resize(local_size);
  reported.locations.assign(local_size, kNowhere);
  reported.id = id;
  return reported;
}

std::optional<ReportedName> NameReports::take(const std::string& name) {
  auto taken = names_.extract(name);
  if (taken.empty()) return std::nullopt;
  return std::move(taken.mapped());
}

void NameReports::uncount(const std::string& name, Id id) {
  ReportedName* const disputed = find(name);
  if (!disputed) return;
  disputed->id.reset();
  std::erase_if(disputed->below, [&](const auto& report) { return report.second.counted == id; });
  if (disputed->merged && disputed->merged->counted == id) disputed->merged.reset();
}

std::vector<std::string> NameReports::names(bool with_ids_only) const {
  std::vector<std::string> names;
  for (const auto& [name, reported] : names_) {
    if (reported.id || !with_ids_only) names.push_back(name);
  }
  return names;
}

std::string KnownNames::problem_in(const Decision& decision) const {
  std::set<Id> retired;
  for (const Id id : decision.retired) {
    if (!ids.find(id)) return id_text(id) + " is given up, which no name has";
    retired.insert(id);
  }
  for (const Assigned& assigned : decision.assigned) {
    const std::string what = id_text(assigned.id) + " for " + in_quotes(assigned.name);
    const auto known = ids.id_of(assigned.name);
    if (known && !retired.contains(*known)) return what + ", which has " + id_text(*known);
    const KnownId* const owner = ids.find(assigned.id);
    if (owner && !retired.contains(assigned.id)) {
      return what + ", which " + in_quotes(owner->name) + " has";
    }
    const ReportedName* const reported = reports.find(assigned.name);
    if (reported && !agreed(*reported, retired) && !assigned.signature) {
      return what + ", which not all ranks of this node have reported";
    }
  }
  for (const Id id : decision.run) {
    if (!ids.find(id)) return id_text(id) + " is to run, which no name has";
  }
  return {};
}

}  // namespace hora::internal
