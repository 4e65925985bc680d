#include "core/negotiation/leader.h"

#include <fmt/format.h>
#include <hora/printable.h>

#include <iterator>

#include "core/base/text.h"

namespace hora::internal {
namespace {

/// Bytes of a name in a decision, beside its text.
constexpr std::size_t kEntryBytes = 64;

void add_value(Report& report, const Signature& signature, const std::vector<int>& ranks) {
  auto same = std::ranges::find(report.values, signature, &ReportedSignature::signature);
  if (same == report.values.end()) same = report.values.insert(same, {signature, {}});
  same->ranks.insert(same->ranks.end(), ranks.begin(), ranks.end());
  std::sort(same->ranks.begin(), same->ranks.end());
}

/// A rank that has joined can add nothing to a sum, but cannot take part in other operations.
void add_joined(Report& report, const std::vector<int>& ranks) {
  const bool allowed = std::ranges::all_of(
      report.values, [](const auto& value) { return allows_joined(value.signature.kind); });
  if (ranks.empty() || allowed) return;
  const Signature signature{.kind = OperationKind::join};
  report.values.push_back({signature, ranks});
}

template <class T>
void append(std::vector<T>& all, const std::vector<T>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

constexpr std::size_t kValuesShown = 8;

std::string differences(const Report& report) {
  std::vector<std::string_view> words;
  const auto add = [&](auto field, const char* word) {
    const auto of = [&](const ReportedSignature& v) { return std::invoke(field, v.signature); };
    const bool same = std::ranges::all_of(
        report.values, [&](const auto& v) { return of(v) == of(report.values.front()); });
    if (!same) words.push_back(word);
  };
  add(&Signature::kind, "operation");
  add(&Signature::type, "type");
  add([](const Signature& s) { return s.shape.size(); }, "number of dimensions");
  add(&Signature::shape, "shape");
  add(&Signature::op, "reduction");
  add(&Signature::prescale, "prescale");
  add(&Signature::postscale, "postscale");
  add(&Signature::root, "root");
  add(&Signature::device, "device");
  return fmt::format("{}", fmt::join(words, ", "));
}

constexpr std::size_t kNamesShown = 3;
constexpr std::size_t kGroupsShown = 4;
constexpr std::size_t kRemarksShown = 8;

/// Tensors that the same ranks wait for.
using OverdueGroup = std::vector<const Presence*>;

std::vector<OverdueGroup> grouped(std::span<const Presence> tensors) {
  std::vector<OverdueGroup> groups;
  for (const Presence& tensor : tensors) {
    const auto same = std::ranges::find_if(groups, [&](const OverdueGroup& group) {
      return group.front()->ready == tensor.ready && group.front()->missing == tensor.missing;
    });
    (same == groups.end() ? groups.emplace_back() : *same).push_back(&tensor);
  }
  return groups;
}

std::string names_text(const OverdueGroup& group) {
  if (group.size() == 1) return tensor_text(group.front()->name);
  std::string text = "tensors ";
  const std::size_t shown = std::min(group.size(), kNamesShown);
  for (std::size_t i = 0; i < shown; ++i) text += (i == 0 ? "" : ", ") + in_quotes(group[i]->name);
  if (shown < group.size()) text += fmt::format(" and {} more", group.size() - shown);
  return text;
}

std::string group_text(ProcessSet set, const OverdueGroup& group, std::span<const int> ranks) {
  const Presence& tensor = *group.front();
  std::vector<int> silent;  // of nodes that have said nothing about it
  std::ranges::copy_if(ranks, std::back_inserter(silent), [&](int rank) {
    return !std::ranges::binary_search(tensor.ready, rank) &&
           !std::ranges::binary_search(tensor.missing, rank);
  });
  const bool one = group.size() == 1;
  std::string text = names_text(group);
  if (set != kWorld) text += " of process set " + to_string(set);
  text += fmt::format(" {} waited for by ranks {} and {} not been submitted", one ? "is" : "are",
                      ranks_text(tensor.ready), one ? "has" : "have");
  if (!tensor.missing.empty()) text += " by ranks " + ranks_text(tensor.missing);
  if (!silent.empty()) {
    text += fmt::format("{} by ranks {} (nothing heard from their nodes about it)",
                        tensor.missing.empty() ? "" : ",", ranks_text(silent));
  }
  return text;
}

/// Each of an eager id's leaders sends its node's sum to all others: more are slower than a tree.
constexpr int kMostEagerNodes = 8;
/// After so many runs in a row that were decided alone, while no rank waits for another name.
constexpr int kRunsAlone = 3;

bool may_be_eager(const Signature& signature, std::size_t most_bytes) {
  return signature.kind == OperationKind::allreduce && signature.op != ReduceOp::adasum &&
         signature.device == DeviceKind::cpu && signature.bytes() > 0 &&
         signature.bytes() <= most_bytes;
}

/// Ranks report overdue names within a tick of one another; the rest is for the reports, and the
/// answers to the root's question, to arrive before it prints.
constexpr Duration kGatherTime = kOverdueTick + std::chrono::milliseconds(250);

}  // namespace

Report merged_report(const std::string& name, const ReportedName& reported,
                     const TreePosition& position) {
  Report report{name, {}};
  const std::vector<int>& ranks = position.local_ranks();
  std::vector<int> joined;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (reported.local[r]) {
      add_value(report, *reported.local[r], {ranks[r]});
    } else {
      joined.push_back(ranks[r]);
    }
  }
  for (const int child : position.children()) {
    const auto subtree = position.ranks_in_subtree(child);
    const auto from_child = reported.below.find(child);
    if (from_child == reported.below.end()) {
      joined.insert(joined.end(), subtree.begin(), subtree.end());
      continue;
    }
    for (const ReportedSignature& value : from_child->second.values) {
      add_value(report, value.signature, value.ranks.empty() ? subtree : value.ranks);
    }
  }
  add_joined(report, joined);
  // The text of an error depends on which rank reported what, not on the order.
  std::ranges::sort(report.values, {}, [](const auto& value) { return value.ranks.front(); });
  return report;
}

std::vector<NodeSum> EagerIds::take_complete(Id id) {
  State& state = rounds_.at(id);
  const auto lacks_one = [](const auto& of_node) { return of_node.empty(); };
  if (std::ranges::any_of(state.sums, lacks_one)) return {};
  ++state.complete;
  std::vector<NodeSum> sums;
  for (auto& of_node : state.sums) {
    sums.push_back(std::move(of_node.front()));
    of_node.pop_front();
  }
  return sums;
}

std::vector<Rounds> EagerIds::complete() const {
  std::vector<Rounds> all;
  for (const auto& [id, state] : rounds_) all.push_back({id, state.complete});
  return all;
}

bool EagerIds::reached(std::span<const Rounds> rounds) const {
  return std::ranges::all_of(rounds, [&](const Rounds& each) {
    const State* const state = find_value(rounds_, each.id);
    return !state || state->complete >= each.complete;
  });
}

Leader::Leader(const Topology& topology, int node, int id_capacity, IdUse use, ProcessSet set,
               Duration warning_interval)
    : position_(topology, node),
      use_(std::move(use)),
      set_(set),
      eager_(topology.nodes()),
      overdue_(position_.is_root(), warning_interval) {
  const auto largest = std::ranges::max(topology.ranks_of_node, {}, &std::vector<int>::size).size();
  if (!position_.is_root()) return;
  root_ = {.id_ring = IdRing(id_capacity),
           .entry_bytes = kEntryBytes + largest * sizeof(Location),
           .most_eager = static_cast<std::size_t>(id_capacity) / 2};
}

std::string Leader::problem_in(const Decision& decision) const {
  std::set<Id> retired;
  for (const Id id : decision.retired) {
    if (!known_.contains(id)) return fmt::format("id {} is given up, which no name has", id);
    retired.insert(id);
  }
  for (const Assigned& assigned : decision.assigned) {
    const auto problem = [&](const std::string& which) {
      return fmt::format("id {} for {}, which {}", assigned.id, in_quotes(assigned.name), which);
    };
    const Id* const known = find_value(ids_, assigned.name);
    if (known && !retired.contains(*known)) return problem(fmt::format("has id {}", *known));
    const KnownId* const owner = find_value(known_, assigned.id);
    if (owner && !retired.contains(assigned.id)) return problem(in_quotes(owner->name) + " has");
    const ReportedName* const reported = find_value(reports_, assigned.name);
    if (reported && !reported->merged && !assigned.signature) {
      return problem("not all ranks of this node have reported");
    }
  }
  for (const Id id : decision.run) {
    if (!known_.contains(id)) return fmt::format("id {} is to run, which no name has", id);
  }
  return {};
}

void Leader::on_mail(int local_rank, const Mail& mail, Duration now) {
  const auto local = static_cast<std::size_t>(local_rank);
  const int rank = position_.local_ranks()[local];
  switch (mail.kind) {
    case MailKind::departed:
      output_.up.departed.push_back(rank);
      append(output_.up.after, eager_.complete());
      break;
    case MailKind::joined:
      note_joined({rank});
      break;
    case MailKind::overdue:
      overdue_.note(mail.name, now);
      break;
    case MailKind::expiring:
      output_.up.expiring.push_back({mail.name, rank, mail.expiry.value_or(Expiry{})});
      break;
    case MailKind::report: {
      ReportedName& entry = reported(mail.name);
      entry.local[local] = mail.signature;
      entry.locations[local] = mail.location;
      if (const Id* const id = find_value(ids_, mail.name)) dispute(*id);
      advance_name(mail.name);
      break;
    }
  }
}

void Leader::on_node_ready(Id id, const LastArrival& last, bool resized) {
  KnownId* const known = find_value(known_, id);
  if (!known) return;  // given up meanwhile: its ranks report again
  known->node_ready = true;
  known->last = later_of(known->last, last);
  known->resized |= resized;
  if (!eager_.contains(id) || known->disputed) return advance_id(id);
  NodeSum& sum = output_.sums.emplace_back(NodeSum{id, known->last, use_.eager.node_sum(id)});
  sum.last.late = std::max(sum.last.late, Duration(0));
  add_sum(position_.node(), sum);
}

bool Leader::on_sum(int node, NodeSum sum, Duration now) {
  const KnownId* const known = find_value(known_, sum.id);
  if (!known || !eager_.contains(sum.id)) return true;  // given up meanwhile
  if (sum.data.size() != known->signature.bytes()) return false;
  sum.last.at = now;  // by this leader's clock
  return add_sum(node, std::move(sum));
}

bool Leader::add_sum(int node, NodeSum sum) {
  const Id id = sum.id;
  KnownId& known = known_.at(id);
  if (!eager_.add(node, std::move(sum))) return false;
  if (auto sums = eager_.take_complete(id); !sums.empty()) {
    LastArrival last;
    for (const NodeSum& each : sums) last = later_of(last, each.last);
    if (root_) output_.arrivals.emplace_back(id, last);
    overdue_.settle(known.name);
    known.last = {};
    output_.complete.push_back(std::move(sums));
  }
  known.node_ready = eager_.is_ready(id, position_.node());
  known.ready_below.clear();
  for (const int child : position_.children()) {
    if (eager_.is_ready(id, child)) known.ready_below.insert(child);
  }
  if (known.anyone_ready()) advance_id(id);
  return true;
}

void Leader::on_up(int child, const Up& up, Duration now) {
  note_joined(up.joined);
  for (const Id id : up.resized) {
    if (KnownId* const known = find_value(known_, id)) known->resized = true;
  }
  for (std::size_t i = 0; i < up.ready.size(); ++i) {
    const Id id = up.ready[i];
    KnownId* const known = find_value(known_, id);
    if (!known) continue;
    known->ready_below.insert(child);
    // By this leader's clock, which gets the message now.
    if (i < up.last.size()) {
      known->last = later_of(known->last, {up.last[i].rank, now, up.last[i].late});
    }
    advance_id(id);
  }
  for (const Id id : up.disputed) {
    if (known_.contains(id)) dispute(id);
  }
  for (const Report& report : up.reports) {
    reported(report.name).below.insert_or_assign(child, report);
    advance_name(report.name);
  }
  for (const Presence& presence : up.presence) {
    if (presence.is_answer && !root_) {
      output_.up.presence.push_back(presence);
    } else {
      overdue_.note_presence(presence, now);
    }
  }
  append(output_.up.expiring, up.expiring);
  append(output_.up.departed, up.departed);
}

void Leader::on_decision(const Decision& decision) {
  Decision applied = decision;
  apply(applied);
  const OverdueNames::Seen seen = remarking();
  for (const std::string& name : decision.asked) {
    output_.up.presence.push_back(seen(name));
    output_.up.presence.back().is_answer = true;
  }
  output_.decisions.push_back(std::move(applied));
}

bool Leader::on_joined_arrivals() {
  const std::vector<Id> ids = joined_arrivals();
  for (const Id id : ids) dispute(id);
  return !ids.empty();
}

/// Ids that are not disputed, and for which some rank of the node is ready while others of it have
/// joined.
std::vector<Id> Leader::joined_arrivals() const {
  std::vector<Id> ids;
  if (joined_.of_node(position_).none()) return ids;
  for (const auto& [id, known] : known_) {
    if (!known.disputed && use_.ready_ranks(id).any()) ids.push_back(id);
  }
  return ids;
}

/// The name's entry, made where there is none.
ReportedName& Leader::reported(const std::string& name) {
  const auto [entry, is_new] = reports_.try_emplace(name);
  if (is_new) {
    entry->second.local.resize(position_.local_size());
    entry->second.locations.assign(position_.local_size(), kNowhere);
  }
  return entry->second;
}

void Leader::note_joined(const std::vector<int>& ranks) {
  if (ranks.empty()) return;
  joined_.add(ranks);
  append(output_.up.joined, ranks);
  for (const auto& [name, entry] : reports_) advance_name(name);
  for (const auto& [id, known] : known_) {
    if (known.anyone_ready()) advance_id(id);
  }
}

/// Has the root give the id up.
void Leader::dispute(Id id) {
  if (std::exchange(known_.at(id).disputed, true)) return;
  output_.up.disputed.push_back(id);
  if (eager_.contains(id)) append(output_.up.after, eager_.complete());
}

/// Tells the parent of an id once the whole subtree is ready for it.
void Leader::advance_id(Id id) {
  KnownId& known = known_.at(id);
  if (known.forwarded || known.disputed || !known.complete(joined_, position_)) return;
  // A disagreement between the ranks that have submitted it and those that have joined; of an eager
  // id the root's, as nodes that have joined send no sum.
  const bool is_eager = eager_.contains(id);
  const bool all_came = known.all_came(position_);
  if (!all_came && (is_eager ? root_.has_value() : !allows_joined(known.signature.kind))) {
    return dispute(id);
  }
  if (is_eager) return;
  known.forwarded = true;
  overdue_.settle(known.name);
  output_.up.ready.push_back(id);
  output_.up.last.push_back(known.last);
  output_.up.last.back().late = std::max(known.last.late, Duration(0));
  if (known.resized) output_.up.resized.push_back(id);
}

/// Tells the parent of a name once the whole subtree has reported it.
void Leader::advance_name(const std::string& name) {
  ReportedName* const entry = find_value(reports_, name);
  if (!entry || entry->merged || !entry->complete(joined_, position_)) return;
  entry->merged = merged_report(name, *entry, position_);
  overdue_.settle(name);
  const Id* const id = find_value(ids_, name);
  if (id && root_) dispute(*id);
  Report& report = output_.up.reports.emplace_back(*entry->merged);
  std::vector<int>& ranks = report.values.front().ranks;
  if (ranks.size() == position_.ranks_in_subtree().size()) ranks.clear();
}

/// Ranks that were ready for the id report by name.
void Leader::give_up(Id id) {
  eager_.erase(id);
  const auto known = known_.extract(id);
  if (!known.empty()) ids_.erase(known.mapped().name);
}

void Leader::apply(Decision& decision) {
  for (const Id id : decision.retired) give_up(id);
  for (const Failed& failed : decision.failed) {
    reports_.erase(failed.name);
    overdue_.settle(failed.name);
  }
  for (Assigned& assigned : decision.assigned) adopt(assigned);
  for (const Id id : decision.run) {
    KnownId* const known = find_value(known_, id);
    if (!known) continue;
    overdue_.settle(known->name);
    *known = {.name = std::move(known->name),
              .signature = std::move(known->signature),
              .disputed = known->disputed,
              .runs_alone = known->runs_alone};
  }
  for (const Id id : decision.eager) {
    if (known_.contains(id)) eager_.insert(id);
  }
  if (!decision.departed.empty()) eager_.clear();  // what waits is failed
  if (decision.all_joined) joined_.clear();
}

/// Fills in the node's locations.
void Leader::adopt(Assigned& assigned) {
  auto entry = reports_.extract(assigned.name);
  const bool all_joined = entry.empty();
  if (all_joined && !assigned.signature) return;
  overdue_.settle(assigned.name);
  assigned.locations = all_joined ? std::vector<Location>(position_.local_size(), kNowhere)
                                  : std::move(entry.mapped().locations);
  ids_[assigned.name] = assigned.id;
  known_[assigned.id] = {.name = assigned.name,
                         .signature = assigned.signature
                                          ? *assigned.signature
                                          : entry.mapped().merged.value().values.front().signature};
}

LeaderOutput Leader::take(Duration now) {
  if (root_) decide(now);
  if (const auto due = overdue_.deadline(); due && *due <= now) {
    std::vector<Presence> overdue = overdue_.take_presence(now, remarking());
    output_.expired = overdue_.take_expired(now, remarking());
    if (!root_) {
      std::ranges::move(overdue, std::back_inserter(output_.up.presence));
    } else if (!overdue.empty()) {
      output_.warnings.push_back(overdue_text(set_, overdue, position_.ranks_in_subtree()));
    }
  }
  return std::exchange(output_, {});
}

/// The root's: what it would tell a parent goes into a decision.
void Leader::decide(Duration now) {
  Up up = std::exchange(output_.up, {});
  for (const Expiring& expiring : up.expiring) overdue_.note_expiring(expiring, now);
  for (Report& report : up.reports) root_->waiting.push_back(std::move(report.name));
  append(root_->disputed, up.disputed);
  root_->departed.insert(up.departed.begin(), up.departed.end());
  for (std::size_t i = 0; i < up.ready.size(); ++i) {
    output_.arrivals.emplace_back(up.ready[i], up.last[i]);
  }
  Decision next{.run = std::move(up.ready),
                .resized = std::move(up.resized),
                .departed = std::move(up.departed)};
  if (!next.departed.empty()) next.after = eager_.complete();
  decide_names(next);
  choose_eager(next);
  std::ranges::sort(next.departed);
  next.finished = !next.departed.empty() && root_->departed.size() == position_.world_size();
  next.all_joined = joined_.size() == position_.world_size();
  if (next.all_joined) next.last_joined = joined_.last();
  next.asked = overdue_.take_questions(kDecisionBytes / 2);
  if (next.empty()) return;
  apply(next);
  output_.decisions.push_back(std::move(next));
}

/// Gives up disputed ids, decides the names that wait for that, and gives ids to those on which
/// ranks agree, if need be others'.
void Leader::decide_names(Decision& next) {
  const auto retire = [&](Id id, bool only_idle) {
    if (!use_.retire(id, only_idle)) return false;
    next.retired.push_back(id);
    if (eager_.contains(id)) append(next.after, eager_.complete());
    give_up(id);
    return true;
  };
  std::erase_if(root_->disputed, [&](Id id) {
    if (!known_.contains(id)) return true;  // given up for another
    if (!retire(id, false)) return false;
    root_->id_ring.release(id);
    return true;
  });
  const auto allocate = [&](bool only_idle) {
    return root_->id_ring.next([&](Id old) {
      const KnownId* const known = find_value(known_, old);
      if (!known || known->forwarded) return false;                 // it runs in this decision
      if (known->node_ready && eager_.contains(old)) return false;  // it may be complete elsewhere
      const bool idle = !known->anyone_ready() && !reports_.contains(known->name);
      return (idle || !only_idle) && retire(old, only_idle);
    });
  };
  std::size_t bytes = 0;
  bool exhausted = false;
  std::erase_if(root_->waiting, [&](const std::string& name) {
    // The old id goes first.
    if (bytes >= kDecisionBytes || ids_.contains(name)) return false;
    const ReportedName* const reported = find_value(reports_, name);
    if (!reported || !reported->merged) return true;
    const Report& report = *reported->merged;
    if (report.values.size() > 1) {
      const Failed& failed = next.failed.emplace_back(Failed{name, mismatch_text(report)});
      bytes += name.size() + failed.text.size() + kEntryBytes;
      return true;
    }
    // First an id that no rank is ready for; else one whose early ranks will report it again.
    std::optional<Id> id = exhausted ? std::nullopt : allocate(true);
    if (!id && !exhausted) id = allocate(false);
    exhausted = !id;
    if (exhausted) return false;
    bytes += name.size() + root_->entry_bytes;
    Assigned& assigned = next.assigned.emplace_back(Assigned{name, *id, {}});
    // Ranks that have joined know the name from here alone.
    if (!joined_.empty()) assigned.signature = report.values.front().signature;
    return true;
  });
}

/// A small allreduce for which ranks wait one at a time, as for a loss or a norm.
void Leader::choose_eager(Decision& next) {
  const auto nodes = static_cast<int>(position_.children().size()) + 1;
  const bool is_possible = nodes == position_.nodes() && nodes <= kMostEagerNodes &&
                           joined_.empty() && next.run.size() == 1 &&
                           eager_.size() < root_->most_eager;
  for (const Id id : next.run) {
    KnownId* const known = find_value(known_, id);
    if (!known) continue;  // given up
    const bool may_be = is_possible && may_be_eager(known->signature, use_.eager.most_bytes);
    known->runs_alone = may_be ? known->runs_alone + 1 : 0;
    if (known->runs_alone < kRunsAlone) continue;
    known->runs_alone = 0;
    const bool others_wait = std::ranges::any_of(known_, [&](const auto& entry) {
      return entry.first != id && entry.second.anyone_ready();
    });
    if (!others_wait) next.eager.push_back(id);
  }
}

/// `said`: ranks of this node with remarks, each once; null: without remarks.
Presence Leader::own_presence_of(const std::string& name, std::set<int>* said) const {
  LocalRanks local = joined_.of_node(position_);
  std::set<int> below;
  if (const ReportedName* const entry = find_value(reports_, name)) {
    local |= entry->local_ranks();
    for (const auto& [child, report] : entry->below) below.insert(child);
  }
  if (const Id* const id = find_value(ids_, name)) {
    const KnownId& known = known_.at(*id);
    local |= known.node_ready ? position_.whole_node() : use_.ready_ranks(*id);
    below.insert(known.ready_below.begin(), known.ready_below.end());
  }
  Presence presence{name, {}, {}};
  const std::vector<int>& ranks = position_.local_ranks();
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    (local[r] ? presence.ready : presence.missing).push_back(ranks[r]);
    if (local[r] || !said || !use_.remark) continue;
    const bool is_new = said->insert(ranks[r]).second;
    presence.remarks.push_back(is_new ? use_.remark(static_cast<int>(r)) : std::string());
  }
  for (const int child : below) {
    const auto subtree = position_.ranks_in_subtree(child);
    presence.ready.insert(presence.ready.end(), subtree.begin(), subtree.end());
  }
  return presence;
}

