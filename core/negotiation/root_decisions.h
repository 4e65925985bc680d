/// What the root alone does: it decides, in numbered batches, the same for every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/messages/messages.h"
#include "core/negotiation/id_clock.h"
#include "core/negotiation/known_names.h"

namespace hora {

/// A decision names tensors of about this many bytes at most; the rest follows in the next ones.
inline constexpr std::size_t kDecisionBytes = std::size_t{1} << 20;

/// The decision under construction, and what is to be in the next ones. Pure. Thread rule: one
/// thread at a time.
class RootDecisions {
 public:
  RootDecisions(int id_capacity, std::size_t ranks) : clock_(id_capacity), ranks_(ranks) {}

  /// All ranks are ready for the id.
  void run(Id id) { next_.run.push_back(id); }
  /// These ranks have called shutdown.
  void depart(const std::vector<int>& ranks);
  /// All ranks have reported a name, which has `id` or none: it gets an id, or ranks disagree.
  void decide(const Report& report, std::optional<Id> id);
  /// All ranks have called join, and the last of them was `last`.
  void all_joined(int last);
  /// Ranks are to say whether they wait under these names on other process sets.
  void ask(std::vector<std::string> names) { next_.asked = std::move(names); }

  /// Gives ids to names that have waited for them; for other names' sake ids are given up.
  /// `with_signatures`: ranks may know of the names from the decision alone.
  void assign_ids(KnownNames& names, const IdUse& use, bool with_signatures);
  /// The next decision, if there is anything in it.
  std::optional<Decision> take();

 private:
  std::optional<Id> allocate_id(KnownNames& names, const IdUse& use);
  bool give_up_for_another(Id id, bool only_idle, KnownNames& names, const IdUse& use);
  void tell_disagreed();

  IdClock clock_;
  std::size_t ranks_;
  std::vector<std::string> waiting_for_id_;  ///< agreed names, in order of agreement
  std::deque<Failed> disagreed_;             ///< not yet in a decision
  std::set<int> departed_;
  Decision next_;
  std::uint64_t number_ = 0;
};

}  // namespace hora
