#include "core/negotiation/root_decisions.h"

#include <algorithm>
#include <utility>

#include "core/negotiation/overdue_names.h"

namespace hora::internal {
namespace {

/// Of a name in a decision, beside its text.
constexpr std::size_t kEntryBytes = 64;

}  // namespace

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
  const KnownId* const known = names.ids.find(id);
  if (!known) return false;
  if (known->forwarded) return false;  // it runs in this decision
  const ReportedName* const reported = names.reports.find(known->name);
  // Decided already: it fails in this decision, or gives its own id up when its turn comes.
  if (reported && reported->merged) return false;
  const bool idle = !known->anyone_ready() && !reported;
  if ((only_idle && !idle) || !use.retire(id, only_idle)) return false;
  next_.retired.push_back(id);
  names.give_up(id);
  return true;
}

std::optional<Id> RootDecisions::allocate_id(KnownNames& names, const IdUse& use) {
  std::optional<Id> id = clock_.unused();
  // First an id that no rank is ready for; else one whose early ranks will report it again.
  for (const bool only_idle : {true, false}) {
    if (id) break;
    id = clock_.next(use.last_run,
                     [&](Id old) { return give_up_for_another(old, only_idle, names, use); });
    if (id) id = IdClock::successor(*id);
  }
  if (id) clock_.assign(*id, use.last_run(*id));
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
    const ReportedName* const agreed = names.reports.find(name);
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
      id = IdClock::successor(*id);
      clock_.assign(*id, use.last_run(*id));
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
  next_.number = number_++;
  return std::exchange(next_, {});
}

}  // namespace hora::internal
