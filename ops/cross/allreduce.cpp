/// Allreduce between nodes: every node owns the sum of one segment; around a ring; and for short
/// data: every node gets all parts, then sums them.
#include <hora/types.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "core/plan/plan.h"
#include "ops/cross/cross_group.h"
#include "ops/local/kernels.h"

namespace hora::internal {
namespace {

/// An operation that sums the members' stagings.
class AllreduceWork : public CrossWork {
 protected:
  AllreduceWork(CrossResources& resources, const Reduction& reduction, std::span<std::byte> staging,
                std::uint64_t sequence)
      : CrossWork(resources, sequence), reduction_(reduction), staging_(staging) {}

  std::size_t elements() const { return staging_.size() / size_of(reduction_.type); }

  const Reduction reduction_;
  const std::span<std::byte> staging_;
  const int index_ = link().index();
  const int members_ = link().size();
};

constexpr int kDirectScatter = 0;
constexpr int kDirectGather = 1;

/// One segment a node (multiples of 64 bytes, the last ones possibly empty) is sent to its owner,
/// which sums in node order and sends the sum to all: 2 (n-1)/n of the staging leaves and enters
/// each node, the least that is possible, in 2 (n-1) messages. Thread rule: as CrossGroup.
class DirectAllreduce : public AllreduceWork {
 public:
  DirectAllreduce(CrossResources& resources, const Reduction& reduction,
                  std::span<std::byte> staging, std::uint64_t sequence)
      : AllreduceWork(resources, reduction, staging, sequence) {
    Workspace& work = workspace();
    const std::span<std::byte> own = segment(index_);
    std::byte* incoming = work.buffer.reserve(work_bytes(staging_.size(), members_));
    work.inputs.resize(static_cast<std::size_t>(members_));
    work.inputs[static_cast<std::size_t>(index_)] = own.data();
    for (int k = 1; k < members_; ++k) {
      const int from = peer(members_ - k);  // the peer that begins with this member comes first
      receive(work.receives, from, kDirectScatter, {incoming, own.size()});
      work.inputs[static_cast<std::size_t>(from)] = incoming;
      incoming += own.size();
    }
    for (int k = 1; k < members_; ++k) send(work.sends, peer(k), kDirectScatter, segment(peer(k)));
  }
  bool poll() override {
    Workspace& work = workspace();
    post_gather_receives();
    if (!summed_) {
      if (!sum_my_segment()) return false;
      send_sum();
      summed_ = true;
    }
    if (!work.sends.all_completed() || !work.gather_receives.drained(link()) ||
        !work.gather_sends.drained(link())) {
      return false;
    }
    return finish();
  }

  /// Memory that an operation works in, beside its staging.
  static std::size_t work_bytes(std::size_t staging_bytes, int members) {
    return slice_range({0, staging_bytes}, 0, members).bytes *
           static_cast<std::size_t>(members - 1);
  }

 private:
  std::span<std::byte> segment(int member) const {
    const Range range = slice_range({0, staging_.size()}, member, members_);
    return staging_.subspan(range.begin, range.bytes);
  }
  /// The k-th peer, k in [1, n): each member begins with another one.
  int peer(int k) const { return (index_ + k) % members_; }
  // A peer's sum arrives where its segment was sent from: not before MPI has read it.
  void post_gather_receives() {
    Workspace& work = workspace();
    while (work.sends.next_completed(link())) {
      const int from = peer(static_cast<int>(work.sends.completed()));
      receive(work.gather_receives, from, kDirectGather, segment(from));
    }
  }
  bool sum_my_segment() {
    if (!summing_) {
      if (!workspace().receives.drained(link())) return false;
      const std::span<std::byte> own = segment(index_);
      sum_ = space().reduce(reduction_, workspace().inputs, own.data(),
                            own.size() / size_of(reduction_.type));
      summing_ = true;
    }
    return sum_.poll();
  }
  void send_sum() {
    for (int k = 1; k < members_; ++k) {
      send(workspace().gather_sends, peer(k), kDirectGather, segment(index_));
    }
  }

