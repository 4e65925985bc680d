/// Allreduce between nodes for short data: every node gets all parts, then sums them.
#pragma once

#include <hora/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/plan/plan.h"
#include "ops/cross/cross_work.h"

namespace hora {

/// All-gather of every node's staging by dissemination, ceil(log2 n) rounds (Bruck, Ho, Kipnis,
/// Upfal, Weathersby: Efficient Algorithms for All-to-All Communications in Multiport
/// Message-Passing Systems, IEEE TPDS 8(11), 1997, section 3); then each node sums in node order.
///
/// The classic for short data is recursive doubling (Thakur, Rabenseifner, Gropp: Optimization of
/// Collective Communication Operations in MPICH, IJHPCA 19(1), 2005): as many rounds and less data,
/// but it adds as its tree goes. This one gives the bits of DirectAllreduce, so that a result does
/// not depend on how much was fused. Thread rule: as CrossGroup.
class DisseminationAllreduce : public CrossWork {
 public:
  DisseminationAllreduce(CrossResources& resources, const Reduction& reduction,
                         std::span<std::byte> staging, std::uint64_t sequence);
  bool poll() override;

  /// Memory that an operation works in, beside its staging.
  static std::size_t work_bytes(std::size_t staging_bytes, int members);

 private:
  /// `count` blocks from the first-th on; block k is the staging of member me + k.
  std::span<std::byte> blocks(int first, int count) const;
  /// Blocks that travel in the round of this distance (1, 2, 4, ..): those that are there, or those
  /// that are missing.
  int count_at(int distance) const;
  void send_round();
  bool copy_mine();
  bool gather();
  void start_sum();

  Reduction reduction_;
  std::span<std::byte> staging_;
  int me_;
  int members_;
  std::byte* gathered_;
  Completion copy_;  // of this member's staging into its block
  bool copied_ = false;
  int distance_ = 1;  // of the round under way
  Completion sum_;
};

}  // namespace hora
