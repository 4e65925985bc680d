/// Names that ranks report because they have no id, or have it with another signature.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/messages/messages.h"
#include "core/negotiation/id_table.h"
#include "core/negotiation/joined_ranks.h"
#include "core/negotiation/tree_position.h"

namespace hora {

/// What a leader's subtree has reported of one name. Where the name has an id, ready bits of that
/// id count as reports of the id's signature, until the id is given up.
struct ReportedName {
  std::vector<std::optional<Signature>> local;  ///< by local rank
  std::vector<Location> locations;              ///< likewise
  std::map<int, Report> below = {};             ///< by child
  std::optional<Id> id = std::nullopt;          ///< the name's id where it has one
  std::optional<Report> merged = std::nullopt;  ///< what went up, or was decided by the root

  /// Local ranks that have reported it.
  std::uint64_t local_mask() const;
  /// Everyone of the subtree has reported it, is ready for its id (`by_id`: of a name that has one)
  /// or has joined.
  bool complete(const ReadyById* by_id, const JoinedRanks& joined,
                const TreePosition& position) const;
};

/// All signatures of a name that is complete(), with their ranks; who has neither reported it nor
/// is ready for its id has joined.
Report merged_report(const std::string& name, const ReportedName& reported, const ReadyById* by_id,
                     const TreePosition& position);

/// Reported names that are not yet decided. Pure. Thread rule: one thread at a time.
class NameReports {
 public:
  /// Null for a name that nobody has reported.
  ReportedName* find(const std::string& name);
  const ReportedName* find(const std::string& name) const;
  /// A name that has none, with its id where it has one.
  ReportedName& add(const std::string& name, std::size_t local_size, std::optional<Id> id);
  void erase(const std::string& name) { names_.erase(name); }
  /// Erases it, too.
  std::optional<ReportedName> take(const std::string& name);
  /// The name's id is given up: ranks that were ready for it report by name once they read this, so
  /// whatever counted them as ready is void.
  void uncount(const std::string& name, Id id);

  std::vector<std::string> names() const;
  /// Those that have ids.
  std::vector<std::string> names_with_ids() const;

 private:
  std::map<std::string, ReportedName> names_;
};

}  // namespace hora
