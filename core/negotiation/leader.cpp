#include "core/negotiation/leader.h"

#include <algorithm>
#include <utility>

#include "core/negotiation/mismatch.h"

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

Leader::Leader(const Topology& topology, int node, int id_capacity, IdUse use)
    : topology_(topology),
      node_(node),
      parent_(tree_parent(node)),
      children_(tree_children(node, topology.nodes())),
      id_capacity_(id_capacity),
      use_(std::move(use)) {}

std::uint64_t Leader::local_mask() const {
  return (std::uint64_t{1} << topology_.ranks_of_node[static_cast<std::size_t>(node_)].size()) - 1;
}

std::vector<int> Leader::ranks_in_subtree(int node) const {
  std::vector<int> ranks;
  for (const int member : tree_subtree(node, topology_.nodes())) {
    const auto& of_node = topology_.ranks_of_node[static_cast<std::size_t>(member)];
    ranks.insert(ranks.end(), of_node.begin(), of_node.end());
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

Leader::Pending& Leader::pending(const std::string& name) {
  const auto [entry, fresh] = pending_.try_emplace(name);
  if (fresh) {
    const std::size_t ranks = topology_.ranks_of_node[static_cast<std::size_t>(node_)].size();
    entry->second.local.resize(ranks);
    entry->second.locations.assign(ranks, kNowhere);
    if (const auto known = names_.find(name); known != names_.end()) {
      entry->second.id = known->second;
      output_.watch.push_back(known->second);
    }
  }
  return entry->second;
}

void Leader::on_mail(int local_rank, const Mail& mail, Now now) {
  const int rank =
      topology_
          .ranks_of_node[static_cast<std::size_t>(node_)][static_cast<std::size_t>(local_rank)];
  switch (mail.kind) {
    case MailKind::departed:
      (is_root() ? next_.departed : output_.up.departed).push_back(rank);
      break;
    case MailKind::joined:
      note_joined({rank});
      break;
    case MailKind::overdue:
      note_overdue(mail.name, now);
      break;
    case MailKind::report: {
      Pending& entry = pending(mail.name);
      entry.local[static_cast<std::size_t>(local_rank)] = mail.signature;
      entry.locations[static_cast<std::size_t>(local_rank)] = mail.location;
      advance_name(mail.name);
      break;
    }
  }
}

void Leader::on_node_ready(Id id) {
  const auto known = assignments_.find(id);
  if (known == assignments_.end()) return;  // given up meanwhile: its ranks report again
  known->second.node_ready = true;
  advance_id(id);
}

void Leader::on_up(int child, const Up& up, Now now) {
  note_joined(up.joined);
  for (const Id id : up.ready) {
    const auto known = assignments_.find(id);
    if (known == assignments_.end()) continue;
    known->second.ready_below.insert(child);
    advance_id(id);
  }
  for (const Report& report : up.reports) {
    // Void: the child will see that the id is given up, and report again.
    if (report.counted && !assignments_.contains(*report.counted)) continue;
    pending(report.name).below.insert_or_assign(child, report);
    advance_name(report.name);
  }
  for (const Presence& presence : up.presence) {
    note_overdue(presence.name, now);
    Overdue& overdue = overdue_[presence.name];
    overdue.ready.insert(presence.ready.begin(), presence.ready.end());
    overdue.missing.insert(presence.missing.begin(), presence.missing.end());
  }
  auto& departed = is_root() ? next_.departed : output_.up.departed;
  departed.insert(departed.end(), up.departed.begin(), up.departed.end());
}

void Leader::on_decision(const Decision& decision) {
  Decision mine = decision;
  apply(mine);
  output_.decisions.push_back(std::move(mine));
}

void Leader::on_watched_arrivals() {
  std::vector<std::string> disputed;
  for (const auto& [name, entry] : pending_) {
    if (entry.id) disputed.push_back(name);
  }
  for (const std::string& name : disputed) advance_name(name);
}

void Leader::advance_id(Id id) {
  Assignment& assignment = assignments_.at(id);
  if (pending_.contains(assignment.name)) {
    advance_name(assignment.name);
    return;
  }
  const bool node = assignment.node_ready || joined_locally() == local_mask();
  const bool below = std::all_of(children_.begin(), children_.end(), [&](int child) {
    return assignment.ready_below.contains(child) || all_joined_below(child);
  });
  if (assignment.forwarded || !node || !below) return;
  const bool all_came = assignment.node_ready && assignment.ready_below.size() == children_.size();
  if (!all_came && !allows_joined(assignment.signature.kind, assignment.signature.device)) {
    // Disputed between those who came and those who have joined.
    const std::string name = assignment.name;
    pending(name);
    advance_name(name);
    return;
  }
  assignment.forwarded = true;
  overdue_.erase(assignment.name);
  (is_root() ? next_.run : output_.up.ready).push_back(id);
}

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
  // The text of an error depends on who said what, not on who was first.
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

void Leader::nobody_is_ready(Id id) {
  const auto known = assignments_.find(id);
  if (known == assignments_.end()) return;
  known->second.node_ready = false;
  known->second.ready_below.clear();
  known->second.forwarded = false;
}

void Leader::apply(Decision& decision) {
  for (const Id id : decision.retired) give_up(id);
  for (const Failed& failed : decision.failed) {
    pending_.erase(failed.name);
    overdue_.erase(failed.name);
    if (failed.has_id) nobody_is_ready(failed.id);
  }
  for (Assigned& assigned : decision.assigned) {
    auto entry = pending_.extract(assigned.name);
    const bool all_joined = entry.empty();
    if (all_joined && !assigned.signature) continue;
    overdue_.erase(assigned.name);
    const std::size_t ranks = topology_.ranks_of_node[static_cast<std::size_t>(node_)].size();
    assigned.locations =
        all_joined ? std::vector<Location>(ranks, kNowhere) : std::move(entry.mapped().locations);
    names_[assigned.name] = assigned.id;
    assignments_[assigned.id] = {
        .name = assigned.name,
        .signature = assigned.signature ? *assigned.signature
                                        : entry.mapped().merged.value().values.front().signature,
        .node_ready = false,
        .ready_below = {},
        .forwarded = false};
  }
  for (const Id id : decision.run) {
    if (const auto known = assignments_.find(id); known != assignments_.end()) {
      overdue_.erase(known->second.name);
    }
    nobody_is_ready(id);
  }
  if (decision.all_joined) joined_.clear();
}

LeaderOutput Leader::take(Now now) {
  if (is_root()) {
    tell_disagreed();
    assign_waiting();
    conclude_join();
    departed_.insert(next_.departed.begin(), next_.departed.end());
    next_.finished =
        !next_.departed.empty() && departed_.size() == static_cast<std::size_t>(topology_.size());
    if (!next_.empty()) {
      next_.number = decision_number_++;
      Decision decision = std::exchange(next_, {});
      apply(decision);
      output_.decisions.push_back(std::move(decision));
    }
  }
  for (auto entry = overdue_.begin(); entry != overdue_.end();) {
    if (entry->second.report_at > now) {
      ++entry;
      continue;
    }
    const Presence presence = presence_of(entry->first);
    if (presence.ready.empty()) {
      // Decided meanwhile.
    } else if (is_root()) {
      output_.warnings.push_back(warning_of(entry->first, entry->second));
    } else {
      output_.up.presence.push_back(presence);
    }
    entry = overdue_.erase(entry);
  }
  return std::exchange(output_, {});
}

std::optional<Now> Leader::deadline() const {
  std::optional<Now> earliest;
  for (const auto& [name, overdue] : overdue_) {
    if (!earliest || overdue.report_at < *earliest) earliest = overdue.report_at;
  }
  return earliest;
}

}  // namespace hora
