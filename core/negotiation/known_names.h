/// The names that a leader knows: those that have ids, and those that are reported.
#pragma once

#include <string>

#include "core/messages/messages.h"
#include "core/negotiation/id_table.h"
#include "core/negotiation/name_reports.h"

namespace hora {

/// A name may be in both: some ranks report it, others are ready for its id. Pure. Thread rule: one
/// thread at a time.
struct KnownNames {
  IdTable ids;
  NameReports reports;

  /// Does nothing for an id that no name has.
  void give_up(Id id);
  /// Why this cannot be the next decision, given those before; empty where it can.
  std::string problem_in(const Decision& decision) const;
};

}  // namespace hora
