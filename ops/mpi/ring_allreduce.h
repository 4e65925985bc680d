/// Allreduce between nodes around a ring.
#pragma once

#include <hora/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/plan/reduction.h"
#include "ops/mpi/cross_work.h"

namespace hora {

/// Reduce-scatter, then all-gather, both around the ring (Patarasuk, Yuan: Bandwidth Optimal
/// All-reduce Algorithms for Clusters of Workstations, JPDC 69(2), 2009). As much data as
/// DirectAllreduce, in 2 (n-1) steps, but each node talks to two others only.
///
/// Segment s begins at member s+1 and is complete at member s, which applies the scale: its sum is
/// ((x[s+1] + x[s+2]) + ...) + x[s], indices modulo n. So the bits are the same from run to run and
/// on every member, but an element's order of additions depends on where it lies. float16 and
/// bfloat16 are rounded at each of the n-1 additions, where DirectAllreduce rounds once.
/// Thread rule: as CrossGroup.
class RingAllreduce : public CrossWork {
 public:
  RingAllreduce(CrossResources& resources, const Reduction& reduction, std::span<std::byte> staging,
                std::uint64_t sequence);
  bool poll() override;

  /// Memory that an operation works in, beside its staging.
  static std::size_t work_bytes(std::size_t staging_bytes, int members);

 private:
  /// Segment (me - steps) modulo n; steps in [0, 2n).
  std::span<std::byte> segment_back(int steps) const;
  std::span<std::byte> incoming(int step);
  void receive_step(int step);
  void post_gather_receives();
  bool reduce_scatter();
  bool all_gather();
  void start_adding(int step);
  void go_on();

  Reduction reduction_;
  std::span<std::byte> staging_;
  int me_;
  int members_;
  int steps_;  // of each half: n - 1
  int left_;
  int right_;
  std::size_t longest_segment_;
  std::byte* buffer_;  // two segments
  bool adding_ = false;
  Completion sum_;
  int reduced_ = 0;   // steps of the reduce-scatter that are through
  int gathered_ = 0;  // of the all-gather
};

}  // namespace hora
