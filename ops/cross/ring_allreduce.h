/// Allreduce between nodes around a ring.
#pragma once

#include <hora/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/plan/plan.h"
#include "ops/cross/cross_work.h"

namespace hora {

/// Sums travel from member 0 around to the last one, which applies the scale, and the result goes
/// on around the ring to all others: a pipelined chain of segments, twice (the linear pipeline of
/// Sanders, Speck, Träff: Two-tree algorithms for full bandwidth broadcast, reduction and scan,
/// Parallel Computing 35(12), 2009, section 2). Each node talks to two others only, and each
/// element is summed in member order, wherever it lies: the bits of DirectAllreduce. The usual ring
/// (Patarasuk, Yuan, JPDC 69(2), 2009) begins each segment at another member, so that its order of
/// additions depends on the position.
///
/// With k segments 2 (n-1) + k - 1 steps. At most twice the staging leaves and enters each node,
/// the least that is possible being 2 (n-1)/n of it. float16 and bfloat16 travel to the last member
/// as float32, for they are rounded once: three times the staging. Thread rule: as CrossGroup.
class RingAllreduce : public CrossWork {
 public:
  RingAllreduce(CrossResources& resources, const Reduction& reduction, std::span<std::byte> staging,
                std::uint64_t sequence);
  bool poll() override;

  /// Memory that an operation works in, beside its staging; of any type.
  static std::size_t work_bytes(std::size_t staging_bytes);

 private:
  /// What is done with a segment, in this order; a member leaves out what is not its part.
  enum class Step { arrive, widen, add, narrow };

  bool is_first() const { return me_ == 0; }
  bool is_last() const { return me_ == members_ - 1; }
  /// Sums travel in another type than the staging's.
  bool is_widened() const { return sum_type_ != reduction_.type; }
  Range range(int segment) const;
  std::size_t elements(int segment) const { return range(segment).bytes / element_; }
  std::span<std::byte> staged(int segment) const;
  /// Where a sum arrives, or this member's is made; in the type of sums.
  std::span<std::byte> partial(int segment) const;
  /// The segment, as this member passes it on.
  std::span<const std::byte> outgoing(int segment) const;
  Completion widen(int segment);
  Completion add(int segment);
  Completion narrow(int segment);
  bool sum_next();
  bool sum_all();
  void post_result_receives();
  bool spread();

  Reduction reduction_;
  DataType sum_type_;
  std::size_t element_;  // bytes of one in the staging
  std::span<std::byte> staging_;
  int me_;
  int members_;
  int left_;
  int right_;
  int segments_;
  std::byte* widened_;   // one segment of this member's in the type of sums
  std::byte* partials_;  // all segments
  Step step_ = Step::arrive;
  Completion work_;
  int summed_ = 0;            // segments that this member has passed on, or completed
  int results_expected_ = 0;  // receives of results that are posted
  int spread_ = 0;            // results that have arrived
};

}  // namespace hora