  bool summing_ = false;
  bool summed_ = false;
  Completion sum_;
};

// One phase is enough: the distances of the rounds differ and are less than n, so a pair of members
// exchanges one message in each direction at most.
constexpr int kDissemination = 0;

/// All-gather of every node's staging by dissemination, ceil(log2 n) rounds (Bruck et al.,
/// Efficient Algorithms for All-to-All Communications in Multiport Message-Passing Systems, IEEE
/// TPDS 8(11), 1997, section 3); then each node sums in node order: the bits of DirectAllreduce,
/// which recursive doubling, with less data, does not give. Thread rule: as CrossGroup.
class DisseminationAllreduce : public AllreduceWork {
 public:
  DisseminationAllreduce(CrossResources& resources, const Reduction& reduction,
                         std::span<std::byte> staging, std::uint64_t sequence)
      : AllreduceWork(resources, reduction, staging, sequence),
        gathered_(workspace().buffer.reserve(work_bytes(staging.size(), members_))) {
    for (int distance = 1; distance < members_; distance *= 2) {
      receive(workspace().receives, (index_ + distance) % members_, kDissemination,
              blocks(distance, count_at(distance)));
    }
    const std::array<const std::byte*, 1> own{staging_.data()};
    copy_ = space().reduce({.type = reduction_.type}, own, gathered_, elements());
  }
  bool poll() override {
    return copy_own() && gather() && workspace().sends.drained(link()) && sum_.poll() && finish();
  }

  /// Memory that an operation works in, beside its staging.
  static std::size_t work_bytes(std::size_t staging_bytes, int members) {
    return staging_bytes * static_cast<std::size_t>(members);
  }

 private:
  /// `count` blocks from the first-th on; block k is the staging of member index_ + k.
  std::span<std::byte> blocks(int first, int count) const {
    return {gathered_ + static_cast<std::size_t>(first) * staging_.size(),
            static_cast<std::size_t>(count) * staging_.size()};
  }
  /// Blocks that travel in the round of this distance (1, 2, 4, ..): those that are there, or those
  /// that are missing.
  int count_at(int distance) const { return std::min(distance, members_ - distance); }
  void send_round() {
    send(workspace().sends, (index_ + members_ - distance_) % members_, kDissemination,
         blocks(0, count_at(distance_)));
  }
  bool copy_own() {
    if (!copied_) {
      if (!copy_.poll()) return false;
      copied_ = true;
      send_round();
    }
    return true;
  }
  bool gather() {
    while (distance_ < members_) {
      if (!workspace().receives.next_completed(link())) return false;
      distance_ *= 2;
      if (distance_ < members_) {
        send_round();
      } else {
        start_sum();
      }
    }
    return true;
  }
  void start_sum() {
    auto& inputs = workspace().inputs;
    inputs.resize(static_cast<std::size_t>(members_));
    for (int member = 0; member < members_; ++member) {
      inputs[static_cast<std::size_t>(member)] =
          blocks((member - index_ + members_) % members_, 1).data();
    }
    sum_ = space().reduce(reduction_, inputs, staging_.data(), elements());
  }

  std::byte* gathered_;
  Completion copy_;  // of this member's staging into its block
  bool copied_ = false;
  int distance_ = 1;  // of the round under way
  Completion sum_;
};

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

/// Sums travel from member 0 to the last one, which applies the scale, and the result on around the
/// ring: a pipelined chain of segments, twice (Sanders, Speck, Träff: Two-tree algorithms for full
/// bandwidth broadcast, reduction and scan, Parallel Computing 35(12), 2009, section 2). Each node
/// talks to two others only, and sums are in member order: the bits of DirectAllreduce, which the
/// usual ring does not give.
///
/// With k segments 2 (n-1) + k - 1 steps. At most twice the staging leaves and enters each node;
/// float16 and bfloat16 travel to the last member as float32, three times the staging. Thread rule:
/// as CrossGroup.
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
  static std::size_t work_bytes(std::size_t staging_bytes, int /*members*/) {
    return widened_bytes(staging_bytes) + 2 * staging_bytes;
  }

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

/// This CrossWork as an algorithm.
template <class Work>
constexpr AllreduceAlgorithm algorithm(std::string_view name) {
  return {name, Work::work_bytes,
          [](CrossResources& resources, const Reduction& reduction, std::span<std::byte> staging,
             std::uint64_t sequence) {
            return Completion(std::make_unique<Work>(resources, reduction, staging, sequence));
          }};
}

}  // namespace

constexpr AllreduceAlgorithm kDirectAllreduce = algorithm<DirectAllreduce>("direct");
constexpr AllreduceAlgorithm kDisseminationAllreduce =
    algorithm<DisseminationAllreduce>("dissemination");
constexpr AllreduceAlgorithm kRingAllreduce = algorithm<RingAllreduce>("ring");

namespace {

// Who holds what in a reduction by recursive vector halving and distance doubling; pure. Maleki et
// al., arXiv 2006.02924, algorithm 1 (the order of the distances that Adasum needs); Thakur,
// Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA
// 19(1), 2005, section 4.4.

/// One level: of the bytes that `partner` and this member both have a result of, each keeps one
/// half, gives the other one away and combines.
struct HalvingLevel {
  int partner = 0;
  bool is_lower = false;  ///< this member's index is below the partner's
  Range kept;
  Range given;
};

/// The largest power of two that is at most `members`, which is at least 1.
int halving_members(int members) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(members)));
}

