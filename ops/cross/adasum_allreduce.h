/// Allreduce between nodes by adaptive summation (ops/local/kernels.h).
#pragma once

#include <hora/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/plan/plan.h"
#include "ops/cross/cross_work.h"
#include "ops/local/kernel_table.h"

namespace hora::internal {

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
  bool operator==(const HalvingLevel&) const = default;
};

/// The largest power of two that is at most `members`, which is at least 1.
int halving_members(int members);

/// The levels of member `member` of `members`, a power of two. At level l the partner is 2^l away,
/// and what was kept at level l - 1 (first of all everything) is halved: the lower partner keeps
/// the first half, which is a multiple of 64 bytes and the longer one, or all there is. After level
/// l the members with equal index / 2^(l + 1) hold one result in pieces.
std::vector<HalvingLevel> halving_levels(int member, int members, std::size_t bytes);

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
  /// `tensors`: the bytes of each tensor in the staging, whole tensors, equal on all members.
  /// Throws Error(invalid_argument) for a type that is not floating-point, and for a range that is
  /// not in the staging or no whole number of elements.
  AdasumAllreduce(CrossResources& resources, DataType type, std::span<std::byte> staging,
                  std::vector<Range> tensors, std::uint64_t sequence);
  bool poll() override;

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
  void proceed();
  void begin_level();
  void exchange_dots();
  void begin_gathering();
  void return_result();
  void exchange(int partner, int phase, std::span<const std::byte> sent,
                std::span<std::byte> received);
  /// Own vector (in the staging) and the other one (in the work buffer), in `range`: their dots.
  void measure(Range range, bool own_is_a);
  void add_dots();
  /// Adasum of both, by the dots, into the staging.
  void combine(Range range, bool own_is_a);

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

}  // namespace hora::internal
