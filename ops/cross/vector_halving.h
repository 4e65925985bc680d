/// Who holds what in a reduction by recursive vector halving and distance doubling: Maleki et al.,
/// arXiv 2006.02924, algorithm 1 (the order of the distances that Adasum needs); Thakur,
/// Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA
/// 19(1), 2005, section 4.4. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "core/plan/plan.h"

namespace hora {

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

/// Of member `me` of `members`, a power of two. At level l the partner is 2^l away, and what was
/// kept at level l - 1 (first of all everything) is halved: the lower partner keeps the first half,
/// which is a multiple of 64 bytes and the longer one, or all there is. After level l the members
/// with equal index / 2^(l + 1) hold one result in pieces.
std::vector<HalvingLevel> halving_levels(int me, int members, std::size_t bytes);

}  // namespace hora
