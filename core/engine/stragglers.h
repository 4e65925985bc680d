/// Counts, on the root of a process set, the ranks that come last, warns of a slow one, and leaves
/// what it knows where `horarun --watch` finds it.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "core/control_block/tensor_id.h"
#include "core/engine/interfaces.h"
#include "core/flight/flight_recorder.h"
#include "core/messages/messages.h"
#include "core/negotiation/arrivals.h"

namespace hora::internal {

/// Thread rule: the thread that holds the engine's progress lock.
class Stragglers {
 public:
  /// Both outlive it.
  Stragglers(const SetParts& set, const EngineParts& engine, const NotedPhases& noted,
             ProcessSet id);

  /// A decision that is about to be carried out: its names have ids from here on.
  void note_names(const Decision& decision);
  /// An id is decided.
  void count(Id id, const LastArrival& last);
  /// Who came last when this id was decided last; of several nodes, where no other rank knows it.
  LastArrival last_of(Id id) const { return last_of_[static_cast<std::size_t>(slot_of(id))]; }

  /// The final report's table.
  std::string text() const;

 private:
  void record(RecordArrivals& memory, LastArrival::Time time);

  const EngineParts& engine_;
  const NotedPhases& noted_;
  ArrivalLedger ledger_;
  std::vector<LastArrival> last_of_;  ///< by slot
  RecordWriter record_;               ///< off where nothing is to be left there
  LastArrival::Time recorded_at_{};
  // Used again by record(), which does not allocate.
  std::vector<RankArrivals> rows_;
};

}  // namespace hora::internal
