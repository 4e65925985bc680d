/// The state of an optimizer by the names of its parameters, so that it can be loaded by another
/// number of ranks, sharded or not.
///
/// A parameter's entries are "conv1.weight/momentum_buffer" and so on, one a field of LibTorch's
/// state class, numbers as tensors without dimensions. Where a rank has consecutive elements of it
/// alone (sharding) they are "conv1.weight[128:256]/momentum_buffer", elements in the
/// parameter's memory order, whose sizes and strides are "conv1.weight/layout". Besides there are
/// "kind", the name of the state class, and "groups/0", ...: the options of the parameter groups.
#pragma once

#include <torch/optim/optimizer.h>

#include <span>

#include "frameworks/torch/checkpoint/safetensors.h"
#include "frameworks/torch/optimizer/parameters.h"

namespace hora::internal {

/// Not copied. Throws Error(invalid_argument) for state that is of none of LibTorch's classes.
NamedTensors state_of(torch::optim::Optimizer& optimizer, std::span<const OptimizerPiece> pieces);

/// `saved`: of any number of ranks, all entries that these have given. The state that the optimizer
/// had is lost. Throws Error(invalid_argument) where the optimizer is of another class, or its
/// groups or parameters do not fit.
void load_state(torch::optim::Optimizer& optimizer, std::span<const OptimizerPiece> pieces,
                std::span<const NamedTensors> saved);

}  // namespace hora::internal
