/// This rank's view of names: their ids and what is in flight.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/engine/operations.h"

namespace hora::internal {

/// What a rank knows of one name.
struct NameEntry {
  std::optional<Id> id;
  Signature signature;                     ///< the id's
  std::shared_ptr<Submission> submission;  ///< until its handle releases it
  /// The id's, of exchanges to which ranks may bring other extents each time; else null.
  std::shared_ptr<LastExtents> last_extents;
  /// Where the name has an id: ended submissions that its next calls use again. Two, because the
  /// thread that has reported the end of one may hold it for a while.
  std::array<std::shared_ptr<Submission>, 2> spares;
};

/// Thread rule: guarded by the engine's table lock.
class NameTable {
 public:
  explicit NameTable(int id_capacity) : in_flight_(static_cast<std::size_t>(id_capacity)) {}

  /// Enters one of the name's submissions before, renewed, where nothing refers to it any more, and
  /// where none is in flight; else null.
  std::shared_ptr<Submission> enter_again(std::string_view name);
  /// Reserves the submission's name. False: it is in flight already.
  bool enter(const std::shared_ptr<Submission>& submission);
  /// The name is free again.
  void leave(const Submission& submission);
  /// "<prefix>.<k>" with the lowest k that is not in flight.
  std::string unnamed(std::string_view prefix) const;

  /// The submission that waits for `id` on this rank, or null.
  std::shared_ptr<Submission> waiting_for(Id id) const;
  /// Likewise; it does so no longer.
  std::shared_ptr<Submission> take_waiting(Id id);
  void set_waiting(Id id, std::shared_ptr<Submission> submission);
  /// The submission of this name that waits for other ranks, or null.
  std::shared_ptr<Submission> undecided(const std::string& name) const;

  /// Decisions. assign returns the name's submission, null where this rank has none undecided.
  std::shared_ptr<Submission> assign(const std::string& name, Id id);
  /// The submission that was ready for the id and must be reported by name instead, or null.
  std::shared_ptr<Submission> retire(Id id);
  /// The undecided submission of this name, or null; it no longer waits for an id.
  std::shared_ptr<Submission> take_undecided(const std::string& name);

  // For a rank that has joined: names that others submit.
  /// The name has this id and signature.
  void learn(const std::string& name, Id id, const Signature& signature);
  /// Null for an id that is not known.
  const Signature* signature_of(Id id) const;
  const std::unordered_map<Id, std::string>& names_of_ids() const { return names_of_ids_; }

  std::vector<std::shared_ptr<Submission>> unfinished() const;
  /// Those that still have their names, finished or not: no call has got their errors.
  std::vector<std::shared_ptr<Submission>> uncollected() const;
  /// A name that is not free, if any.
  std::optional<std::string> taken() const;

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };
  std::unordered_map<std::string, NameEntry, Hash, std::equal_to<>> entries_;
  std::unordered_map<Id, std::string> names_of_ids_;
  std::vector<std::shared_ptr<Submission>> in_flight_;  ///< by slot
};

}  // namespace hora::internal