OverdueNames::Seen Leader::remarking() const {
  return [this, said = std::set<int>()](const std::string& name) mutable {
    return own_presence_of(name, &said);
  };
}

std::string mismatch_text(const Report& report) {
  const auto& values = report.values;
  const auto joined = std::ranges::find_if(
      values, [](const auto& v) { return v.signature.kind == OperationKind::join; });
  if (joined != values.end()) {
    const auto other = joined == values.begin() ? joined + 1 : values.begin();
    return fmt::format(
        "{}: {} called join() and nothing more to bring: only an allreduce goes on then, and {} "
        "submitted {}",
        tensor_text(report.name), ranks_have(joined->ranks), named_ranks(other->ranks),
        to_string(other->signature));
  }
  std::vector<std::string> shown;
  for (const ReportedSignature& value : values) {
    if (shown.size() == kValuesShown) {
      shown.push_back(fmt::format("and {} other values", values.size() - kValuesShown));
      break;
    }
    shown.push_back(named_ranks(value.ranks) + ": " + to_string(value.signature));
  }
  return fmt::format(
      "{}: ranks disagree about its {}: {}. Submit the same operation, type, shape, reduction and "
      "root under one name.",
      tensor_text(report.name), differences(report), fmt::join(shown, "; "));
}

std::string remarks_text(std::span<const std::string> remarks) {
  const std::size_t shown = std::min(remarks.size(), kRemarksShown);
  const std::string text = fmt::format("{}", fmt::join(remarks.first(shown), "; "));
  if (remarks.size() == shown) return text;
  return fmt::format("{}; and {} more ranks", text, remarks.size() - shown);
}

