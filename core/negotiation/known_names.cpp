#include "core/negotiation/known_names.h"

#include <hora/printable.h>

#include <optional>
#include <set>

namespace hora {
namespace {

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

void KnownNames::give_up(Id id) {
  if (const auto name = ids.give_up(id)) reports.uncount(*name, id);
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

}  // namespace hora
