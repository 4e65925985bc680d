/// The pass that averages and updates (fused_update.h), bucket by bucket while backward goes on:
/// Sharding::in_backward.
#pragma once

#include <cstddef>
#include <vector>

#include "frameworks/torch/optimizer/fused_update.h"
#include "frameworks/torch/optimizer/gradient_averager.h"
#include "frameworks/torch/optimizer/update_counts.h"
#include "frameworks/torch/peers.h"

namespace hora::internal {

/// Works in the hooks of backward, on their thread, and never waits: what is not ready at a hook is
/// left to a later one, in the end to step(). A rank is thereby free to update a bucket in a hook
/// that another one updates in step(). Thread rule: one thread at a time.
class BackwardUpdate {
 public:
  /// Collective. References outlive it.
  BackwardUpdate(const Peers& peers, GradientAverager& averager, FusedUpdate& fused);

  /// Once a round, with its first complete gradient: tells the others whether this rank can.
  void begin();
  /// After begin(), in the hook behind each complete gradient. `agreed`: all else that the ranks
  /// compare before an update is the same.
  void proceed(bool agreed);
  /// Once a step, at its end, on every rank, whether its round has begun here or not.
  void end();

 private:
  enum class Stage { filling, given, updated, released };
  void give(std::size_t bucket);
  void update(std::size_t bucket);
  void release(std::size_t bucket);

  GradientAverager& averager_;
  FusedUpdate& fused_;
  UpdateCounts counts_;
  std::vector<Stage> stages_;  ///< by bucket
  bool can_run_ = false;
};

}  // namespace hora::internal
