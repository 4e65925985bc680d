#include "core/negotiation/leader.h"

#include <algorithm>
#include <utility>

namespace hora {

Leader::Leader(const Topology& topology, int node, int id_capacity, IdUse use, ProcessSet set,
               Duration warning_interval)
    : topology_(topology),
      node_(node),
      parent_(tree_parent(node)),
      children_(tree_children(node, topology.nodes())),
      use_(std::move(use)),
      set_(set),
      warning_interval_(warning_interval),
      clock_(id_capacity) {}

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

void Leader::on_mail(int local_rank, const Mail& mail, Duration now) {
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
    case MailKind::elsewhere:
      note_elsewhere({mail.name, rank, mail.process_set});
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

void Leader::on_up(int child, const Up& up, Duration now) {
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
  for (const Elsewhere& elsewhere : up.elsewhere) note_elsewhere(elsewhere);
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
  if (!all_came && !allows_joined(assignment.signature.kind)) {
    // Disputed between those who have submitted it and those who have joined.
    const std::string name = assignment.name;
    pending(name);
    advance_name(name);
    return;
  }
  assignment.forwarded = true;
  overdue_.erase(assignment.name);
  (is_root() ? next_.run : output_.up.ready).push_back(id);
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

LeaderOutput Leader::take(Duration now) {
  if (is_root()) {
    tell_disagreed();
    assign_waiting();
    conclude_join();
    ask_waiting();
    std::sort(next_.departed.begin(), next_.departed.end());
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
  report_overdue(now);
  return std::exchange(output_, {});
}

std::optional<Duration> Leader::deadline() const {
  return overdue_.empty() ? std::nullopt : std::optional(report_at_);
}

}  // namespace hora
