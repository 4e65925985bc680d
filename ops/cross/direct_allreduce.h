/// Allreduce between nodes: every node owns the sum of one segment.
#pragma once

#include <hora/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/plan/plan.h"
#include "ops/cross/cross_work.h"

namespace hora {

/// The staging is cut into one segment a node (multiples of 64 bytes, the last ones possibly
/// empty). Each is sent to its owner, who sums in node order, its own part in its place, and sends
/// the sum to all. 2 (n-1)/n of the staging leaves and enters each node, the least that is
/// possible, in two steps; 2 (n-1) messages a node, each 1/n long. Every element is summed in one
/// and the same order, wherever it lies. Thread rule: as CrossGroup.
class DirectAllreduce : public CrossWork {
 public:
  DirectAllreduce(CrossResources& resources, const Reduction& reduction,
                  std::span<std::byte> staging, std::uint64_t sequence);
  bool poll() override;

  /// Memory that an operation works in, beside its staging.
  static std::size_t work_bytes(std::size_t staging_bytes, int members);

 private:
  std::span<std::byte> segment(int member) const;
  /// The k-th peer, k in [1, n): each member begins with another one.
  int peer(int k) const { return (me_ + k) % members_; }
  void post_gather_receives();
  bool sum_my_segment();
  void send_sum();

  Reduction reduction_;
  std::span<std::byte> staging_;
  int me_;
  int members_;
  bool summing_ = false;
  bool summed_ = false;
  Completion sum_;
};

}  // namespace hora
