/// State that a wrapped optimizer has before its first step, cut as its parameters are.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <vector>

namespace hora {

/// Consecutive elements of a parameter, which the optimizer steps in its place.
struct ParameterPiece {
  std::int64_t begin = 0;  ///< element of the parameter, in its memory order
  at::Tensor values;
};

/// False where the optimizer has stepped, and where it keeps state that hora does not know: only
/// Adagrad has any before its first step.
bool can_cut_state(const torch::optim::Optimizer& optimizer);

/// The state of `parameter`, where it has any, becomes that of its pieces.
void cut_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
               const std::vector<ParameterPiece>& pieces);

}  // namespace hora
