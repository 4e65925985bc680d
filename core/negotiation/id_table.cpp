#include "core/negotiation/id_table.h"

#include <algorithm>
#include <utility>

namespace hora {

bool KnownId::complete(const JoinedRanks& joined, const TreePosition& position) const {
  const auto present = [&](int child) {
    return ready_below.contains(child) || joined.all_below(child, position);
  };
  return (node_ready || joined.local_mask(position) == position.local_mask()) &&
         std::all_of(position.children().begin(), position.children().end(), present);
}

std::optional<Id> IdTable::id_of(const std::string& name) const {
  const auto known = names_.find(name);
  return known == names_.end() ? std::nullopt : std::optional(known->second);
}

KnownId* IdTable::find(Id id) {
  const auto known = ids_.find(id);
  return known == ids_.end() ? nullptr : &known->second;
}

const KnownId* IdTable::find(Id id) const {
  const auto known = ids_.find(id);
  return known == ids_.end() ? nullptr : &known->second;
}

/// All local ranks at once are not ready, until the last has announced it: its arrival would else
/// be taken for one of the next time.
ReadyById IdTable::ready_by(Id id, const IdUse& use, const TreePosition& position) const {
  const KnownId& known = ids_.at(id);
  const std::uint64_t all = position.local_mask();
  if (known.node_ready) return {id, all, known};
  const std::uint64_t mask = use.ready_mask(id);
  return {id, mask == all ? 0 : mask, known};
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

void IdTable::nobody_is_ready(Id id) {
  KnownId* const known = find(id);
  if (!known) return;
  known->node_ready = false;
  known->ready_below.clear();
  known->forwarded = false;
}

}  // namespace hora