std::string overdue_text(ProcessSet set, std::span<const Presence> tensors,
                         std::span<const int> ranks) {
  std::string text;
  std::size_t left = tensors.size();
  std::size_t shown = 0;
  for (const OverdueGroup& group : grouped(tensors)) {
    if (shown++ == kGroupsShown) break;
    text += (text.empty() ? "" : "; ") + group_text(set, group, ranks);
    left -= group.size();
  }
  if (left > 0) text += fmt::format("; and {} more tensors wait for other ranks", left);
  text += ". Do all ranks call the same collectives? Is one of them slow, stopped or gone?";
  std::map<int, std::string> of_rank;
  for (const Presence& tensor : tensors) {
    for (std::size_t i = 0; i < tensor.remarks.size(); ++i) {
      if (!tensor.remarks[i].empty()) of_rank[tensor.missing[i]] = tensor.remarks[i];
    }
  }
  std::vector<std::string> remarks;
  for (const auto& [rank, remark] : of_rank) remarks.push_back(remark);
  return text + (remarks.empty() ? "" : " ") + remarks_text(remarks);
}

void OverdueNames::Heard::add(const Presence& presence) {
  for (const int rank : presence.ready) ready[rank] = true;
  for (std::size_t i = 0; i < presence.missing.size(); ++i) {
    const int rank = presence.missing[i];
    ready[rank] = false;
    if (i < presence.remarks.size() && !presence.remarks[i].empty()) {
      remarks[rank] = presence.remarks[i];
    }
  }
}