/// The levels of member `member` of `members`, a power of two. At level l the partner is 2^l away,
/// and what was kept at level l - 1 (first of all everything) is halved: the lower partner keeps
/// the first half, which is a multiple of 64 bytes and the longer one, or all there is. After level
/// l the members with equal index / 2^(l + 1) hold one result in pieces.
std::vector<HalvingLevel> halving_levels(int member, int members, std::size_t bytes) {
  std::vector<HalvingLevel> levels;
  Range range{0, bytes};
  for (int distance = 1; distance < members; distance *= 2) {
    const std::size_t half = std::min(range.bytes, align_up((range.bytes + 1) / 2));
    const Range first{range.begin, half};
    const Range second{range.begin + half, range.bytes - half};
    const bool is_lower = (member & distance) == 0;
    range = is_lower ? first : second;
    levels.push_back({member ^ distance, is_lower, range, is_lower ? second : first});
  }
  return levels;
}

// Two members exchange halves at one level alone, and fold, gather and return at most once; their
// exchanges of dots come in one order.
constexpr int kFold = 0;
constexpr int kHalve = 1;
constexpr int kDots = 2;
constexpr int kAdasumGather = 3;
constexpr int kReturn = 4;

Range intersection(Range a, Range b) {
  const std::size_t begin = std::max(a.begin, b.begin);
  const std::size_t end = std::min(a.begin + a.bytes, b.begin + b.bytes);
  return {begin, end > begin ? end - begin : 0};
}

/// Adasum of two vectors is no sum of their elements, and not associative. It is taken over a
/// binary tree: of members 0 and 1, 2 and 3, ..; of these pairs' results, and so on. Of p + r
/// members, p a power of two, member p + i's vector is first combined with member i's, and p + i
/// gets the result in the end.
///
/// By recursive vector halving and distance doubling: at each level two members exchange halves of
/// what they hold, sum the dots with all who hold pieces of the same two vectors, tensor by tensor,
/// and combine; in the end the pieces are gathered back. Each member sends and receives 2 (p-1)/p
/// of the staging, in log2(p) exchanges of either kind and log2(p) (log2(p) + 1) / 2 of dots.
///
/// All members get the same bits, in every run; intermediate results are rounded level by level.
/// Bytes outside the tensors are unspecified, and equal. Thread rule: as CrossGroup.
class AdasumAllreduce : public CrossWork {
 public:
  AdasumAllreduce(CrossResources& resources, DataType type, std::span<std::byte> staging,
                  std::vector<Range> tensors, std::uint64_t sequence)
      : CrossWork(resources, sequence),
        type_(type),
        staging_(staging),
        tensors_(std::move(tensors)),
        index_(link().index()),
        members_(link().size()),
        halving_members_(halving_members(members_)) {
    if (is_extra()) {
      send(workspace().sends, index_ - halving_members_, kFold, staging_);
      return;
    }
    levels_ = halving_levels(index_, halving_members_, staging_.size());
    dots_.resize(tensors_.size());
    other_dots_.resize(tensors_.size());
    if (has_extra()) {
      incoming_ = workspace().buffer.reserve(staging_.size());
      receive(workspace().receives, index_ + halving_members_, kFold, {incoming_, staging_.size()});
    } else {
      incoming_ = workspace().buffer.reserve(levels_.empty() ? 0 : levels_.front().kept.bytes);
      begin_level();
    }
  }
  bool poll() override {
    while (workspace().receives.drained(link()) && workspace().sends.drained(link())) {
      if (stage_ == Stage::complete) return finish();
      proceed();
    }
    return false;
  }

 private:
  /// The exchange under way.
  enum class Stage {
    folding,    ///< vectors of the members from p on, to their partners
    halving,    ///< halves
    summing,    ///< dots
    gathering,  ///< halves of the result
    returning,  ///< the result, to the members from p on
    complete,
  };

