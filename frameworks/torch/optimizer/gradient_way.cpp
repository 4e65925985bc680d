#include "frameworks/torch/optimizer/gradient_way.h"

namespace hora::internal {

std::size_t least_apart(const AveragingFacts& facts) {
  const bool apart = facts.arena_wanted && facts.on_host && facts.nodes == 1 &&
                     (!facts.sharded || facts.fused) && !facts.hooked && !facts.adasum;
  // As small as arenas have them: below, copying costs less than a collective.
  return apart ? std::size_t{64} << 10 : kNeverApart;
}

GradientWay gradient_way(const GradientFacts& facts) {
  const bool in_place =
      facts.apart && facts.in_arena && facts.plain && facts.in_order && !facts.shared;
  return in_place ? GradientWay::in_place : GradientWay::copied;
}

}  // namespace hora::internal
