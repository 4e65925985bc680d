#include "core/negotiation/leader.h"

#include <fmt/format.h>
#include <hora/printable.h>

#include <iterator>

namespace hora::internal {
namespace {

/// Bytes of a name in a decision, beside its text.
constexpr std::size_t kEntryBytes = 64;

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

std::optional<Id> KnownNames::id_of(const std::string& name) const {
  const Id* const id = find_value(ids_, name);
  return id ? std::optional(*id) : std::nullopt;
}

/// All local ranks at once are not ready, until the last has announced it: its arrival would else
/// be taken for one of the next time.
ReadyById KnownNames::ready_by(Id id, const IdUse& use, const TreePosition& position) const {
  const KnownId& known = known_.at(id);
  const LocalRanks all = position.whole_node();
  if (known.node_ready) return {id, all, known};
  const LocalRanks ready = use.ready_ranks(id);
  return {id, ready == all ? LocalRanks() : ready, known};
}

std::vector<Id> KnownNames::ready_ids() const {
  std::vector<Id> ids;
  for (const auto& [id, known] : known_) {
    if (known.anyone_ready()) ids.push_back(id);
  }
  return ids;
}

std::vector<std::string> KnownNames::ready_alone(const IdUse& use) const {
  std::vector<std::string> names;
  for (const auto& [id, known] : known_) {
    if (!reported(known.name) && use.ready_ranks(id).any()) names.push_back(known.name);
  }
  return names;
}

void KnownNames::assign(Id id, const std::string& name, Signature signature) {
  ids_[name] = id;
  known_[id] = {.name = name, .signature = std::move(signature)};
}

void KnownNames::give_up(Id id) {
  const auto known = known_.extract(id);
  if (known.empty()) return;
  const std::string& name = known.mapped().name;
  ids_.erase(name);
  ReportedName* const disputed = reported(name);
  if (!disputed) return;
  disputed->id.reset();
  std::erase_if(disputed->below, [&](const auto& report) { return report.second.counted == id; });
  if (disputed->merged && disputed->merged->counted == id) disputed->merged.reset();
}

void KnownNames::clear_ready(Id id) {
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

ReportedName& KnownNames::report(const std::string& name, std::size_t local_size) {
  ReportedName& reported = reports_[name];
  reported.local.resize(local_size);
  reported.locations.assign(local_size, kNowhere);
  reported.id = id_of(name);
  return reported;
}

std::optional<ReportedName> KnownNames::take_reported(const std::string& name) {
  auto taken = reports_.extract(name);
  if (taken.empty()) return std::nullopt;
  return std::move(taken.mapped());
}

std::vector<std::string> KnownNames::reported_names(bool with_ids_only) const {
  std::vector<std::string> names;
  for (const auto& [name, reported] : reports_) {
    if (reported.id || !with_ids_only) names.push_back(name);
  }
  return names;
}

std::string KnownNames::problem_in(const Decision& decision) const {
  std::set<Id> retired;
  for (const Id id : decision.retired) {
    if (!find(id)) return fmt::format("id {} is given up, which no name has", id);
    retired.insert(id);
  }
  for (const Assigned& assigned : decision.assigned) {
    const auto problem = [&](const std::string& which) {
      return fmt::format("id {} for {}, which {}", assigned.id, in_quotes(assigned.name), which);
    };
    const auto known = id_of(assigned.name);
    if (known && !retired.contains(*known)) return problem(fmt::format("has id {}", *known));
    const KnownId* const owner = find(assigned.id);
    if (owner && !retired.contains(assigned.id)) return problem(in_quotes(owner->name) + " has");
    const ReportedName* const reported = this->reported(assigned.name);
    if (reported && !agreed(*reported, retired) && !assigned.signature) {
      return problem("not all ranks of this node have reported");
    }
  }
  for (const Id id : decision.run) {
    if (!find(id)) return fmt::format("id {} is to run, which no name has", id);
  }
  return {};
}

void RootDecisions::depart(const std::vector<int>& ranks) {
  next_.departed.insert(next_.departed.end(), ranks.begin(), ranks.end());
}

void RootDecisions::decide(const Report& report, std::optional<Id> id) {
  if (report.values.size() == 1) {
    waiting_for_id_.push_back(report.name);
    return;
  }
  disagreed_.push_back({.name = report.name,
                        .text = mismatch_text(report),
                        .has_id = id.has_value(),
                        .id = id.value_or(0)});
}

void RootDecisions::all_joined(int last) {
  next_.all_joined = true;
  next_.last_joined = last;
}

bool RootDecisions::give_up_for_another(Id id, bool only_idle, KnownNames& names,
                                        const IdUse& use) {
  const KnownId* const known = names.find(id);
  if (!known) return false;
  if (known->forwarded) return false;  // it runs in this decision
  const ReportedName* const reported = names.reported(known->name);
  // Decided already: it fails in this decision, or gives its own id up when its turn comes.
  if (reported && reported->merged) return false;
  const bool idle = !known->anyone_ready() && !reported;
  if ((only_idle && !idle) || !use.retire(id, only_idle)) return false;
  next_.retired.push_back(id);
  names.give_up(id);
  return true;
}

std::optional<Id> RootDecisions::allocate_id(KnownNames& names, const IdUse& use) {
  std::optional<Id> id = id_ring_.unused();
  // First an id that no rank is ready for; else one whose early ranks will report it again.
  for (const bool only_idle : {true, false}) {
    if (id) break;
    id = id_ring_.next([&](Id old) { return give_up_for_another(old, only_idle, names, use); });
    if (id) id = IdRing::successor(*id);
  }
  if (id) id_ring_.assign(*id);
  return id;
}

void RootDecisions::add_disagreements() {
  for (std::size_t bytes = 0; !disagreed_.empty() && bytes < kDecisionBytes;) {
    bytes += disagreed_.front().name.size() + disagreed_.front().text.size() + kEntryBytes;
    next_.failed.push_back(std::move(disagreed_.front()));
    disagreed_.pop_front();
  }
}

void RootDecisions::assign_ids(KnownNames& names, const IdUse& use, bool with_signatures) {
  std::size_t bytes = 0;
  bool exhausted = false;
  std::erase_if(waiting_for_id_, [&](const std::string& name) {
    if (bytes >= kDecisionBytes) return false;
    const ReportedName* const agreed = names.reported(name);
    // Its ranks report again, those that an id given up meanwhile had counted among them.
    const auto is_void = [&] { return !agreed || !agreed->merged; };
    if (is_void()) return true;
    std::optional<Id> id = agreed->id;
    if (id) {
      // All ranks have changed the signature alike: the old id goes, the new one gets its own.
      if (!use.retire(*id, false)) return false;
      next_.retired.push_back(*id);
      names.give_up(*id);
      if (is_void()) return true;
      id = IdRing::successor(*id);
      id_ring_.assign(*id);
    } else {
      if (exhausted) return false;
      id = allocate_id(names, use);
      exhausted = !id;
      if (exhausted) return false;
    }
    bytes += name.size() + kEntryBytes;
    Assigned& assigned = next_.assigned.emplace_back();
    assigned.name = name;
    assigned.id = *id;
    if (with_signatures) assigned.signature = agreed->merged->values.front().signature;
    return true;
  });
}

std::optional<Decision> RootDecisions::take() {
  add_disagreements();
  std::sort(next_.departed.begin(), next_.departed.end());
  departed_.insert(next_.departed.begin(), next_.departed.end());
  next_.finished = !next_.departed.empty() && departed_.size() == ranks_;
  if (next_.empty()) return std::nullopt;
  return std::exchange(next_, {});
}

Leader::Leader(const Topology& topology, int node, int id_capacity, IdUse use, ProcessSet set,
               Duration warning_interval)
    : position_(topology, node),
      use_(std::move(use)),
      overdue_(position_.is_root(), set, warning_interval) {
  if (position_.is_root()) root_.emplace(id_capacity, position_.world_size());
}

void Leader::on_mail(int local_rank, const Mail& mail, Duration now) {
  const auto local = static_cast<std::size_t>(local_rank);
  const int rank = position_.local_ranks()[local];
  switch (mail.kind) {
    case MailKind::departed:
      note_departed({rank});
      break;
    case MailKind::joined:
      note_joined({rank});
      break;
    case MailKind::overdue:
      overdue_.note(mail.name, now);
      break;
    case MailKind::expiring:
      note_expiring({mail.name, rank, mail.expiry}, now);
      break;
    case MailKind::report: {
      ReportedName& entry = reported(mail.name);
      entry.local[local] = mail.signature;
      entry.locations[local] = mail.location;
      advance_name(mail.name);
      break;
    }
  }
}

void Leader::on_node_ready(Id id, const LastArrival& last, bool resized) {
  KnownId* const known = names_.find(id);
  if (!known) return;  // given up meanwhile: its ranks report again
  known->node_ready = true;
  known->last = later_of(known->last, last);
  known->resized |= resized;
  advance_id(id);
}

void Leader::on_up(int child, const Up& up, Duration now) {
  note_joined(up.joined);
  for (const Id id : up.resized) {
    if (KnownId* const known = names_.find(id)) known->resized = true;
  }
  for (std::size_t i = 0; i < up.ready.size(); ++i) {
    const Id id = up.ready[i];
    KnownId* const known = names_.find(id);
    if (!known) continue;
    known->ready_below.insert(child);
    // By this leader's clock, which gets the message now.
    if (i < up.last.size()) {
      known->last = later_of(known->last, {up.last[i].rank, now, up.last[i].late});
    }
    advance_id(id);
  }
  for (const Report& report : up.reports) {
    // Void: the child will see that the id is given up, and report again.
    if (report.counted && !names_.find(*report.counted)) continue;
    reported(report.name).below.insert_or_assign(child, report);
    advance_name(report.name);
  }
  for (const Presence& presence : up.presence) note_presence(presence, now);
  for (const Expiring& expiring : up.expiring) note_expiring(expiring, now);
  note_departed(up.departed);
}

void Leader::on_decision(const Decision& decision) {
  Decision applied = decision;
  apply(applied);
  answer(decision.asked);
  output_.decisions.push_back(std::move(applied));
}

void Leader::on_watched_arrivals() {
  for (const std::string& name : names_.reported_names(/*with_ids_only=*/true)) advance_name(name);
}

bool Leader::on_joined_arrivals() {
  if (joined_.of_node(position_).none()) return false;
  const std::vector<std::string> names = names_.ready_alone(use_);
  for (const std::string& name : names) {
    reported(name);
    advance_name(name);
  }
  return !names.empty();
}

/// The name's entry, made where there is none: where the name has an id, its ready bits count from
/// now on.
ReportedName& Leader::reported(const std::string& name) {
  if (ReportedName* const known = names_.reported(name)) return *known;
  ReportedName& added = names_.report(name, position_.local_size());
  if (added.id) output_.watch.push_back(*added.id);
  return added;
}

void Leader::note_joined(const std::vector<int>& ranks) {
  if (ranks.empty()) return;
  joined_.add(ranks);
  if (!root_) output_.up.joined.insert(output_.up.joined.end(), ranks.begin(), ranks.end());
  for (const std::string& name : names_.reported_names()) advance_name(name);
  for (const Id id : names_.ready_ids()) advance_id(id);
}

void Leader::note_departed(const std::vector<int>& ranks) {
  if (root_) {
    root_->depart(ranks);
  } else {
    output_.up.departed.insert(output_.up.departed.end(), ranks.begin(), ranks.end());
  }
}

void Leader::note_presence(const Presence& presence, Duration now) {
  if (presence.is_answer && !root_) {
    output_.up.presence.push_back(presence);
    return;
  }
  overdue_.note_presence(presence, now);
}

void Leader::note_expiring(const Expiring& expiring, Duration now) {
  if (root_) {
    overdue_.note_expiring(expiring, now);
  } else {
    output_.up.expiring.push_back(expiring);
  }
}

/// Runs the id of a name, or tells the parent, once the whole subtree is ready for it.
void Leader::advance_id(Id id) {
  KnownId& known = *names_.find(id);
  if (names_.reported(known.name)) {
    advance_name(known.name);
    return;
  }
  if (known.forwarded || !known.complete(joined_, position_)) return;
  if (!known.all_came(position_) && !allows_joined(known.signature.kind)) {
    // A disagreement between the ranks that have submitted it and those that have joined.
    reported(known.name);
    advance_name(known.name);
    return;
  }
  known.forwarded = true;
  overdue_.settle(known.name);
  if (root_) {
    root_->run(id, known.resized);
    output_.arrivals.emplace_back(id, known.last);
  } else {
    output_.up.ready.push_back(id);
    output_.up.last.push_back({known.last.rank, {}, std::max(known.last.late, Duration(0))});
    if (known.resized) output_.up.resized.push_back(id);
  }
}

/// Decided, or to the parent, once the whole subtree has reported it.
void Leader::advance_name(const std::string& name) {
  ReportedName* const entry = names_.reported(name);
  if (!entry || entry->merged) return;
  std::optional<ReadyById> ready;
  if (entry->id) ready.emplace(names_.ready_by(*entry->id, use_, position_));
  const ReadyById* const by_id = ready ? &*ready : nullptr;
  if (!entry->complete(by_id, joined_, position_)) return;
  Report merged = merged_report(name, *entry, by_id, position_);
  // The ranks that had it have lost the id that counted, and joined without a report: none waits.
  if (merged.values.empty()) return;
  entry->merged = std::move(merged);
  overdue_.settle(name);
  if (root_) {
    root_->decide(*entry->merged, entry->id);
    return;
  }
  Report report = *entry->merged;
  std::vector<int>& ranks = report.values.front().ranks;
  if (ranks.size() == position_.ranks_in_subtree().size()) ranks.clear();
  output_.up.reports.push_back(std::move(report));
}

void Leader::apply(Decision& decision) {
  for (const Id id : decision.retired) names_.give_up(id);
  for (const Failed& failed : decision.failed) {
    names_.take_reported(failed.name);
    overdue_.settle(failed.name);
    if (failed.has_id) names_.clear_ready(failed.id);
  }
  for (Assigned& assigned : decision.assigned) adopt(assigned);
  for (const Id id : decision.run) {
    if (const KnownId* const known = names_.find(id)) overdue_.settle(known->name);
    names_.clear_ready(id);
  }
  if (decision.all_joined) joined_.clear();
}

/// Fills in the node's locations.
void Leader::adopt(Assigned& assigned) {
  std::optional<ReportedName> entry = names_.take_reported(assigned.name);
  const bool all_joined = !entry;
  if (all_joined && !assigned.signature) return;
  overdue_.settle(assigned.name);
  assigned.locations = all_joined ? std::vector<Location>(position_.local_size(), kNowhere)
                                  : std::move(entry->locations);
  names_.assign(
      assigned.id, assigned.name,
      assigned.signature ? *assigned.signature : entry->merged.value().values.front().signature);
}

LeaderOutput Leader::take(Duration now) {
  if (root_) decide();
  if (const auto due = overdue_.deadline(); due && *due <= now) report_overdue(now);
  return std::exchange(output_, {});
}

/// The root's.
void Leader::decide() {
  root_->assign_ids(names_, use_, !joined_.empty());
  if (joined_.size() == position_.world_size()) root_->all_joined(joined_.last());
  root_->ask(overdue_.take_questions(kDecisionBytes / 2));
  std::optional<Decision> decision = root_->take();
  if (!decision) return;
  apply(*decision);
  output_.decisions.push_back(std::move(*decision));
}

Presence Leader::own_presence_of(const std::string& name) const {
  LocalRanks local = joined_.of_node(position_);
  std::set<int> below;
  if (const ReportedName* const entry = names_.reported(name)) {
    local |= entry->local_ranks();
    for (const auto& [child, report] : entry->below) below.insert(child);
  }
  if (const auto id = names_.id_of(name)) {
    const KnownId& known = *names_.find(*id);
    local |= known.node_ready ? position_.whole_node() : use_.ready_ranks(*id);
    below.insert(known.ready_below.begin(), known.ready_below.end());
  }
  Presence presence{name, {}, {}};
  const std::vector<int>& ranks = position_.local_ranks();
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    (local[r] ? presence.ready : presence.missing).push_back(ranks[r]);
  }
  for (const int child : below) {
    const auto subtree = position_.ranks_in_subtree(child);
    presence.ready.insert(presence.ready.end(), subtree.begin(), subtree.end());
  }
  return presence;
}

/// own_presence_of(), with what is to be said of ranks of this node: of each once.
OverdueNames::Seen Leader::remarking() const {
  return [this, said = std::set<int>()](const std::string& name) mutable {
    Presence presence = own_presence_of(name);
    if (!use_.remark) return presence;
    const auto& ranks = position_.local_ranks();
    for (const int rank : presence.missing) {  // of this node
      const auto local = std::ranges::find(ranks, rank) - ranks.begin();
      const bool is_new = said.insert(rank).second;
      presence.remarks.push_back(is_new ? use_.remark(static_cast<int>(local)) : std::string());
    }
    return presence;
  };
}

void Leader::report_overdue(Duration now) {
  if (root_) {
    auto warning = overdue_.take_warning(now, position_.ranks_in_subtree(), remarking());
    if (warning) output_.warnings.push_back(std::move(*warning));
    output_.expired = overdue_.take_expired(now, remarking());
  } else {
    std::ranges::move(overdue_.take_presence(remarking()), std::back_inserter(output_.up.presence));
  }
}

/// The root has asked about these names.
void Leader::answer(const std::vector<std::string>& names) {
  const OverdueNames::Seen seen = remarking();
  for (const std::string& name : names) {
    Presence presence = seen(name);
    presence.is_answer = true;
    output_.up.presence.push_back(std::move(presence));
  }
}

}  // namespace hora::internal