Presence OverdueNames::Heard::with(const Presence& seen) const {
  Heard all = *this;
  all.add(seen);
  Presence presence{seen.name, {}, {}};
  for (const auto& [rank, is_ready] : all.ready) {
    (is_ready ? presence.ready : presence.missing).push_back(rank);
    if (!is_ready && !all.remarks.empty()) presence.remarks.push_back(all.remarks[rank]);
  }
  return presence;
}

void OverdueNames::note(const std::string& name, Duration now) {
  const bool is_first =
      std::ranges::none_of(names_, [](const auto& entry) { return entry.second.is_overdue; });
  if (std::exchange(names_[name].is_overdue, true)) return;
  if (at_root_) to_ask_.push_back(name);
  if (is_first) report_at_ = at_root_ ? std::max(now + kGatherTime, quiet_until_) : now;
}

void OverdueNames::note_expiring(const Expiring& expiring, Duration now) {
  const Duration at = now + expiring.expiry.left;
  Heard& heard = names_[expiring.name];
  // All leaders are asked about it.
  if (!heard.expiring) to_ask_.push_back(expiring.name);
  if (!heard.expiring || at < heard.expires_at) {
    heard.expiring = expiring;
    heard.expires_at = at;
  }
  heard.ready[expiring.rank] = true;
}

