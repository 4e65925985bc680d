/// Moving the pieces of a stream inside a node.
#pragma once

#include <cstddef>

#include "core/plan/bound_unit.h"
#include "core/plan/exchange.h"

namespace hora {

/// From the node's inputs to `out`, where the stream's bytes lie one after the other. Sums are
/// not scaled.
void gather(const BoundUnit& unit, const Stream& stream, std::byte* out);

/// From `in`, where the stream's bytes lie one after the other, those that come to `local_rank`
/// into its result.
void scatter(const Stream& stream, int local_rank, const std::byte* in, std::byte* result);

/// Straight from the node's inputs into my result, in local rank order; sums are scaled. `stream`:
/// what comes to me alone.
void copy_to_result(const BoundUnit& unit, const Stream& stream, std::byte* result);

}  // namespace hora
