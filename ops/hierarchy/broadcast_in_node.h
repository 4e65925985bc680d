/// A broadcast among the ranks of one node.
#pragma once

#include <cstddef>

#include "core/control_block/broadcast_progress.h"
#include "core/plan/bound_unit.h"
#include "ops/hierarchy/groups.h"

namespace hora {

/// The root makes readable what it has not yet (BoundUnit::publishes), step by step; ranks that
/// fetch follow it on its progress, so that both copy at the same time; the other ranks' memory is
/// filled by all, each writing a slice, when all of the data is readable.
class BroadcastInNode final : public PendingWork {
 public:
  /// Unit and group outlive it.
  BroadcastInNode(const BoundUnit& unit, BroadcastProgress progress, LocalGroup& group,
                  int local_rank);
  bool poll() override;

 private:
  void publish();
  void fetch(std::size_t readable);

  const BoundUnit& unit_;
  BroadcastProgress progress_;
  LocalGroup& group_;
  bool is_root_;
  bool is_followed_;
  std::size_t fetched_ = 0;  ///< of the unit's bytes
};

}  // namespace hora