std::optional<Duration> OverdueNames::deadline() const {
  std::optional<Duration> first;
  const auto consider = [&](Duration at) { first = std::min(first.value_or(at), at); };
  for (const auto& [name, heard] : names_) {
    if (heard.is_overdue) consider(report_at_);
    if (heard.expiring) consider(heard.expires_at);
  }
  return first;
}

std::vector<Presence> OverdueNames::take_presence(Duration now, const Seen& seen) {
  std::vector<Presence> overdue;
  if (report_at_ > now) return overdue;
  for (auto& [name, heard] : names_) {
    if (!std::exchange(heard.is_overdue, false)) continue;
    Presence presence = heard.with(seen(name));
    // Else it was decided meanwhile.
    if (!presence.ready.empty()) overdue.push_back(std::move(presence));
  }
  forget_told();
  if (!overdue.empty()) quiet_until_ = now + warning_interval_;
  return overdue;
}

std::vector<Expired> OverdueNames::take_expired(Duration now, const Seen& seen) {
  std::vector<Expired> expired;
  for (auto& [name, heard] : names_) {
    if (!heard.expiring || heard.expires_at > now) continue;
    Presence presence = heard.with(seen(name));
    // Where the rank does not wait for others any more, it has been decided meanwhile.
    if (std::ranges::binary_search(presence.ready, heard.expiring->rank)) {
      expired.push_back({*heard.expiring, std::move(presence)});
    }
    heard.expiring.reset();
  }
  forget_told();
  return expired;
}

std::vector<std::string> OverdueNames::take_questions(std::size_t bytes) {
  std::vector<std::string> names;
  for (std::size_t taken = 0; !to_ask_.empty() && taken < bytes; to_ask_.pop_front()) {
    taken += to_ask_.front().size();
    names.push_back(std::move(to_ask_.front()));
  }
  return names;
}

}  // namespace hora::internal
