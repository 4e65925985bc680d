/// The pass that averages and updates (fused_update.h), bucket by bucket while backward goes on:
/// Sharding::in_backward.
#pragma once

#include <hora/buffer.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "frameworks/torch/optimizer/fused_update.h"
#include "frameworks/torch/optimizer/gradient_averager.h"
#include "frameworks/torch/peers.h"

namespace hora::internal {

/// A counter for each bucket, in memory that the ranks share. Each rank updates each bucket equally
/// often. Thread rule: one thread at a time.
class UpdateCounts {
 public:
  /// Collective, under `name`. The ranks share_memory().
  UpdateCounts(const Peers& peers, const std::string& name, std::size_t buckets);

  /// This rank has updated its part of the bucket once more: what it has read and written for that
  /// comes before.
  void note(std::size_t bucket);
  /// Whether all ranks have updated it as often as this one: what the caller does next comes after
  /// all that they have read and written for it.
  bool noted_by_all(std::size_t bucket) const;

 private:
  Buffer memory_;
  std::vector<std::uint64_t*> counters_;  ///< by rank in the set, of the first bucket
  std::uint64_t* own_ = nullptr;
};

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
