#include <algorithm>
#include <bit>
#include <utility>

#include "ops/cross/cross_group.h"
#include "ops/local/kernels.h"

namespace hora::internal {
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
/// binary tree: of members 0 and 1, 2 and 3, ..; of these pairs' results, and so on. Where the
/// members are no power of two, p being the largest one below, member p + i's vector is first
/// combined with member i's, whole, and p + i gets the result in the end.
///
/// By recursive vector halving and distance doubling (halving_levels): at each level two members
/// exchange halves of what they hold; sum the dots of the halves with all who hold pieces of the
/// same two vectors, tensor by tensor, by recursive doubling; combine; and in the end gather the
/// pieces back. Each member sends and receives 2 (p-1)/p of the staging, in log2(p) exchanges of
/// either kind and log2(p) (log2(p) + 1) / 2 of dots (24 bytes a tensor).
///
/// All members get the same bits, in every run: each piece is combined by one member. Intermediate
/// results are rounded to the element type, level by level. Bytes outside the tensors are in the
/// end equal as well, and otherwise unspecified. Thread rule: as CrossGroup.
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
