/// hora's types and reductions as NCCL's, and what tensors need before and after it.
#pragma once

#include <hora/types.h>

#include "core/plan/plan.h"
#include "ops/cuda/functions.h"
#include "ops/nccl/functions.h"

namespace hora {

/// Booleans are uint8 with the values 0 and 1. Throws Error(invalid_argument) for int16, which NCCL
/// does not have, and for an unknown type.
ncclDataType_t to_nccl(DataType type);
/// A type of the same size, whatever the type: for values that only travel.
ncclDataType_t travelling_type(DataType type);

/// Of booleans, which are 0 or 1 then: maximum for sum and max, minimum for product and min. An
/// average is NCCL's own. Throws Error(invalid_argument) for Adasum.
ncclRedOp_t to_nccl(ReduceOp op, DataType type);

/// NCCL would take the values for something else: they are scaled (Unit::prescale), or booleans, of
/// which every byte but 0 is true.
bool needs_preparation(const Unit& unit);
/// The copy that prepares such values, without its pieces; a plain one where nothing is needed.
BatchedCopy preparation(const Unit& unit);

}  // namespace hora
