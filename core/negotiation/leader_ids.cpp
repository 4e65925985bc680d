/// The root's giving of ids to names, and what every leader does when one is given up.
#include <hora/printable.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "core/negotiation/leader.h"

namespace hora {
namespace {

/// Of a name in a decision, beside its text.
constexpr std::size_t kEntryBytes = 64;

/// The next id of the same slot.
constexpr Id successor(Id id) {
  return make_id(slot_of(id), (generation_of(id) + 1) & 0xffffu);
}

}  // namespace

/// Ranks that were ready for the id report by name once they read this: whatever counted them as
/// ready is void.
void Leader::give_up(Id id) {
  const auto known = assignments_.find(id);
  if (known == assignments_.end()) return;
  if (const auto entry = pending_.find(known->second.name); entry != pending_.end()) {
    Pending& disputed = entry->second;
    disputed.id.reset();
    std::erase_if(disputed.below, [&](const auto& report) { return report.second.counted == id; });
    if (disputed.merged && disputed.merged->counted == id) disputed.merged.reset();
  }
  names_.erase(known->second.name);
  assignments_.erase(known);
}

bool Leader::give_up_for_another(Id id, bool only_idle) {
  const auto known = assignments_.find(id);
  if (known == assignments_.end()) return false;
  const Assignment& assignment = known->second;
  if (assignment.forwarded) return false;  // it runs in this decision
  const auto reported = pending_.find(assignment.name);
  // Decided already: it fails in this decision, or gives its own id up when its turn comes.
  if (reported != pending_.end() && reported->second.merged) return false;
  const bool idle =
      !assignment.node_ready && assignment.ready_below.empty() && reported == pending_.end();
  if ((only_idle && !idle) || !use_.retire(id, only_idle)) return false;
  next_.retired.push_back(id);
  give_up(id);
  return true;
}

std::optional<Id> Leader::allocate_id() {
  std::optional<Id> id = clock_.unused();
  // First an id that no rank is ready for; else one whose early ranks will report it again.
  for (const bool only_idle : {true, false}) {
    if (id) break;
    id = clock_.next(use_.last_run, [&](Id old) { return give_up_for_another(old, only_idle); });
    if (id) id = successor(*id);
  }
  if (id) clock_.assign(*id, use_.last_run(*id));
  return id;
}

void Leader::tell_disagreed() {
  for (std::size_t bytes = 0; !disagreed_.empty() && bytes < kDecisionBytes;) {
    bytes += disagreed_.front().name.size() + disagreed_.front().text.size() + kEntryBytes;
    next_.failed.push_back(std::move(disagreed_.front()));
    disagreed_.pop_front();
  }
}

void Leader::assign_waiting() {
  std::size_t bytes = 0;
  bool exhausted = false;
  std::erase_if(waiting_for_id_, [&](const std::string& name) {
    if (bytes >= kDecisionBytes) return false;
    const auto agreed = pending_.find(name);
    // Its ranks report again, those that an id given up meanwhile had counted among them.
    const auto is_void = [&] { return agreed == pending_.end() || !agreed->second.merged; };
    if (is_void()) return true;
    std::optional<Id> id = agreed->second.id;
    if (id) {
      // All ranks have changed the signature alike: the old id goes, the new one gets its own.
      if (!use_.retire(*id, false)) return false;
      next_.retired.push_back(*id);
      give_up(*id);
      if (is_void()) return true;
      id = successor(*id);
      clock_.assign(*id, use_.last_run(*id));
    } else {
      if (exhausted) return false;
      id = allocate_id();
      exhausted = !id;
      if (exhausted) return false;
    }
    bytes += name.size() + kEntryBytes;
    Assigned& assigned = next_.assigned.emplace_back();
    assigned.name = name;
    assigned.id = *id;
    if (!joined_.empty()) assigned.signature = agreed->second.merged->values.front().signature;
    return true;
  });
}

std::string Leader::problem_in(const Decision& decision) const {
  const auto text = [](Id id) { return "id " + std::to_string(id); };
  std::set<Id> retired;
  for (const Id id : decision.retired) {
    if (!assignments_.contains(id)) return text(id) + " is given up, which no name has";
    retired.insert(id);
  }
  for (const Assigned& assigned : decision.assigned) {
    const std::string what = text(assigned.id) + " for " + in_quotes(assigned.name);
    const auto known = names_.find(assigned.name);
    if (known != names_.end() && !retired.contains(known->second)) {
      return what + ", which has " + text(known->second);
    }
    const auto owner = assignments_.find(assigned.id);
    if (owner != assignments_.end() && !retired.contains(assigned.id)) {
      return what + ", which " + in_quotes(owner->second.name) + " has";
    }
    const auto entry = pending_.find(assigned.name);
    const auto agreed = [&](const Pending& pending) {
      const auto& counted = pending.merged ? pending.merged->counted : std::nullopt;
      return pending.merged && !(counted && retired.contains(*counted));
    };
    if (entry != pending_.end() && !agreed(entry->second) && !assigned.signature) {
      return what + ", which not all ranks of this node have reported";
    }
  }
  for (const Id id : decision.run) {
    if (!assignments_.contains(id)) return text(id) + " is to run, which no name has";
  }
  return {};
}

}  // namespace hora