  /// When the exchange under way is complete: computes, and starts the next one.
  void proceed() {
    switch (stage_) {
      case Stage::folding: {
        if (is_extra()) return return_result();
        const Range everything{0, staging_.size()};
        measure(everything, true);
        combine(everything, true);
        return begin_level();
      }
      case Stage::halving:
        measure(levels_[level_].kept, levels_[level_].is_lower);
        distance_ = 1;
        return exchange_dots();
      case Stage::summing:
        add_dots();
        distance_ *= 2;
        return exchange_dots();
      case Stage::gathering:
        return begin_gathering();
      case Stage::returning:
      case Stage::complete:
        stage_ = Stage::complete;
    }
  }
  void begin_level() {
    if (level_ == levels_.size()) return begin_gathering();
    const HalvingLevel& level = levels_[level_];
    stage_ = Stage::halving;
    exchange(level.partner, kHalve, part(level.given), {incoming_, level.kept.bytes});
  }
  // Recursive doubling. Additions of two commute, so that all get the same bits.
  void exchange_dots() {
    const HalvingLevel& level = levels_[level_];
    if (distance_ > 1 << level_) {
      combine(level.kept, level.is_lower);
      ++level_;
      return begin_level();
    }
    stage_ = Stage::summing;
    exchange(index_ ^ distance_, kDots, std::as_bytes(std::span(dots_)),
             std::as_writable_bytes(std::span(other_dots_)));
  }
  void begin_gathering() {
    if (level_ == 0) return return_result();
    const HalvingLevel& level = levels_[--level_];
    stage_ = Stage::gathering;
    exchange(level.partner, kAdasumGather, part(level.kept), part(level.given));
  }
  void return_result() {
    stage_ = Stage::returning;
    if (is_extra()) {
      receive(workspace().receives, index_ - halving_members_, kReturn, staging_);
    } else if (has_extra()) {
      send(workspace().sends, index_ + halving_members_, kReturn, staging_);
    }
  }
  void exchange(int partner, int phase, std::span<const std::byte> sent,
                std::span<std::byte> received) {
    receive(workspace().receives, partner, phase, received);
    send(workspace().sends, partner, phase, sent);
  }
  /// Own vector (in the staging) and the other one (in the work buffer), in `range`: their dots.
  void measure(Range range, bool own_is_a) {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const Range piece = intersection(tensors_[t], range);
      dots_[t] = {};
      if (piece.bytes == 0) continue;
      const std::byte* own = staging_.data() + piece.begin;
      const std::byte* other = incoming_ + (piece.begin - range.begin);
      dots_[t] = adasum_dots(type_, own_is_a ? own : other, own_is_a ? other : own,
                             piece.bytes / size_of(type_));
    }
  }
  void add_dots() {
    for (std::size_t t = 0; t < dots_.size(); ++t) {
      dots_[t].dot += other_dots_[t].dot;
      dots_[t].norm_a += other_dots_[t].norm_a;
      dots_[t].norm_b += other_dots_[t].norm_b;
    }
  }
  /// Adasum of both, by the dots, into the staging.
  void combine(Range range, bool own_is_a) {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const Range piece = intersection(tensors_[t], range);
      if (piece.bytes == 0) continue;
      std::byte* own = staging_.data() + piece.begin;
      const std::byte* other = incoming_ + (piece.begin - range.begin);
      adasum_combine(type_, own_is_a ? own : other, own_is_a ? other : own,
                     adasum_factors(dots_[t]), own, piece.bytes / size_of(type_));
    }
  }

  std::span<std::byte> part(Range range) const {
    return staging_.subspan(range.begin, range.bytes);
  }
  bool is_extra() const { return index_ >= halving_members_; }
  bool has_extra() const { return index_ + halving_members_ < members_; }

  DataType type_;
  std::span<std::byte> staging_;
  std::vector<Range> tensors_;
  int index_;
  int members_;
  int halving_members_;
  std::vector<HalvingLevel> levels_;  ///< none where is_extra()
  std::byte* incoming_ = nullptr;     ///< what the other one sent
  std::vector<AdasumDots> dots_;      ///< by tensor
  std::vector<AdasumDots> other_dots_;
  Stage stage_ = Stage::folding;
  std::size_t level_ = 0;
  int distance_ = 1;  ///< to the partner in the exchange of dots
};

}  // namespace

Completion start_adasum(CrossResources& resources, DataType type, std::span<std::byte> staging,
                        std::vector<Range> tensors, std::uint64_t sequence) {
  return Completion(
      std::make_unique<AdasumAllreduce>(resources, type, staging, std::move(tensors), sequence));
}

}  // namespace hora::internal
