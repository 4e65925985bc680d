/// Tensors that are about to run out of time: what the root has heard of them until then.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/messages/messages.h"
#include "core/negotiation/overdue_names.h"

namespace hora::internal {

/// A tensor that has run out of time on a rank, and what the root knows of all ranks.
struct Expired {
  Expiring expiring;
  Presence presence;
};

/// The root's: ranks report their limits to it a little before these end, so that the answers of
/// all nodes are there when it reports for the whole job. Pure. Thread rule: one thread at a time.
class ExpiringNames {
 public:
  /// The rank that runs out of time first stands for a name. True for a name that is new here: all
  /// leaders are to be asked about it.
  bool note(const Expiring& expiring, Duration now);
  /// What a leader says of its node; the last word holds. Ignored for other names.
  void note_presence(const Presence& presence);
  /// The name waits for no rank.
  void settle(const std::string& name) { names_.erase(name); }

  /// When the first one runs out of time.
  std::optional<Duration> deadline() const;
  /// Names that have run out of time by now, and their ranks; forgotten here. `own`: by the
  /// leader's own records.
  std::vector<Expired> take(Duration now, const OverdueNames::Seen& own);
  /// `own`, with what has been heard of the ranks that it does not name.
  Presence completed(Presence own) const;

 private:
  struct Heard {
    Expiring expiring;
    Duration at{};
    std::map<int, bool> ready = {};  ///< by rank
    std::map<int, std::string> remarks = {};
  };
  static Presence completed(Presence own, const Heard& heard);

  std::map<std::string, Heard> names_;
};

}  // namespace hora::internal
