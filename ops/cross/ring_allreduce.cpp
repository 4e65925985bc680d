/// Allreduce between nodes around a ring.
#include <hora/types.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/plan/plan.h"
#include "ops/cross/cross_group.h"

namespace hora::internal {
namespace {

// Both neighbours start the messages of a phase in the order of the segments.
constexpr int kRingReduce = 0;
constexpr int kRingGather = 1;

/// A segment's time on the wire is some times the latency of a message, and there are enough of
/// them to keep a chain of nodes busy.
constexpr std::size_t kSegmentBytes = std::size_t{64} << 10;
constexpr std::size_t kMostSegments = 64;

int segments_of(std::size_t staging_bytes) {
  const std::size_t segments = (staging_bytes + kSegmentBytes - 1) / kSegmentBytes;
  return static_cast<int>(std::clamp<std::size_t>(segments, 1, kMostSegments));
}

/// Bytes of one segment in float32, whatever its type; segment 0 is the longest.
std::size_t widened_bytes(std::size_t staging_bytes) {
  return align_up(2 * slice_range({0, staging_bytes}, 0, segments_of(staging_bytes)).bytes);
}

bool is_half(DataType type) {
  return type == DataType::float16 || type == DataType::bfloat16;
}

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
class RingAllreduce : public AllreduceWork {
 public:
  RingAllreduce(CrossResources& resources, const Reduction& reduction, std::span<std::byte> staging,
                std::uint64_t sequence)
      : AllreduceWork(resources, reduction, staging, sequence),
        sum_type_(is_half(reduction.type) ? DataType::float32 : reduction.type),
        element_(size_of(reduction.type)),
        left_((index_ + members_ - 1) % members_),
        right_((index_ + 1) % members_),
        segments_(segments_of(staging.size())),
        widened_(workspace().buffer.reserve(work_bytes(staging.size(), members_))),
        partials_(widened_ + widened_bytes(staging.size())) {
    for (int segment = 0; !is_first() && segment < segments_; ++segment) {
      receive(workspace().receives, left_, kRingReduce, partial(segment));
    }
  }
  bool poll() override {
    const bool all_summed = sum_all();
    post_result_receives();
    const bool all_gathered = gather();
    Workspace& work = workspace();
    return all_summed && all_gathered && work.sends.drained(link()) &&
           work.gather_sends.drained(link()) && finish();
  }

  /// Memory that an operation works in, beside its staging; of any type.
  static std::size_t work_bytes(std::size_t staging_bytes, int members);

 private:
  /// The steps of a segment, in this order; a member leaves out what is not its part.
  enum class Step { arrive, widen, add, narrow };

  bool is_first() const { return index_ == 0; }
  bool is_last() const { return index_ == members_ - 1; }
  /// Sums travel in another type than the staging's.
  bool is_widened() const { return sum_type_ != reduction_.type; }
  Range range(int segment) const { return slice_range({0, staging_.size()}, segment, segments_); }
  std::size_t elements(int segment) const { return range(segment).bytes / element_; }
  std::span<std::byte> staged(int segment) const {
    return staging_.subspan(range(segment).begin, range(segment).bytes);
  }
  /// Where a sum arrives, or this member's is made; in the type of sums.
  std::span<std::byte> partial(int segment) const {
    const std::size_t width = size_of(sum_type_);
    return {partials_ + range(segment).begin / element_ * width, elements(segment) * width};
  }
  /// The segment, as this member passes it on.
  std::span<const std::byte> outgoing(int segment) const {
    const bool staging = is_last() || (is_first() && !is_widened());
    return staging ? staged(segment) : partial(segment);
  }
  /// The first member's own values are the first sum.
  Completion widen(int segment) {
    if (!is_widened()) return {};
    std::byte* const target = is_first() ? partial(segment).data() : widened_;
    return space().convert(reduction_.type, staged(segment).data(), sum_type_, target,
                           elements(segment));
  }
  Completion add(int segment) {
    if (is_first()) return {};
    std::byte* const own = is_widened() ? widened_ : staged(segment).data();
    std::byte* const sum = partial(segment).data();
    const std::array<const std::byte*, 2> inputs{sum, own};
    Reduction reduction = reduction_;
    reduction.type = sum_type_;
    if (!is_last()) reduction.scale = 1.0;
    return space().reduce(reduction, inputs, is_last() && !is_widened() ? own : sum,
                          elements(segment));
  }
  Completion narrow(int segment) {
    if (!is_last() || !is_widened()) return {};
    return space().convert(sum_type_, partial(segment).data(), reduction_.type,
                           staged(segment).data(), elements(segment));
  }
  /// True when the next segment is summed.
  bool sum_next() {
    while (work_.poll()) {
      switch (step_) {
        case Step::arrive:
          if (!is_first() && !workspace().receives.next_completed(link())) return false;
          step_ = Step::widen;
          work_ = widen(summed_);
          break;
        case Step::widen:
          step_ = Step::add;
          work_ = add(summed_);
          break;
        case Step::add:
          step_ = Step::narrow;
          work_ = narrow(summed_);
          break;
        case Step::narrow:
          step_ = Step::arrive;
          send(workspace().sends, right_, is_last() ? kRingGather : kRingReduce, outgoing(summed_));
          ++summed_;
          return true;
      }
    }
    return false;
  }
  bool sum_all() {
    while (summed_ < segments_) {
      if (!sum_next()) return false;
    }
    return true;
  }
  // A result arrives where this member's values were: not before they have been summed and, where
  // they are sent from there, MPI has read them.
  void post_result_receives() {
    if (is_last()) return;
    Workspace& work = workspace();
    while (results_expected_ < summed_) {
      if (is_first() && !work.sends.next_completed(link())) return;
      receive(work.gather_receives, left_, kRingGather, staged(results_expected_));
      ++results_expected_;
    }
  }
  bool gather() {
    if (is_last()) return true;
    while (gathered_ < segments_) {
      if (!workspace().gather_receives.next_completed(link())) return false;
      if (right_ != members_ - 1) {
        send(workspace().gather_sends, right_, kRingGather, staged(gathered_));
      }
      ++gathered_;
    }
    return true;
  }

  DataType sum_type_;
  std::size_t element_;  // bytes of one in the staging
  int left_;
  int right_;
  int segments_;
  std::byte* widened_;   // one segment of this member's in the type of sums
  std::byte* partials_;  // all segments
  Step step_ = Step::arrive;
  Completion work_;
  int summed_ = 0;            // segments that this member has passed on, or completed
  int results_expected_ = 0;  // receives of results that are posted
  int gathered_ = 0;          // results that have arrived
};

std::size_t RingAllreduce::work_bytes(std::size_t staging_bytes, int /*members*/) {
  return widened_bytes(staging_bytes) + 2 * staging_bytes;
}

}  // namespace

constexpr AllreduceAlgorithm kRingAllreduce{"ring", RingAllreduce::work_bytes,
                                            start_allreduce<RingAllreduce>};

}  // namespace hora::internal
