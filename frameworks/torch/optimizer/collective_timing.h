/// Collectives timed at the start of a training.
#pragma once

#include <optional>
#include <string>

#include "frameworks/torch/optimizer/collective_cost.h"
#include "frameworks/torch/peers.h"

namespace hora::internal {

/// Collective. What an allreduce of host memory costs, by the shortest of some blocking ones of a
/// few sizes, in memory such as buckets have: the same on every rank, the slowest's. Takes less
/// than a second, unless the smallest one takes that; how many there are follows from times that
/// all ranks know. Nothing for one rank, and where the link is so slow that only one size was
/// timed. `name`: of the collectives.
std::optional<CollectiveCost> timed_collectives(const Peers& peers, const std::string& name);

}  // namespace hora::internal
