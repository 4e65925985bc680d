/// Looks at the ranks that have not called shutdown() while this one waits in it.
#pragma once

#include <hora/error.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/engine/interfaces.h"
#include "core/engine/waits.h"

namespace hora::internal {

/// Of the world, on one rank. Who has called it is known of this node from the control block, of
/// other nodes from decisions. A rank may work alone for as long as it likes while others wait
/// here: it is named. One whose process is stopped ends the job. Thread rule: the thread that holds
/// the engine's progress lock.
class DepartureWatch {
 public:
  /// Both outlive it; `stalls`: the world's.
  DepartureWatch(const EngineParts& engine, const StallWatch& stalls)
      : engine_(engine), stalls_(stalls) {}

  /// A decision says that these world ranks have called it.
  void note(const std::vector<int>& ranks) { departed_.insert(ranks.begin(), ranks.end()); }

  /// What this rank is to say of the others: it has waited for HORA_STALL_WARNING, and one that has
  /// not called shutdown() is of its node, or its node has the lowest rank that has.
  std::optional<StallWatch::Stall> stall(Duration time) const;

  /// A process of this host that has been stopped for HORA_TIMEOUT, meanwhile. A little later than
  /// that: horarun, which sees all hosts, ends the job first.
  std::optional<Error> stopped_rank(Duration time);

 private:
  Duration since() const;
  bool is_of_node(int rank) const;
  std::vector<int> missing() const;
  bool is_to_speak_of(const std::vector<int>& missing) const;
  std::string text(const std::vector<int>& missing, Duration waited) const;
  std::string remark(int rank) const;
  bool is_of_host(int rank) const;

  const EngineParts& engine_;
  const StallWatch& stalls_;
  std::set<int> departed_;
  Duration last_look_{};
  std::map<int, Duration> stopped_for_;  ///< as seen in looks, by rank
};

}  // namespace hora::internal
